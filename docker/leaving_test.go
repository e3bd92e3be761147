package docker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// leaving is a provider that can be unavailable: then every call of it fails.
type leaving struct {
	sdn.Provider // which fails
	works        sdn.Provider

	gone  atomic.Bool
	after atomic.Int64 // if more than 0: how many calls are served before it is unavailable
	calls atomic.Int64
	holds atomic.Bool            // ports: they cannot be deleted
	fails atomic.Pointer[string] // the port that cannot be read, or the network that cannot be deleted
	flag  string                 // a file whose presence says that it is unavailable, for other processes
	loses atomic.Bool            // ports that are asked for are made when they land, and the answer is lost
	lost  []sdn.PortSpec         // those
	lands atomic.Bool            // they land right before the next port is asked for
}

func newLeaving(p sdn.Provider) *leaving {
	l := &leaving{works: p}
	l.Provider = &dockertest.Provider{Provider: p, Before: l.before}
	return l
}

// land makes the ports that were lost.
func (l *leaving) land(ctx context.Context) error {
	specs := l.lost
	l.lost = nil
	_, err := l.works.EnsurePorts(ctx, specs)
	return err
}

func (l *leaving) away() error {
	l.calls.Add(1)
	if n := l.after.Load(); n > 0 && l.after.Add(-1) == 0 {
		l.gone.Store(true)
	}
	if _, err := os.Stat(l.flag); !l.gone.Load() && (l.flag == "" || err != nil) {
		return nil
	}
	return sdn.Unavailable(errors.New("dial tcp 192.0.2.1:9696: i/o timeout"), "SDN", "the SDN does not answer")
}

func (l *leaving) before(c dockertest.Call) error {
	failing := l.fails.Load()
	switch c.Method {
	case "DeleteNetwork":
		if id, _ := dockertest.Arg[sdn.ID](c); failing != nil && *failing == string(*id) {
			return sdn.Unavailable(nil, "SDN", "it answers 500 to this one")
		}
	case "Port":
		if id, _ := dockertest.Arg[sdn.ID](c); failing != nil && *failing == string(*id) {
			return sdn.Unavailable(nil, "SDN", "it answers 500 to this one")
		}
	case "DeletePort":
		if l.holds.Load() {
			return sdn.Conflict(sdn.InUse, "port", "", "something has it")
		}
	case "EnsurePorts":
		if specs, _ := dockertest.Arg[[]sdn.PortSpec](c); l.loses.Load() {
			l.lost = append(l.lost, *specs...)
			return sdn.Unavailable(context.DeadlineExceeded, "SDN", "it does not answer in time")
		}
		if l.lands.Swap(false) {
			if err := l.land(c.Context); err != nil {
				return err
			}
		}
	}
	return l.away()
}

// awayBox is a box whose SDN can be away and whose folders outlive a restart.
func awayBox(t *testing.T) (*box, *leaving) {
	t.Helper()
	l := newLeaving(openStore(t, filepath.Join(t.TempDir(), "store"), true))
	folder := t.TempDir()
	b := boxOn(t, l, func(c *Config) { c.StateDir, c.RunDir = filepath.Join(folder, "state"), filepath.Join(folder, "run") })
	return b, l
}

// back is the SDN's return, and all that is owed by then.
func (b *box) back(l *leaving) {
	b.t.Helper()
	l.gone.Store(false)
	b.must(b.settle())
	b.wait(landing) // for ports that never land
	b.must(b.settle())
	if n := b.driver.owed.count(); n != 0 {
		b.t.Errorf("%d calls are still owed", n)
	}
	files, err := filepath.Glob(filepath.Join(b.config.StateDir, "owed", "*"))
	b.must(err)
	if len(files) > 0 {
		b.t.Errorf("left in the state folder: %v", files)
	}
}

// wait is time that passes for ports that may yet be made.
func (b *box) wait(long time.Duration) {
	for _, name := range b.driver.owed.names(owedCall.isLate) {
		c := b.driver.owed.all[name]
		if !c.missed.IsZero() {
			c.missed, c.due = c.missed.Add(-long), c.due.Add(-long)
		}
		b.driver.owed.all[name] = c
	}
}

// nothingPlugged checks that no endpoint has rows.
func (b *box) nothingPlugged() {
	b.t.Helper()
	for name := range b.driver.Intents() {
		if !strings.HasPrefix(name, kindNetworkTags+"/") {
			b.t.Errorf("row %s is left", name)
		}
	}
}

// forget starts the plugin again without its database.
func (b *box) forget() {
	b.t.Helper()
	b.config.StateDir = b.t.TempDir()
	d, err := New(b.config)
	b.must(err)
	b.driver = d
	b.t.Cleanup(d.closeDatabase)
}

// settle does all that is pending, as far as the SDN does it.
func (b *box) settle() error {
	all := func(string, sdn.Port) (bool, bool) { return true, true }
	return errors.Join(b.driver.endpoints.Finish(b.t.Context(), all), b.driver.settleAll(b.t.Context()))
}
