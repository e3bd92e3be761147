// Package discovery writes the file by which a Docker engine finds Kuryr where its socket
// is not in the folder that the engine looks into first, and reads what an engine finds.
//
// It owns that file: its name, its form, when Docker may be told of an address at all,
// and what goes before it. It must not talk to Docker or to Kuryr, and the file holds no
// secret, only paths.
package discovery

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/atomicfile"
	"github.com/kuryr/kuryr/internal/tlsfiles"
)

// SocketDir is the folder that an engine looks into first, for sockets.
const SocketDir = "/run/docker/plugins"

// SpecDirs are the folders that it then looks into for files, the first before the second.
var SpecDirs = []string{"/etc/docker/plugins", "/usr/lib/docker/plugins"}

// Name is the driver's, which Docker takes from the file's.
const Name = "kuryr"

// ErrFound says that Docker finds a socket without being told.
var ErrFound = errors.New("this socket is found by Docker itself")

// Plugin is where Kuryr answers, and what Docker needs to be let in.
type Plugin struct {
	Address string // unix:///PATH, or https://HOST:PORT, or tcp://HOST:PORT, which means the same
	CA      string // authority of Kuryr's certificate; as the next two it is for TCP only, and then needed
	Cert    string // Docker's certificate
	Key     string // its key
}

// File is what Docker reads.
type File struct {
	Name    string // kuryr.json or kuryr.spec
	Content []byte
}

// A FieldError names what of a Plugin is wrong: address, ca, cert or key.
type FieldError struct {
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }
func (e *FieldError) Unwrap() error { return e.Err }

func wrong(field, format string, args ...any) error {
	return &FieldError{field, fmt.Errorf(format, args...)}
}

// File checks all that the plugin says, as far as this machine can tell, and gives the file.
func (p Plugin) File(now time.Time) (File, error) {
	u, err := url.Parse(p.Address)
	if err != nil {
		return File{}, wrong("address", "%q is no URL", p.Address)
	}
	switch u.Scheme {
	case "unix":
		return p.spec(u)
	case "tcp", "https":
		return p.json(u, now)
	}
	return File{}, wrong(
		"address",
		"want unix:///PATH or https://HOST:PORT, not %q; Docker would send everything in plain text "+
			"to any other",
		p.Address,
	)
}

func (p Plugin) spec(u *url.URL) (File, error) {
	if u.Host != "" || !filepath.IsAbs(u.Path) || filepath.Clean(u.Path) != u.Path ||
		u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(u.Path, "\n\r") {
		return File{}, wrong("address", "want unix:// and a whole path from / on, without . and .., not %q", p.Address)
	}
	if p.CA+p.Cert+p.Key != "" {
		return File{}, wrong("ca", "and cert and key are for https://HOST:PORT, not for a Unix socket")
	}
	for _, found := range []string{filepath.Join(SocketDir, Name+".sock"), filepath.Join(SocketDir, Name, Name+".sock")} {
		if u.Path == found {
			return File{}, &FieldError{"address", ErrFound}
		}
	}
	return File{Name + ".spec", []byte("unix://" + u.Path + "\n")}, nil
}

// document is the form that the engine decodes.
type document struct {
	Name      string
	Addr      string
	TLSConfig options
}

type options struct {
	InsecureSkipVerify bool
	CAFile             string
	CertFile           string
	KeyFile            string
}

func (p Plugin) json(u *url.URL, now time.Time) (File, error) {
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil || host == "" || port == "" || port == "0" || u.User != nil || u.Path != "" ||
		u.RawQuery != "" || u.Fragment != "" {
		return File{}, wrong("address", "want https://HOST:PORT, not %q", p.Address)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return File{}, wrong("address", "%s is where Kuryr may listen, but not an address that Docker can call", host)
	}
	for _, file := range []struct{ field, path, what string }{
		{"ca", p.CA, "without it Docker verifies nothing and would talk to anybody"},
		{"cert", p.Cert, "Kuryr lets nobody in without a certificate"},
		{"key", p.Key, "Kuryr lets nobody in without a certificate"},
	} {
		if file.path == "" {
			return File{}, wrong(file.field, "is needed: %s", file.what)
		}
		if !filepath.IsAbs(file.path) {
			return File{}, wrong(
				file.field, "want a whole path from / on, not %q: Docker has another working directory",
				file.path,
			)
		}
	}
	if _, err := tlsfiles.LoadAuthorities(p.CA); err != nil {
		return File{}, &FieldError{"ca", err}
	}
	pair, err := tlsfiles.LoadPair(p.Cert, p.Key)
	if err != nil {
		return File{}, &FieldError{"cert", err}
	}
	if err := usable(pair.Leaf, now); err != nil {
		return File{}, &FieldError{"cert", fmt.Errorf("%s: %w", p.Cert, err)}
	}
	// By any other scheme than https Docker speaks plain HTTP, whatever TLSConfig says.
	content, err := json.MarshalIndent(document{Name, "https://" + u.Host, options{false, p.CA, p.Cert, p.Key}}, "", "  ")
	if err != nil {
		return File{}, err
	}
	return File{Name + ".json", append(content, '\n')}, nil
}

func usable(cert *x509.Certificate, now time.Time) error {
	if now.After(cert.NotAfter) {
		return fmt.Errorf("the certificate has expired on %s", cert.NotAfter.Format(time.DateOnly))
	}
	if now.Before(cert.NotBefore) {
		return fmt.Errorf("the certificate is not valid before %s", cert.NotBefore.Format(time.DateTime))
	}
	if len(cert.ExtKeyUsage) > 0 && !slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth) &&
		!slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageAny) {
		return errors.New("the certificate is not for a client (extended key usage clientAuth)")
	}
	return nil
}

// Install writes the file into dir, whole or not at all, and reports whether it was not
// there already. A file of one of our names with another content is an error that
// is fs.ErrExist, unless it may be replaced.
func Install(dir string, f File, replace bool) (changed bool, err error) {
	path := filepath.Join(dir, f.Name)
	for _, name := range names {
		other := filepath.Join(dir, name)
		old, err := os.ReadFile(other)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return false, err
		case name == f.Name && bytes.Equal(old, f.Content):
		case !replace:
			return false, fmt.Errorf("%s: %w, with another content", other, fs.ErrExist)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	old, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(old, f.Content) {
		if err := atomicfile.WriteFile(path, f.Content, 0o644); err != nil {
			return false, err
		}
		changed = true
	}
	// Of the two Docker would take the other, in part.
	for _, name := range names {
		if name != f.Name {
			if err := os.Remove(filepath.Join(dir, name)); err == nil {
				changed = true
			} else if !errors.Is(err, fs.ErrNotExist) {
				return changed, err
			}
		}
	}
	return changed, nil
}

var names = []string{Name + ".spec", Name + ".json"}

// Uninstall removes what Install writes into dir and tells what was there.
func Uninstall(dir string) (removed []string, err error) {
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := os.Remove(path); err == nil {
			removed = append(removed, path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return removed, err
		}
	}
	return removed, nil
}

// Before lists what exists and is found by Docker before a file in dir: sockets in the
// folder of sockets, and files in the folders before dir, or in all if dir is none of
// them.
func Before(sockets string, specs []string, dir string, f File) []string {
	var before []string
	for _, path := range candidates(sockets, specs, Name) {
		if path == filepath.Join(dir, f.Name) {
			break
		}
		if _, err := os.Stat(path); err == nil {
			before = append(before, path)
		}
	}
	return before
}
