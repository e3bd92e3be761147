//go:build e2e

package docker_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// onShared tells that on each host the embedded SDN is a process of its own, `kuryr sdn`, and Docker's driver another.
var onShared = os.Getenv("KURYR_E2E_PROVIDER") == "sdn"

// sharedSocket is where the SDN serves its API.
const sharedSocket = "/run/kuryr/sdn.sock"

// process is the SDN of a host. A reboot makes it another.
type process struct {
	program string
	host    *privatehost.Host
	*privatehost.Service
}

// start runs `kuryr sdn` and returns when its API answers.
func (p *process) start(ctx context.Context) (err error) {
	client := p.host.UnixClient(sharedSocket)
	argv := []string{p.program, "sdn"}
	p.Service, err = p.host.StartService(ctx, "kuryr-sdn", nil, argv, func(ctx context.Context) bool {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kuryr/v2.0/networks", nil)
		if err != nil {
			return false
		}
		response, err := client.Do(request)
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return err
}

// shared makes a host run the two processes.
func shared(opts privatehost.Options) (privatehost.Options, *process) {
	p := &process{program: cmp.Or(opts.Kuryr, kuryr)}
	opts.KuryrArgs, opts.KuryrEnv = []string{"docker"}, append(opts.KuryrEnv, "KURYR_PROVIDER=sdn")
	before := opts.Booted
	opts.Booted = func(ctx context.Context, h *privatehost.Host) error {
		if before != nil {
			if err := before(ctx, h); err != nil {
				return err
			}
		}
		p.host = h
		return p.start(ctx)
	}
	return opts, p
}

// replies reads a ping's replies and tells when the next has come.
type replies struct {
	cmd  *exec.Cmd
	next chan struct{}
	done chan [2]int // how many replies came, and the number of the last
}

// watchPing pings ten times a second until end.
func (b box) watchPing(t *testing.T, to string) *replies {
	t.Helper()
	w := &replies{
		cmd: b.Command(
			context.Background(), "nsenter", "-t", b.pid, "-n", "--", "ping", "-n", "-i", "0.1", to,
		),
		next: make(chan struct{}), done: make(chan [2]int, 1),
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.StartCommand(w.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		var came, last int
		for lines := bufio.NewScanner(out); lines.Scan(); {
			_, number, reply := strings.Cut(lines.Text(), "icmp_seq=")
			if !reply || !strings.Contains(lines.Text(), "bytes from") {
				continue
			}
			came++
			_, _ = fmt.Sscanf(number, "%d", &last)
			select {
			case w.next <- struct{}{}:
			default:
			}
		}
		w.done <- [2]int{came, last}
	}()
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	})
	return w
}

// more waits for so many replies.
func (w *replies) more(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-w.next:
		case <-time.After(limit):
			t.Fatal("no more replies to a ping")
		}
	}
}

// whole ends the ping after a reply and checks that none before the last one is missing.
func (w *replies) whole(t *testing.T, what string) {
	t.Helper()
	w.more(t, 1)
	_ = w.cmd.Process.Signal(os.Interrupt)
	if n := <-w.done; n[0] < 5 || n[0] != n[1] {
		t.Errorf("%s: of %d packets %d came back", what, n[1], n[0])
	}
}

// portsAt are all ports as a process shows them, but for their revisions: what asks a
// Neutron counts from one, not from zero.
func (r rig) portsAt(t *testing.T, socket string) string {
	t.Helper()
	var all []map[string]any
	text := r.must(t, kuryr, "--socket", socket, "port", "list", "-o", "json")
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, p := range all {
		delete(p, "revision_number")
	}
	data, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The SDN and Docker's driver are processes of their own: each is killed under traffic
// and comes back, and neither loses a packet, an answered call or a container.
func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	if onNeutron {
		t.Skip("the SDN is Neutron")
	}
	opts, sdn := shared(privatehost.Options{})
	r := ownHost(t, "the SDN is a process of its own", opts)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	before := r.must(t, kuryr, "port", "list", "-o", "json")
	r.network(t, "two", wayOut, "--ipv6", "--subnet", "10.71.0.0/24", "--subnet", "fd71::/64")
	a, b := r.run(t, "two-a", "two", "-p", "8071:7000"), r.run(t, "two-b", "two")
	reaches(t, a.in, b.ip4, a.ip4)
	reaches(t, a.in, b.ip6, a.ip6)
	getsOut(t, a)
	answers(t, r, host4, 8071)

	pings := map[string]*replies{
		"between containers": a.watchPing(t, b.ip4.String()),
		"IPv6":               a.watchPing(t, b.ip6.String()), "outwards": a.watchPing(t, out4.String()),
	}
	beating := func() {
		for _, p := range pings {
			p.more(t, 3)
		}
	}
	beating()
	if err := sdn.Stop(syscall.SIGKILL, limit); err != nil {
		t.Fatal(err)
	}
	beating()
	// A container that is started while the SDN is away waits for it.
	started := make(chan privatehost.Result, 1)
	go func() {
		started <- r.Docker(
			ctx, "run", "-d", "--name", "two-c", "--network", "two", "--stop-timeout", "1", "box",
			"probe", "serve", port,
		)
	}()
	t.Cleanup(func() { r.sh("docker", "rm", "-f", "two-c") })
	beating()
	if err := sdn.start(ctx); err != nil {
		t.Fatal(err)
	}
	if res := <-started; !res.OK() {
		t.Fatalf("the container that was started while the SDN was away: %s", res)
	}
	c := r.look(t, "two-c", "two")
	reaches(t, c.in, a.ip4, c.ip4)
	reaches(t, c.in, b.ip6, c.ip6)
	beating()
	if err := r.KillKuryr(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	beating()
	if err := r.StartKuryr(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	d := r.run(t, "two-d", "two")
	reaches(t, d.in, c.ip4, d.ip4)
	answers(t, r, host4, 8071)
	beating()
	for what, p := range pings {
		p.whole(t, what)
	}

	// What one process made another sees: the same ports by both sockets, the kernel as
	// the store says, and nothing left in the end.
	if one, other := r.portsAt(t, "/run/kuryr/kuryr.sock"), r.portsAt(t, "/run/kuryr/kuryr-docker.sock"); one != other {
		t.Errorf("the SDN shows\n%s\nthe driver\n%s", one, other)
	}
	r.must(t, kuryr, "sdn", "check")
	r.must(t, kuryr, "status")
	r.docker(t, "rm", "-f", "two-a", "two-b", "two-c", "two-d")
	r.docker(t, "network", "rm", "two")
	eventually(t, 10*time.Second, func() string {
		if after := r.must(t, kuryr, "port", "list", "-o", "json"); after != before {
			return "ports stay: " + after
		}
		return ""
	})
	r.must(t, kuryr, "sdn", "check")
}
