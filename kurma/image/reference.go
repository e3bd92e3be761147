package image

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// Scheme is where a reference looks for its image.
type Scheme string

// The schemes. Plain is a name without one.
const (
	File   Scheme = "file"
	HTTP   Scheme = "http"
	HTTPS  Scheme = "https"
	Docker Scheme = "docker"
	Plain  Scheme = ""
)

// Reference is a parsed reference to an image:
//
//	file:///path/to/image.aci               a file or, for an OCI layout, a folder of this machine
//	https://example.com/image.aci           a download; http:// needs a digest or a host that the configuration allows
//	docker://host[:port]/name[:tag|@digest] a registry; docker:///user/name is Docker Hub
//	example.com/name[:version][,label=value…]  an image of the store with that manifest name, or else appc's discovery
//
// file and http(s) take a digest as fragment, "#sha256-…" or "#sha512-…" (a colon does as well): of the file as it is served, as sha256sum prints it, or of the tar
// within its compression, which for an ACI is its image id.
type Reference struct {
	Scheme Scheme
	Path   string            // File: absolute and clean
	URL    string            // HTTP, HTTPS: without the digest
	Host   string            // HTTP, HTTPS, Docker: as a configuration names it, with the port if one is given
	Digest Digest            // File, HTTP, HTTPS: what the image must be; may be zero
	Name   string            // Plain: an ACIdentifier
	Labels map[string]string // Plain: "version" and others

	docker name.Reference
	text   string
}

// String is the reference as it was given to Parse.
func (r Reference) String() string { return r.text }

// Digest is a digest that a reference asks for.
type Digest struct {
	Algorithm string // "sha256" or "sha512"
	Hex       string // lower case
}

func (d Digest) String() string {
	if d == (Digest{}) {
		return ""
	}
	return d.Algorithm + "-" + d.Hex
}

const maxReference = 2048

// identifier is appc's ACIdentifier.
var identifier = regexp.MustCompile(`^[a-z0-9]+([-._~/][a-z0-9]+)*$`)

// acName is appc's ACName.
var acName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// Parse reads a reference. It asks nobody; the error says what of the reference is wrong.
func Parse(text string) (Reference, error) {
	r, err := parse(text)
	if err != nil {
		return Reference{}, fmt.Errorf("image %q: %w", text, err)
	}
	r.text = text
	return r, nil
}

func parse(text string) (Reference, error) {
	if text == "" || len(text) > maxReference {
		return Reference{}, fmt.Errorf("a reference has 1 to %d bytes", maxReference)
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		return parsePlain(text)
	}
	switch Scheme(scheme) {
	case File:
		return parseFile(rest)
	case HTTP, HTTPS:
		return parseHTTP(Scheme(scheme), text)
	case Docker:
		return parseDocker(rest)
	}
	return Reference{}, fmt.Errorf("unknown scheme %q: file, http, https and docker are known", scheme)
}

func parseFile(rest string) (Reference, error) {
	path, fragment, digested := strings.Cut(rest, "#")
	if !strings.HasPrefix(path, "/") {
		return Reference{}, fmt.Errorf("file:// needs an absolute path: file:///%s", path)
	}
	path, err := url.PathUnescape(path)
	if err != nil {
		return Reference{}, err
	}
	if strings.ContainsRune(path, 0) {
		return Reference{}, fmt.Errorf("a path has no zero byte")
	}
	r := Reference{Scheme: File, Path: filepath.Clean(path)}
	if digested {
		r.Digest, err = parseDigest(fragment)
	}
	return r, err
}

func parseHTTP(scheme Scheme, text string) (Reference, error) {
	address, fragment, digested := strings.Cut(text, "#")
	u, err := url.Parse(address)
	if err != nil {
		return Reference{}, err
	}
	if u.Hostname() == "" {
		return Reference{}, fmt.Errorf("it names no host")
	}
	if u.User != nil {
		return Reference{}, fmt.Errorf("a password does not belong in a reference, which is shown and logged")
	}
	r := Reference{Scheme: scheme, URL: u.String(), Host: strings.ToLower(u.Host)}
	if digested {
		r.Digest, err = parseDigest(fragment)
	}
	return r, err
}

func parseDigest(text string) (Digest, error) {
	algorithm, digits, found := strings.Cut(strings.Replace(text, ":", "-", 1), "-")
	size := map[string]int{"sha256": 32, "sha512": 64}[algorithm]
	raw, err := hex.DecodeString(digits)
	if !found || size == 0 || err != nil || len(raw) != size {
		return Digest{}, fmt.Errorf("the digest %q must be sha256- and 64, or sha512- and 128 hexadecimal digits", text)
	}
	return Digest{algorithm, hex.EncodeToString(raw)}, nil
}

// parseDocker does not guess whether the first part is a host, as Docker's own short names do: it always is, and may be empty.
func parseDocker(rest string) (Reference, error) {
	host, path, found := strings.Cut(rest, "/")
	if !found || path == "" {
		return Reference{}, fmt.Errorf("docker:// needs a host and a name: docker://host/name:tag, or docker:///name:tag of Docker Hub")
	}
	if strings.Contains(host, "@") {
		return Reference{}, fmt.Errorf("a password does not belong in a reference, which is shown and logged")
	}
	registry, err := name.NewRegistry(host)
	if err != nil {
		return Reference{}, err
	}
	r := Reference{Scheme: Docker, Host: registry.RegistryStr()}
	repository, tagged := path, ""
	at := strings.LastIndexByte(path, '@')
	if at >= 0 {
		repository = path[:at]
	}
	if colon := strings.LastIndexByte(repository, ':'); colon >= 0 {
		repository, tagged = repository[:colon], repository[colon+1:]
	}
	if registry.RegistryStr() == name.DefaultRegistry && !strings.Contains(repository, "/") {
		repository = "library/" + repository
	}
	whole := registry.RegistryStr() + "/" + repository
	switch {
	case at >= 0: // a tag before it says nothing more
		r.docker, err = name.NewDigest(whole+path[at:], name.StrictValidation)
	case tagged != "":
		r.docker, err = name.NewTag(whole+":"+tagged, name.StrictValidation)
	default:
		r.docker, err = name.NewTag(whole + ":latest")
	}
	if err != nil {
		return Reference{}, err
	}
	if got := r.docker.Context().RegistryStr(); got != registry.RegistryStr() {
		// A host without a dot or a port is taken for a part of the name by the library.
		repo := registry.Repo(strings.Split(repository, "/")...)
		if at >= 0 {
			r.docker = repo.Digest(path[at+1:])
		} else {
			r.docker = repo.Tag(r.docker.Identifier())
		}
	}
	return r, nil
}

func parsePlain(text string) (Reference, error) {
	parts := strings.Split(text, ",")
	id, version, versioned := strings.Cut(parts[0], ":")
	if !identifier.MatchString(id) {
		return Reference{}, fmt.Errorf("%q is no URL and no appc name: small letters, digits and -._~/ between them", id)
	}
	r := Reference{Scheme: Plain, Name: id, Labels: map[string]string{}}
	if versioned {
		parts = append(parts, "version="+version)
	}
	for _, part := range parts[1:] {
		key, value, found := strings.Cut(part, "=")
		if !found || !identifier.MatchString(key) || value == "" {
			return Reference{}, fmt.Errorf("the label %q must be name=value", part)
		}
		if _, twice := r.Labels[key]; twice {
			return Reference{}, fmt.Errorf("the label %s is there twice", key)
		}
		r.Labels[key] = value
	}
	return r, nil
}
