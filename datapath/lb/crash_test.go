//go:build linux && failpoints

package lb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

// A child that is started with this in its environment balances for a while, in the
// namespace it is in.
const asChild = "KURYR_LB_LIFE"

func init() {
	if os.Getenv(asChild) == "" {
		return
	}
	if err := live(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

var (
	goes   = key(vip4, sdn.UDP)
	stays  = key(vip6, sdn.UDP)
	firmly = key("10.96.0.11", sdn.TCP)
	drains = key("10.96.0.12", sdn.UDP)
	ends   = key("10.96.0.13", sdn.UDP)
)

// live is two lives of a process: in the first it begins, in the second it takes over and
// then removes.
func live() error {
	ctx := context.Background()
	t := New(Config{Bridges: "br-"})
	if len(os.Getenv(asChild)) == 1 {
		return t.Restore(ctx, []Frontend{to(goes, "a"), to(stays, "a"), to(firmly, "a", "c"), to(drains, "a"), to(ends, "a")})
	}
	if err := t.Restore(ctx, []Frontend{
		to(goes, "a"), to(stays, "a"), to(firmly, "a", "b", "c"), to(drains, "c").without("a"),
		to(ends, "c").without("a"),
	}); err != nil {
		return err
	}
	return t.Apply(ctx, []Frontend{to(stays, "c"), to(ends, "c")}, []Key{goes})
}

// Wherever a process is killed its successor has the kernel as told, flows of UDP among
// it, and no client that asks then fails.
func TestKilled(t *testing.T) {
	for _, point := range []string{"lb.restore.told", "lb.flows.forgotten", "lb.apply.told", "lb.flows.forgotten:2"} {
		t.Run(point, func(t *testing.T) {
			w := newWorld(t)
			for _, p := range []string{"a", "b", "c"} {
				w.serve(p, 8080)
			}
			child := func(life, at string) (err error) {
				nstest.Do(t, w.router, func() {
					cmd := exec.Command("/proc/self/exe")
					cmd.Env = append(os.Environ(), asChild+"="+life, "KURYR_FAILPOINT="+at)
					cmd.Stdout = os.Stdout
					err = cmd.Run()
				})
				return err
			}
			must(t, child("1", ""))
			old, err := w.dial("b", "udp", at(vip4, 80))
			must(t, err)
			defer old.Close()
			follows, err := w.dial("b", "udp", at(vip6, 80))
			must(t, err)
			defer follows.Close()
			keeps, err := w.dial("b", "udp", at("10.96.0.12", 80))
			must(t, err)
			defer keeps.Close()
			ended, err := w.dial("b", "udp", at("10.96.0.13", 80))
			must(t, err)
			defer ended.Close()
			live, err := w.dial("out", "tcp", at("10.96.0.11", 80))
			must(t, err)
			defer live.Close()
			for _, c := range []net.Conn{old, follows, keeps, ended} {
				if got := w.say(c, 1); got[:1] != "a" {
					t.Fatalf("before: %s", got)
				}
			}
			first := w.say(live, 1)

			err = child("22", point)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("it was not killed: %v", err)
			}
			if got := w.ask("out", "tcp", at("10.96.0.11", 80)); got[:1] == "!" {
				t.Errorf("nobody lives, and nobody answers: %s", got)
			}
			w.restore(to(stays, "c"), to(firmly, "a", "b", "c"), to(drains, "c").without("a"), to(ends, "c"))
			w.whole()
			if got := w.say(live, 1); got != first {
				t.Errorf("the connection from before says %q", got)
			}
			w.wait = 300 * time.Millisecond
			if got := w.say(old, 1); got[:1] == "a" {
				t.Errorf("a flow without a frontend is led on: %s", got)
			}
			w.wait = nstest.Limit
			if got := w.say(follows, 1); got[:1] != "c" {
				t.Errorf("a flow is led to who is gone: %s", got)
			}
			if got := w.say(keeps, 1); got[:1] != "a" {
				t.Errorf("a flow to who drains is led elsewhere: %s", got)
			}
			if got := w.say(ended, 1); got[:1] != "c" {
				t.Errorf("a flow is led to who drained, and is gone: %s", got)
			}
			if got := w.ask("out", "tcp", at("10.96.0.11", 80)); got[1:] != " "+addrs["out"][0] {
				t.Errorf("a new connection: %s", got)
			}
		})
	}
}
