//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/docker"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron"
	"github.com/prometheus/client_golang/prometheus"
)

// openNeutron opens OpenStack Neutron. It need not answer yet.
func openNeutron(_ context.Context, c config.Config, log *slog.Logger, r prometheus.Registerer) (*backend, error) {
	installation := c.Installation
	if installation == "" {
		var err error
		if installation, err = keptInstallation(c.StateDir); err != nil {
			return nil, err
		}
	}
	p, err := openCounted(neutronConfig(c, installation), log, r)
	if err != nil {
		return nil, err
	}
	return &backend{provider: p}, nil
}

// openCounted opens a Neutron whose requests are counted.
func openCounted(c neutron.Config, log *slog.Logger, r prometheus.Registerer) (*neutron.Provider, error) {
	requests := metrics.NewRequests(r)
	c.Observe = func(q neutron.Request) { requests.Done(q.Method, q.Collection, q.Status, q.Duration) }
	return neutron.Open(c, log)
}

func neutronConfig(c config.Config, installation string) neutron.Config {
	n, k := c.Neutron, c.Neutron.Credentials
	out := neutron.Config{
		Installation: installation, Host: c.Host, Project: n.Project, Cloud: n.Cloud, CloudsFile: n.CloudsFile,
		Region: n.Region, Interface: n.Interface, Endpoint: n.Endpoint, OctaviaEndpoint: n.LoadBalancerEndpoint, Backend: n.LoadBalancerProvider, CAFile: n.CAFile, CertFile: n.CertFile, KeyFile: n.KeyFile,
		Insecure: n.Insecure, Timeout: n.Timeout, Uncached: docker.Scope(c.Docker.CapabilityScope) == docker.Global,
		Auth: neutron.Auth{
			Type: n.AuthType, URL: k.AuthURL, Username: k.Username, UserID: k.UserID,
			UserDomainName: k.UserDomainName, UserDomainID: k.UserDomainID,
			ProjectName: k.ProjectName, ProjectID: k.ProjectID, ProjectDomainName: k.ProjectDomainName, ProjectDomainID: k.ProjectDomainID,
			ApplicationCredentialID: k.ApplicationCredentialID, ApplicationCredentialName: k.ApplicationCredentialName,
		},
	}
	switch {
	case n.AuthType == "token":
		out.Auth.Token = k.Secret
	case n.AuthType == "application_credential", k.ApplicationCredentialID+k.ApplicationCredentialName != "":
		out.Auth.ApplicationCredentialSecret = k.Secret
	default:
		out.Auth.Password = k.Secret
	}
	return out
}

// installationFile is in the state directory.
const installationFile = "installation"

// keptInstallation is the installation that was made up at the first start.
func keptInstallation(dir string) (string, error) {
	path := filepath.Join(dir, installationFile)
	text, err := os.ReadFile(path)
	if err == nil {
		id := strings.TrimSpace(string(text))
		if err := (sdn.Key{Owner: cmp.Or(id, "?"), Kind: "k", Name: "n"}).Validate(); err != nil || len(id) > 64 {
			return "", fmt.Errorf("%s holds %.40q, which is no installation's name: repair the file, or name the installation in the configuration", path, id)
		}
		return id, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("installation: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("installation: %w", err)
	}
	random := uuid.New()
	id := hex.EncodeToString(random[:8])
	err = writeFile(path, func(w io.Writer) error {
		_, err := io.WriteString(w, id+"\n")
		return err
	})
	if err != nil {
		return "", fmt.Errorf("installation: %w", err)
	}
	return id, nil
}
