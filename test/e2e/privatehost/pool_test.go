//go:build e2e

package privatehost_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// newPool returns a pool of hosts with these options. It ends with the test.
func newPool(t *testing.T, size int, opts privatehost.Options) *privatehost.Pool {
	t.Helper()
	p := privatehost.NewPool(size, func(ctx context.Context) (*privatehost.Host, error) {
		return privatehost.New(ctx, opts)
	})
	t.Cleanup(p.Close)
	return p
}

// within returns a context for what must be done soon.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func lease(t *testing.T, p *privatehost.Pool) *privatehost.Host {
	t.Helper()
	h, err := p.Lease(within(t, 5*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func gone(h *privatehost.Host) bool {
	_, err := os.Stat(h.Dir())
	return errors.Is(err, os.ErrNotExist)
}

// A lease after a return is the same host; a pool leases no more hosts than its size; a
// closed one refuses leases, and closes a host that is returned to it.
func TestPoolLeases(t *testing.T) {
	t.Parallel()
	p := newPool(t, 1, privatehost.Options{})
	h := lease(t, p)
	_, err := p.Lease(within(t, 100*time.Millisecond))
	if err == nil || !strings.Contains(err.Error(), "all 1 hosts are leased") {
		t.Errorf("a second lease from a pool of one host: %v", err)
	}
	if err := p.Return(within(t, 5*time.Minute), h); err != nil {
		p.Discard(h)
		t.Fatal(err)
	}
	if again := lease(t, p); again != h {
		t.Error("the lease after a return is another host")
	}
	p.Discard(h)
	if !gone(h) {
		t.Error("a discarded host is not closed")
	}
	other := lease(t, p)
	if other == h {
		t.Error("a discarded host was leased again")
	}
	p.Close()
	if gone(other) {
		t.Error("a leased host was closed with the pool")
	}
	if err := p.Return(within(t, 5*time.Minute), other); err != nil {
		t.Error(err)
	}
	if !gone(other) {
		t.Error("a host that was returned to a closed pool is not closed")
	}
	if _, err := p.Lease(within(t, 5*time.Minute)); !errors.Is(err, privatehost.ErrPoolClosed) {
		t.Errorf("a lease from a closed pool: %v", err)
	}
}

// What is left on a host is named, and keeps the host out of the pool until it is gone.
func TestPoolFindsWhatIsLeft(t *testing.T) {
	t.Parallel()
	p := newPool(t, 1, privatehost.Options{Docker: true})
	h := lease(t, p)
	returned := false
	defer func() {
		if !returned {
			p.Discard(h)
		}
	}()
	const forwarding = "sysctl net.ipv6.conf.all.forwarding"
	rows := []struct {
		section, says string
		neighbour     bool
		do, undo      string
	}{
		{"links", "left0", false, "ip link add left0 type bridge", "ip link del left0"},
		{"addresses", "192.0.2.1/24", false, "ip addr add 192.0.2.1/24 dev lo", "ip addr del 192.0.2.1/24 dev lo"},
		{"routes", "192.0.2.128/25", false, "ip route add blackhole 192.0.2.128/25", "ip route del blackhole 192.0.2.128/25"},
		{"rules", "lookup 77", false, "ip rule add from 192.0.2.7 table 77", "ip rule del from 192.0.2.7 table 77"},
		{"namespaces", "/run/netns/left", false, "ip netns add left", "ip netns del left && umount /run/netns"},
		{"firewall", "table inet left", false, "nft add table inet left", "nft delete table inet left"},
		{"forwarding", "ipv6.conf.all.forwarding = 1", false, forwarding + "=1", forwarding + "=0"},
		{"processes", "sleep", false, "sleep 1000 >/dev/null 2>&1 & echo $! >/run/left", "kill $(cat /run/left)"},
		{"mounts", "/mnt", false, "mount -t tmpfs left /mnt", "umount /mnt"},
		{"files", "/etc/docker/left", false, "echo left >/etc/docker/left", "rm /etc/docker/left"},
		{"neighbour", "192.0.2.0/25", true, "ip route add blackhole 192.0.2.0/25", "ip route del blackhole 192.0.2.0/25"},
		{"containers", "/left", false, "docker create --name left busybox true", "docker rm left"},
		{"networks", "left bridge", false, "docker network create left", "docker network rm left"},
		{"volumes", "left", false, "docker volume create left", "docker volume rm left"},
		{"images", "left:latest", false, "docker tag busybox left", "docker rmi left"},
	}
	sh := func(neighbour bool, script string) {
		t.Helper()
		run := h.Exec
		if neighbour {
			run = h.Outside
		}
		if res := run(within(t, 5*time.Minute), "sh", "-c", script); !res.OK() {
			t.Fatal(res)
		}
	}
	for _, row := range rows {
		sh(row.neighbour, row.do)
	}
	p.CleanTimeout = time.Second
	err := p.Return(within(t, 5*time.Minute), h)
	p.CleanTimeout = 0
	if returned = err == nil; returned {
		t.Fatal("the pool took back a host with all of it")
	}
	for _, row := range rows {
		found := false
		for line := range strings.Lines(err.Error()) {
			found = found || strings.HasPrefix(line, "+ "+row.section+": ") && strings.Contains(line, row.says)
		}
		if !found {
			t.Errorf("%s: want %q in: %v", row.section, row.says, err)
		}
		sh(row.neighbour, row.undo)
	}
	if err = p.Return(within(t, 5*time.Minute), h); err != nil {
		t.Errorf("nothing is left: %v", err)
	}
	returned = err == nil
}

// subject is a test whose end a test looks at.
type subject struct {
	cleanups []func()
	failed   bool
	said     string
}

func (s *subject) Helper()             {}
func (s *subject) Cleanup(f func())    { s.cleanups = append(s.cleanups, f) }
func (s *subject) Failed() bool        { return s.failed }
func (s *subject) Logf(string, ...any) {}
func (s *subject) Errorf(format string, args ...any) {
	s.failed, s.said = true, fmt.Sprintf(format, args...)
}
func (s *subject) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (s *subject) end() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
}

// A test that leaves something fails, and its host is closed, as is that of a test that
// failed by itself.
func TestPoolFailsTests(t *testing.T) {
	t.Parallel()
	p := newPool(t, 1, privatehost.Options{})
	clean := &subject{}
	h := p.For(clean)
	clean.end()
	if clean.failed || gone(h) {
		t.Errorf("a test that left nothing: %s", clean.said)
	}
	failing := &subject{}
	if p.For(failing) != h {
		t.Error("another host")
	}
	failing.failed = true
	failing.end()
	if !gone(h) {
		t.Error("the host of a failed test is not closed")
	}
	p.CleanTimeout = time.Second
	leaving := &subject{}
	h = p.For(leaving)
	if res := h.Exec(within(t, 5*time.Minute), "ip", "link", "add", "left0", "type", "bridge"); !res.OK() {
		t.Error(res)
	}
	leaving.end()
	if !leaving.failed || !strings.Contains(leaving.said, "+ links: left0") {
		t.Errorf("a test that left a link: failed %v, %s", leaving.failed, leaving.said)
	}
	if !gone(h) {
		t.Error("a host with something left is not closed")
	}
	p.CleanTimeout = 0
	last := &subject{}
	if p.For(last) == h {
		t.Error("a closed host was leased")
	}
	last.end()
}
