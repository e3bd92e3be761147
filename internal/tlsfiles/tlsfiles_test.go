package tlsfiles

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var quiet = slog.New(slog.DiscardHandler)

func issued(t *testing.T, now time.Time) string {
	t.Helper()
	dir := t.TempDir()
	if err := Issue(dir, []string{"127.0.0.1", "plugin.example"}, now); err != nil {
		t.Fatal(err)
	}
	return dir
}

func filesOf(dir string) Files {
	return Files{
		Cert: filepath.Join(dir, ServerFile), Key: filepath.Join(dir, ServerKeyFile),
		ClientCA: filepath.Join(dir, CAFile),
	}
}

// serve greets each connection that it is given.
func serve(t *testing.T, f Files) string {
	t.Helper()
	l, err := Listen(t.Context(), "127.0.0.1:0", f, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("welcome"))
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

// client is what dockerd does with the files of dir: "" for certificates is none.
func client(t *testing.T, dir, certificates string) *tls.Config {
	t.Helper()
	pool, err := LoadAuthorities(filepath.Join(dir, CAFile))
	if err != nil {
		t.Fatal(err)
	}
	c := &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}
	if certificates != "" {
		pair, err := LoadPair(filepath.Join(certificates, ClientFile), filepath.Join(certificates, ClientKeyFile))
		if err != nil {
			t.Fatal(err)
		}
		// Also one that the server does not ask for.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return c
}

// greeted connects and reports whether it was let in. With TLS 1.3 a client learns only by
// reading that it was not.
func greeted(address string, c *tls.Config) error {
	conn, err := tls.Dial("tcp", address, c)
	if err != nil {
		return err
	}
	defer conn.Close()
	text, err := io.ReadAll(conn)
	if err == nil && string(text) != "welcome" {
		err = errors.New("no welcome: " + string(text))
	}
	return err
}

func TestWhoIsLetIn(t *testing.T) {
	t.Parallel()
	dir := issued(t, time.Now())
	other := issued(t, time.Now())
	old := issued(t, time.Now().AddDate(-9, 0, 0)) // its authority is valid yet, what that signed is not
	address := serve(t, filesOf(dir))
	if err := greeted(address, client(t, dir, dir)); err != nil {
		t.Errorf("with the right certificate: %v", err)
	}
	aged := serve(t, Files{
		Cert: filepath.Join(dir, ServerFile), Key: filepath.Join(dir, ServerKeyFile),
		ClientCA: filepath.Join(old, CAFile),
	})
	for name, tc := range map[string]struct {
		address string
		config  *tls.Config
		want    string
	}{
		"no certificate":              {address, client(t, dir, ""), "certificate required"},
		"another authority's":         {address, client(t, dir, other), "certificate authority"},
		"expired":                     {aged, client(t, dir, old), "expired"},
		"the client wants another CA": {address, client(t, other, dir), "unknown authority"},
	} {
		if err := greeted(tc.address, tc.config); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	server := client(t, dir, dir)
	pair, err := LoadPair(filepath.Join(dir, ServerFile), filepath.Join(dir, ServerKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	server.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	if err := greeted(address, server); err == nil {
		t.Error("a server's certificate was taken for a client's")
	}
	previous := client(t, dir, dir)
	previous.MaxVersion = tls.VersionTLS11
	previous.MinVersion = tls.VersionTLS10
	if err := greeted(address, previous); err == nil {
		t.Error("TLS 1.1 was taken")
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		_, _ = conn.Write([]byte("POST /Plugin.Activate HTTP/1.1\r\nHost: x\r\n\r\n"))
		text, _ := io.ReadAll(conn)
		if strings.Contains(string(text), "welcome") {
			t.Error("plain text was let in")
		}
		_ = conn.Close()
	}
}

// TestClientNames lists names: a certificate of the authority is then not enough.
func TestClientNames(t *testing.T) {
	t.Parallel()
	dir, other := issued(t, time.Now()), issued(t, time.Now())
	for _, row := range []struct {
		names   []string
		allowed bool
	}{
		{nil, true},
		{[]string{ClientName}, true},
		{[]string{"another", ClientName}, true},
		{[]string{"another", "docker"}, false},
		{[]string{""}, false},
	} {
		files := filesOf(dir)
		files.ClientNames = row.names
		address := serve(t, files)
		if err := greeted(address, client(t, dir, dir)); (err == nil) != row.allowed {
			t.Errorf("names %q: %v, want allowed %t", row.names, err, row.allowed)
		}
		if err := greeted(address, client(t, dir, other)); err == nil {
			t.Errorf("names %q: a client of another authority is let in", row.names)
		}
	}
	uri, err := url.Parse("spiffe://example/docker")
	if err != nil {
		t.Fatal(err)
	}
	certificate := &x509.Certificate{
		Subject: pkix.Name{CommonName: "engine"}, DNSNames: []string{"host.example"}, URIs: []*url.URL{uri},
		IPAddresses: []net.IP{net.ParseIP("192.0.2.1")}, EmailAddresses: []string{"docker@example"},
	}
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}
	for _, name := range []string{"engine", "host.example", "spiffe://example/docker", "192.0.2.1", "docker@example"} {
		if err := (Files{ClientNames: []string{name}}).allowed(state); err != nil {
			t.Errorf("name %s: %v", name, err)
		}
	}
	for _, name := range []string{"example", "HOST.example", "*.example", "engine "} {
		if err := (Files{ClientNames: []string{name}}).allowed(state); err == nil {
			t.Errorf("name %s is allowed", name)
		}
	}
}

// TestRotation replaces the files: the next handshake uses them, and a broken or missing one
// changes nothing.
func TestRotation(t *testing.T) {
	t.Parallel()
	dir, next := issued(t, time.Now()), issued(t, time.Now())
	address := serve(t, filesOf(dir))
	before, after := client(t, dir, dir), client(t, next, next)
	replace := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	from := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(next, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	still := func(what string) {
		t.Helper()
		if err := greeted(address, before); err != nil {
			t.Errorf("%s: the first client: %v", what, err)
		}
		if err := greeted(address, after); err == nil {
			t.Errorf("%s: the second client was let in", what)
		}
	}
	still("at first")
	replace(ServerFile, "nonsense")
	still("a spoilt certificate")
	if err := os.Remove(filepath.Join(dir, CAFile)); err != nil {
		t.Fatal(err)
	}
	still("no authorities")
	replace(CAFile, from(CAFile))
	replace(ServerFile, from(ServerFile))
	still("half of the new files") // the key is the old one
	replace(ServerKeyFile, from(ServerKeyFile))
	if err := greeted(address, after); err != nil {
		t.Errorf("the second client: %v", err)
	}
	if err := greeted(address, before); err == nil {
		t.Error("the first client is still let in")
	}
}

// Strangers that connect and say nothing do not keep the engine out, and are cut off when
// there are too many.
func TestSilentStrangers(t *testing.T) {
	t.Parallel()
	dir := issued(t, time.Now())
	address := serve(t, filesOf(dir))
	var strangers []net.Conn
	for range 3 * maxHandshakes {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		strangers = append(strangers, conn)
	}
	if err := greeted(address, client(t, dir, dir)); err != nil {
		t.Errorf("the engine: %v", err)
	}
	if _, err := strangers[0].Read(make([]byte, 1)); err == nil { // waits until it is cut off
		t.Error("something was said to a stranger")
	}
}

func TestCloseEndsAccept(t *testing.T) {
	t.Parallel()
	dir := issued(t, time.Now())
	l, err := Listen(context.Background(), "127.0.0.1:0", filesOf(dir), quiet)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
}

func TestFilesThatDoNotFit(t *testing.T) {
	t.Parallel()
	dir, other := issued(t, time.Now()), issued(t, time.Now())
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	good := filesOf(dir)
	for name, tc := range map[string]struct {
		files Files
		want  string
	}{
		"no certificate": {Files{Cert: "/absent.pem", Key: good.Key, ClientCA: good.ClientCA}, "/absent.pem"},
		"no key":         {Files{Cert: good.Cert, Key: "/absent.pem", ClientCA: good.ClientCA}, "/absent.pem"},
		"no authority":   {Files{Cert: good.Cert, Key: good.Key, ClientCA: "/absent.pem"}, "/absent.pem"},
		"another's key": {
			Files{Cert: good.Cert, Key: filesOf(other).Key, ClientCA: good.ClientCA},
			"private key does not match",
		},
		"empty authorities": {Files{Cert: good.Cert, Key: good.Key, ClientCA: empty}, empty},
		"empty certificate": {Files{Cert: empty, Key: good.Key, ClientCA: good.ClientCA}, empty},
	} {
		_, err := Listen(t.Context(), "127.0.0.1:0", tc.files, quiet)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		if err != nil && strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%s: the error shows a file's content", name)
		}
	}
}

func TestIssue(t *testing.T) {
	t.Parallel()
	dir := issued(t, time.Now())
	for name, want := range map[string]fs.FileMode{
		CAFile: 0o644, ServerFile: 0o644, ClientFile: 0o644, CAKeyFile: 0o600, ServerKeyFile: 0o600,
		ClientKeyFile: 0o600,
	} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, want mode %v", name, info.Mode(), want)
		}
	}
	if err := Issue(dir, []string{"x"}, time.Now()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("files were replaced: %v", err)
	}
	partly := t.TempDir()
	if err := os.WriteFile(filepath.Join(partly, ClientFile), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Issue(partly, []string{"x"}, time.Now()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file was replaced: %v", err)
	}
	if left, _ := os.ReadDir(partly); len(left) != 1 {
		t.Errorf("half of the files are left: %v", left)
	}
	if err := Issue(t.TempDir(), nil, time.Now()); err == nil {
		t.Error("a server without a host")
	}
	byName := client(t, dir, dir)
	byName.ServerName = "plugin.example"
	if err := greeted(serve(t, filesOf(dir)), byName); err != nil {
		t.Errorf("by its name: %v", err)
	}
}

// Connections on which strangers say nothing are handed on, so that the server behind can
// close some: they keep no client out here.
func TestManySilentClients(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := IssueServer(dir, []string{"127.0.0.1"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(
		t.Context(), "127.0.0.1:0",
		Files{
			Cert: filepath.Join(dir, ServerFile), Key: filepath.Join(dir, ServerKeyFile), AnyClient: true,
		},
		quiet,
	)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	anybody := client(t, dir, "")
	anybody.ClientSessionCache = tls.NewLRUClientSessionCache(1) // handshakes are cheaper then
	for n := range maxConnections + 1 {
		silent, err := tls.Dial("tcp", l.Addr().String(), anybody)
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		conn, err := l.Accept()
		if err != nil {
			t.Fatalf("after %d: %v", n, err)
		}
		defer conn.Close()
	}
}

// Without authorities of clients any client is let in, and the server is verified still.
func TestAnyClient(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := IssueServer(dir, []string{"127.0.0.1"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	f := Files{Cert: filepath.Join(dir, ServerFile), Key: filepath.Join(dir, ServerKeyFile), AnyClient: true}
	l, err := Listen(t.Context(), "127.0.0.1:0", f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("hello"))
			_ = conn.Close()
		}
	}()
	pool, err := LoadAuthorities(filepath.Join(dir, CAFile))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if said, err := io.ReadAll(conn); err != nil || string(said) != "hello" {
		t.Errorf("%q, %v", said, err)
	}
	if conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{}); err == nil {
		_ = conn.Close()
		t.Error("a client that knows no authority believes it")
	}
	if _, err := os.Stat(filepath.Join(dir, ClientFile)); err == nil {
		t.Error("a client's certificate was made")
	}
	if _, err := ServerConfig(Files{Cert: f.Cert, Key: f.Key}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("authorities may be left out without saying so")
	}
}
