// Package tlsfiles serves TLS from files that may change while it serves: to clients that
// have a certificate, or to any where others find out who they are.
//
// It owns how the files are read, when they are read again, how long and how many clients
// may take to prove who they are, and the making of a small set of such files. It must
// not know what is served, and never logs or returns what is in a key.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
)

// Files are the paths of PEM files.
type Files struct {
	Cert     string // the server's certificate, with those that lead to its authority after it
	Key      string // its private key
	ClientCA string // the authorities of clients' certificates; needed unless AnyClient
	// ClientNames are the names that clients may have; none allows each client of the authorities.
	// A name is the common name of a certificate, or one of its alternative names: DNS names,
	// addresses, URIs and e-mail addresses.
	ClientNames []string
	// AnyClient lets in clients without a certificate, and ClientCA is not read: what is
	// served asks who they are.
	AnyClient bool
}

// paths are those of the files that are read.
func (f Files) paths() []string {
	if f.AnyClient {
		return []string{f.Cert, f.Key}
	}
	return []string{f.Cert, f.Key, f.ClientCA}
}

// ServerConfig reads the files and returns what lets clients in whose certificates are by
// one of the authorities (or any), with TLS 1.2 or newer. At each handshake a look at the
// files reports whether they have changed; they are then read again. Files that are being
// replaced, or are spoilt, change nothing: what was read last goes on to hold, and log is
// told once.
func ServerConfig(f Files, log *slog.Logger) (*tls.Config, error) {
	w := &watched{files: f, log: log}
	stamps, err := f.stamps()
	if err != nil {
		return nil, err
	}
	if w.current, err = f.load(); err != nil {
		return nil, err
	}
	w.stamps = stamps
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return w.config(), nil },
	}, nil
}

type watched struct {
	files Files
	log   *slog.Logger

	mu      sync.Mutex
	current *tls.Config
	stamps  [3]stamp // of what is current, or of what could not be read
}

// stamp changes with a file.
type stamp struct {
	info    fs.FileInfo
	changed time.Time
	size    int64
}

func (s stamp) same(o stamp) bool {
	return s.info != nil && o.info != nil && os.SameFile(s.info, o.info) && s.changed.Equal(o.changed) && s.size == o.size
}

func (f Files) stamps() (all [3]stamp, err error) {
	for i, path := range f.paths() {
		info, err := os.Stat(path)
		if err != nil {
			return all, err
		}
		all[i] = stamp{info, info.ModTime(), info.Size()}
	}
	return all, nil
}

func (w *watched) config() *tls.Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	stamps, err := w.files.stamps()
	if err == nil && stamps[0].same(w.stamps[0]) && stamps[1].same(w.stamps[1]) &&
		(w.files.AnyClient || stamps[2].same(w.stamps[2])) {
		return w.current
	}
	if err != nil {
		if w.stamps != ([3]stamp{}) {
			w.log.Warn("TLS files not read, the earlier ones stay in use", "err", err)
		}
		w.stamps = [3]stamp{}
		return w.current
	}
	w.stamps = stamps
	next, err := w.files.load()
	if err != nil {
		w.log.Warn("TLS files invalid, the earlier ones stay in use", "err", err)
		return w.current
	}
	w.log.Info("changed files for TLS are taken over")
	w.current = next
	return next
}

// load reads the files. Its errors name the file at fault.
func (f Files) load() (*tls.Config, error) {
	pair, err := LoadPair(f.Cert, f.Key)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		NextProtos: []string{"http/1.1"},
	}
	if f.AnyClient {
		return config, nil
	}
	if config.ClientCAs, err = LoadAuthorities(f.ClientCA); err != nil {
		return nil, err
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	// A resumed session would be one that today's authorities were not asked about.
	config.SessionTicketsDisabled = true
	if len(f.ClientNames) > 0 {
		config.VerifyConnection = f.allowed
	}
	return config, nil
}

// allowed refuses a client whose certificate has none of the names.
func (f Files) allowed(s tls.ConnectionState) error {
	names := namesOf(s.PeerCertificates[0]) // there is one: RequireAndVerifyClientCert
	if slices.ContainsFunc(names, func(n string) bool { return slices.Contains(f.ClientNames, n) }) {
		return nil
	}
	return fmt.Errorf("client %q: not an allowed name", names)
}

func namesOf(c *x509.Certificate) []string {
	names := slices.Concat([]string{c.Subject.CommonName}, c.DNSNames, c.EmailAddresses)
	for _, a := range c.IPAddresses {
		names = append(names, a.String())
	}
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	return names
}

// LoadPair reads a certificate and the key that belongs to it.
func LoadPair(cert, key string) (tls.Certificate, error) {
	certPEM, err := os.ReadFile(cert)
	if err != nil {
		return tls.Certificate{}, err
	}
	keyPEM, err := os.ReadFile(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate %s with key %s: %w", cert, key, err)
	}
	return pair, nil
}

// LoadAuthorities reads certificates of authorities, at least one.
func LoadAuthorities(path string) (*x509.CertPool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s: %w", path, errors.New("no certificate in PEM form is in it"))
	}
	return pool, nil
}
