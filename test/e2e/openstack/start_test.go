//go:build e2e

// Package openstack_test drives the embedded SDN's API with clients that know nothing of
// Kuryr: Debian's openstack command and gophercloud, by TLS, with tokens and passwords.
// It owns the daemons it starts, which touch nothing of the kernel's, and must not look
// into Kuryr but through its API.
//
// KURYR_BIN names the program to test (bin/kuryr). With KURYR_OPENSTACK_ENDPOINT the
// resources are made on the Neutron at that address instead, which wants no token: so the
// script itself is checked.
package openstack_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The users of the API: one of each role, two of one project.
const (
	password = "correct-horse"
	alice    = "alice" // an administrator, of the project demo
	bob      = "bob"   // a member of demo
	carol    = "carol" // a member of other
	ruth     = "ruth"  // a reader of demo
)

// server is a running API.
type server struct {
	url, ca string
	token   string // of the file, an administrator's of demo
	free    bool   // it wants no token
}

// start starts the daemon, which ends with the test.
func start(t *testing.T) *server {
	t.Helper()
	if endpoint := os.Getenv("KURYR_OPENSTACK_ENDPOINT"); endpoint != "" {
		return &server{url: endpoint, free: true}
	}
	kuryr, err := filepath.Abs(first(os.Getenv("KURYR_BIN"), "../../../bin/kuryr"))
	must(t, err)
	if _, err := os.Stat(kuryr); err != nil {
		t.Fatalf("no program to test, run \"make build\" first: %v", err)
	}
	dir := t.TempDir()
	run := func(input string, args ...string) string {
		t.Helper()
		cmd := exec.Command(kuryr, append([]string{"sdn"}, args...)...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("kuryr sdn %s: %v", args[0], err)
		}
		return string(out)
	}
	address := freeAddress(t)
	run("", "certificates", filepath.Join(dir, "tls"), "--host", address.Addr().String())
	line := run("", "token", "demo", "admin", "script")
	hashed := run(password+"\n", "password", alice, "demo", "admin")
	hash := strings.TrimSpace(hashed[strings.LastIndex(hashed, " "):])
	lines := line + hashed
	for _, u := range [][3]string{{bob, "demo", "member"}, {carol, "other", "member"}, {ruth, "demo", "reader"}} {
		lines += fmt.Sprintf("user %s %s %s %s\n", u[0], u[1], u[2], hash)
	}
	must(t, os.WriteFile(filepath.Join(dir, "tokens"), []byte(lines), 0o600))

	ready, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "n"), Net: "unixgram"})
	must(t, err)
	defer ready.Close()
	s := &server{
		url: "https://" + address.String(), ca: filepath.Join(dir, "tls", "ca.pem"), token: strings.Fields(line)[1],
	}
	cmd := exec.Command(
		kuryr, "sdn", "--store-only", "--state-dir", filepath.Join(dir, "s"), "--run-dir",
		filepath.Join(dir, "r"), "--sdn-rate", "0",
		"--sdn-listen", strings.TrimPrefix(s.url, "https://"), "--sdn-tls-cert",
		filepath.Join(dir, "tls", "server.pem"), "--sdn-tls-key",
		filepath.Join(dir, "tls", "server-key.pem"),
		"--sdn-tokens", filepath.Join(dir, "tokens"))
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+filepath.Join(dir, "n"))
	logFile, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("kuryr sdn has ended with %v", err)
		}
		_ = logFile.Close()
		if t.Failed() {
			text, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("…%s", text[max(0, len(text)-4000):])
		}
	})
	must(t, ready.SetReadDeadline(time.Now().Add(time.Minute)))
	for said, buffer := "", make([]byte, 1024); !strings.Contains(said, "READY=1"); {
		n, err := ready.Read(buffer)
		if err != nil {
			t.Fatalf("kuryr sdn does not get ready: %v", err)
		}
		said = string(buffer[:n])
	}
	return s
}

// freeAddress is one of the loopback network that nobody listens at, nor takes before the
// daemon has it: each test has an IP address of its own.
func freeAddress(t *testing.T) netip.AddrPort {
	t.Helper()
	ip := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
	l, err := net.Listen("tcp", netip.AddrPortFrom(ip, 0).String())
	must(t, err)
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String())
}

// as is the environment of a user with the password.
func (s *server) as(user, project string) []string {
	if s.free {
		return []string{"OS_AUTH_TYPE=none", "OS_ENDPOINT=" + s.url}
	}
	return []string{
		"OS_AUTH_URL=" + s.url + "/v3", "OS_CACERT=" + s.ca, "OS_USERNAME=" + user,
		"OS_PASSWORD=" + password, "OS_PROJECT_NAME=" + project,
		"OS_USER_DOMAIN_NAME=Default", "OS_PROJECT_DOMAIN_NAME=Default",
		"OS_IDENTITY_API_VERSION=3", "OS_REGION_NAME=RegionOne"}
}

// admin is the environment of an administrator of demo.
func (s *server) admin() []string { return s.as(alice, "demo") }

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
