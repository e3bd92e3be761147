//go:build e2e

package faults_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// mostMemory is what Kuryr may hold while it is flooded: a generous bound, many times
// what it holds when it is left alone.
const mostMemory = 256 << 20

// pss is a process's share of memory.
func (r rig) pss() int {
	r.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", r.KuryrPid()))
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
			kb, err := strconv.Atoi(f[1])
			if err != nil {
				r.t.Fatal(err)
			}
			return kb << 10
		}
	}
	r.t.Fatalf("no Pss: %s", text)
	return 0
}

// floods are what a caller may send; each is sent on many connections at once, which then stay open.
var floods = map[string]struct {
	connections int
	text        func() string
}{
	"silent":      {3000, func() string { return "" }},
	"half a line": {1000, func() string { return "POST /NetworkDriver.Joi" }},
	"no end":      {1000, func() string { return "POST /NetworkDriver.Join HTTP/1.1\r\nHost: x\r\nX-A: b\r\n" }},
	"huge header": {300, func() string {
		return "POST /NetworkDriver.Join HTTP/1.1\r\nHost: x\r\nX-A: " + strings.Repeat("a", 1<<20)
	}},
	"many headers": {300, func() string {
		return "POST /Plugin.Activate HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X-A: b\r\n", 1<<16)
	}},
	"most of a body": {600, func() string { return body(1<<20, 1<<20-1) }},
	"huge body":      {300, func() string { return body(1<<40, 2<<20) }},
	"deep body":      {300, func() string { return body(1<<19, 0) + strings.Repeat(`{"Options":`, 1<<19/11+1)[:1<<19] }},
	"pipelined": {300, func() string {
		return strings.Repeat("POST /Plugin.Activate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 2000)
	}},
	"admin": {300, func() string {
		return "POST /admin/down HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat(" ", 999999)
	}},
}

func body(said, sent int) string {
	return fmt.Sprintf(
		"POST /NetworkDriver.Join HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", said,
	) + strings.Repeat(" ", sent)
}

// Whatever comes in at the sockets, memory stays bounded, and the engine's own calls end.
func TestFlood(t *testing.T) {
	r := newRig(t)
	r.docker(create("flood", "10.61.0.0/24")...)
	a, _ := r.run("flood-a", "flood")
	_, to := r.run("flood-b", "flood")
	r.must(kuryr, "status")
	t.Logf("at rest: %d MiB", r.pss()>>20)
	for name, f := range floods {
		t.Run(name, func(t *testing.T) {
			text := f.text()
			var most, opened atomic.Int64
			var wg sync.WaitGroup
			stop := make(chan struct{})
			for i := range f.connections {
				socket := r.Path([]string{privatehost.PluginSocket, "/run/kuryr/kuryr.sock"}[i%2])
				wg.Go(func() {
					conn, err := net.Dial("unix", socket)
					if err != nil {
						return // more than the kernel keeps waiting
					}
					defer conn.Close()
					opened.Add(1)
					go func() { _, _ = io.Copy(io.Discard, conn) }()
					_, _ = io.WriteString(conn, text)
					<-stop
				})
			}
			wg.Go(func() {
				for {
					most.Store(max(most.Load(), int64(r.pss())))
					select {
					case <-stop:
						return
					case <-time.After(20 * time.Millisecond):
					}
				}
			})
			for i := range 3 {
				c := fmt.Sprintf("flood-%d", i)
				r.docker("run", "-d", "--name", c, "--network", "flood", "busybox", "sleep", "1000000")
				r.docker("rm", "-f", c)
			}
			r.pings(a, to)
			r.must(kuryr, "status")
			close(stop)
			wg.Wait()
			t.Logf("%d connections, at most %d MiB", opened.Load(), most.Load()>>20)
			if most.Load() > mostMemory {
				t.Errorf("Kuryr held %d bytes", most.Load())
			}
		})
	}
	r.check("after the floods")
	r.empty()
}

// A Kuryr that stands still for a while keeps the engine waiting, and no longer.
func TestStandstill(t *testing.T) {
	r := newRig(t)
	r.docker(create("still", "10.62.0.0/24")...)
	a, _ := r.run("still-a", "still")
	_, to := r.run("still-b", "still")
	if err := syscall.Kill(r.KuryrPid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	done := make(chan privatehost.Result, 2)
	go func() {
		done <- r.sh("docker", "run", "-d", "--name", "still-c", "--network", "still", "busybox", "sleep", "1000000")
	}()
	go func() { done <- r.sh("docker", "rm", "-f", "still-b") }()
	r.pings(a, privatehost.HostIPv4.Addr().String())
	time.Sleep(3 * time.Second)
	select {
	case res := <-done:
		t.Errorf("done while Kuryr stood still: %s", res)
	default:
	}
	if err := syscall.Kill(r.KuryrPid(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if res := <-done; !res.OK() {
			t.Error(res)
		}
	}
	_ = to
	c, _ := r.look("still-c")
	r.pings(c, privatehost.HostIPv4.Addr().String())
	r.check("after the standstill")
	r.empty()
}
