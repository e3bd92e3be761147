//go:build linux && failpoints

package bind

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
)

// victimEnv holds what a child process does before it is killed.
const victimEnv = "KURYR_BIND_VICTIM"

type victim struct {
	Op  string
	Ask Interface
}

func init() {
	order := os.Getenv(victimEnv)
	if order == "" {
		return
	}
	if err := obey(order); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func obey(order string) error {
	var v victim
	if err := json.Unmarshal([]byte(order), &v); err != nil {
		return err
	}
	b, err := New(Config{})
	if err != nil {
		return err
	}
	switch v.Op {
	case "plug":
		_, err = b.Plug(context.Background(), v.Ask)
		return err
	case "unplug":
		if err := b.Unplug(context.Background(), v.Ask.Port); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return b.Run(ctx)
	}
	return errors.New("unknown operation " + v.Op)
}

// TestKilled kills Plug and Unplug at every failpoint, then repeats the call, or takes the port away, in another process.
func TestKilled(t *testing.T) {
	points := []struct{ op, at string }{
		{"plug", "bind.plug.created"},
		{"plug", "bind.plug.hosted"},
		{"plug", "bind.container.sysctl"},
		{"plug", "bind.container.addrgen"},
		{"plug", "bind.plug.configured"},
		{"unplug", "bind.bury.down"},
		{"unplug", "bind.collect.deleted"},
	}
	for _, p := range points {
		t.Run(p.at, func(t *testing.T) {
			w := newWorld(t)
			a := nstest.New(t)
			for _, then := range []string{"plug", "unplug"} {
				i := w.in(w.port(), a)
				if p.op == "unplug" {
					w.plug(i)
				}
				order, err := json.Marshal(victim{Op: p.op, Ask: i})
				must(t, err)
				var said bytes.Buffer
				cmd := exec.Command("/proc/self/exe")
				cmd.Env = append(os.Environ(), victimEnv+"="+string(order), "KURYR_FAILPOINT="+p.at)
				cmd.Stderr = &said
				nstest.Do(t, w.host, func() { err = cmd.Run() })
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("was not killed: %v: %s", err, said.String())
				}
				if then == "plug" {
					w.plug(i)
					ping(t, a, "10.1.0.1")
					ping(t, a, "fd00:1::1")
					w.collect()
					wantNames(t, w.router, HostName(i.Port.ID))
					wantNames(t, a, "eth0")
				}
				w.unplug(i.Port)
				w.collect()
				wantNames(t, w.router)
				wantNames(t, a)
			}
		})
	}
}
