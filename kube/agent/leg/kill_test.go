//go:build linux && failpoints

package leg

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/nstest"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// victimEnv holds the daemon's life that a child process is killed in.
const victimEnv = "KURYR_LEG_VICTIM"

// victim is that life: the folder of its table, and the node's own port that the API has, if any.
type victim struct {
	Dir  string
	Port *v1.KuryrPort
}

// Whatever the port is in the API after a kill, the next daemon makes the interface and its row so.
func TestKilled(t *testing.T) {
	nstest.Require(t)
	for _, at := range []string{"leg.set.recorded", "leg.remove.unplugged"} {
		for after, want := range map[string]string{"wanted": one, "not wanted": ""} {
			t.Run(at+", then "+after, func(t *testing.T) {
				m := newMachine(t)
				p := m.port("77aaaaaa-0000-4000-8000-000000000007", "n1", "10.112.0.7", "10.128.0.0/9")
				v := victim{Dir: m.dir, Port: p}
				if at == "leg.remove.unplugged" {
					stop := m.run()
					m.becomes("before", one)
					stop()
					v.Port = nil
				}
				kill(t, at, v)
				if want == "" {
					must(t, m.api.Delete(t.Context(), p))
				}
				m.unbind()
				m.bind()
				stop := m.run()
				m.becomes("with the next daemon", want)
				stop()
				if removed, err := m.remove(); err != nil || removed != (want != "") {
					t.Errorf("a row is there: %v, %v", removed, err)
				}
			})
		}
	}
}

// kill has another process, on the same machine, live that life, at whose failpoint it is killed.
func kill(t *testing.T, at string, v victim) {
	t.Helper()
	order, err := json.Marshal(v)
	must(t, err)
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestKilledChild$")
	cmd.Env = append(os.Environ(), victimEnv+"="+string(order), "KURYR_FAILPOINT="+at)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS} // nstest mounts what it needs
	cmd.Stdout, cmd.Stderr = &said, &said
	err = cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("was not killed: %v: %s", err, said.String())
	}
}

// TestKilledChild is that process.
func TestKilledChild(t *testing.T) {
	order := os.Getenv(victimEnv)
	if order == "" {
		t.Skip("a part of TestKilled")
	}
	var v victim
	must(t, json.Unmarshal([]byte(order), &v))
	a := newAPI(t)
	if v.Port != nil {
		v.Port.ResourceVersion = ""
		must(t, a.Create(t.Context(), v.Port))
	}
	b, err := bind.New(bind.Config{Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	m := &machine{t: t, dir: v.Dir}
	s := m.store()
	l, err := Open(Config{Client: a, Node: "n1", Binder: b, Store: s})
	must(t, err)
	must(t, s.Start(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l.Run(ctx)
	t.Fatal("it lives")
}
