package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/config/types"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// maxCredentials is the longest file of credentials that is read.
const maxCredentials = 1 << 20

// credentialFiles are where "docker login" and "podman login" leave credentials for a user
// (containers-auth.json(5)). authn.DefaultKeychain does not do: it stops at Docker's file, also
// if that has none for the registry, and knows podman's only by XDG_RUNTIME_DIR, which a
// service of systemd does not have.
func credentialFiles(env func(string) string, uid int) (files []string) {
	below := func(dir string, parts ...string) {
		if dir != "" {
			files = append(files, filepath.Join(append([]string{dir}, parts...)...))
		}
	}
	home, user := env("HOME"), strconv.Itoa(uid)
	below(home, ".docker/config.json")
	below(env("DOCKER_CONFIG"), "config.json")
	below(env("REGISTRY_AUTH_FILE"))
	below(env("XDG_RUNTIME_DIR"), "containers/auth.json")
	below("/run/containers", user, "auth.json") // of podman without XDG_RUNTIME_DIR
	below("/run/user", user, "containers/auth.json")
	below(env("XDG_CONFIG_HOME"), "containers/auth.json")
	below(home, ".config/containers/auth.json")
	return files
}

// auth is the first credential for the repository in the user's files. It is anonymous without
// one: most images need none, and the registry says so if one does.
func (f *fetch) auth(ctx context.Context, repo name.Repository) authn.Authenticator {
	for _, file := range credentialFiles(os.Getenv, os.Geteuid()) {
		found, err := credential(file, repo)
		if err != nil {
			f.log.WarnContext(ctx, "registry credentials not read", "file", file, "err", err)
		}
		if found != nil {
			return authn.FromConfig(authn.AuthConfig{
				Username: found.Username, Password: found.Password, Auth: found.Auth,
				IdentityToken: found.IdentityToken, RegistryToken: found.RegistryToken,
			})
		}
	}
	return authn.Anonymous
}

// credential reads what a file has for a repository; nil is nothing.
func credential(path string, repo name.Repository) (*types.AuthConfig, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxCredentials {
		return nil, errors.Join(err, fmt.Errorf("want a regular file of at most %d bytes", maxCredentials))
	}
	c, err := config.LoadFromReader(io.LimitReader(file, maxCredentials))
	if err != nil {
		return nil, err
	}
	host := repo.RegistryStr()
	hosts := []string{host}
	if host == name.DefaultRegistry {
		hosts = []string{authn.DefaultAuthKey, host, "docker.io"}
	}
	for _, host := range hosts {
		found, err := credentialOf(c, host, repo.RepositoryStr())
		if found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

// credentialOf looks a repository up in a file: by a helper program if the file names one, else
// by its own entries, of which one of a longer namespace goes first.
func credentialOf(c *configfile.ConfigFile, host, repository string) (*types.AuthConfig, error) {
	if c.CredentialsStore != "" || c.CredentialHelpers[host] != "" {
		found, err := c.GetAuthConfig(host)
		return filled(found), err
	}
	for key := host + "/" + repository; ; key = key[:strings.LastIndexByte(key, '/')] {
		for entry, found := range c.AuthConfigs {
			if entry == key || key == host && hostOf(entry) == host {
				if found := filled(found); found != nil {
					return found, nil
				}
			}
		}
		if key == host {
			return nil, nil
		}
	}
}

// hostOf is the registry of an entry, which older versions of Docker wrote as the URL of its API.
func hostOf(entry string) string {
	_, rest, found := strings.Cut(entry, "://")
	if !found {
		rest = entry
	}
	host, path, _ := strings.Cut(rest, "/")
	if path = strings.TrimSuffix(path, "/"); path == "" || path == "v1" || path == "v2" {
		return host
	}
	return ""
}

// filled is the credential, nil if there is nothing in it.
func filled(c types.AuthConfig) *types.AuthConfig {
	c.ServerAddress = "" // which the library adds
	if c == (types.AuthConfig{}) {
		return nil
	}
	return &c
}
