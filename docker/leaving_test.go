package docker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// leaving is a provider that can be unavailable: then every call of it fails.
type leaving struct {
	sdn.Provider // which fails
	works        sdn.Provider

	gone   atomic.Bool
	after  atomic.Int64 // if more than 0: how many calls are served before it is unavailable
	calls  atomic.Int64
	holds  atomic.Bool            // ports: they cannot be deleted
	fails  atomic.Pointer[string] // the port or the network that cannot be changed or deleted
	flag   string                 // a file whose presence says that it is unavailable, for other processes
	loses  atomic.Bool            // ports that are asked for are made when they land, and the answer is lost
	lost   []sdn.PortSpec         // those
	lands  atomic.Bool            // they land right before the next port is asked for
	unsent atomic.Bool            // ports that are asked for are certainly not made
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
	case "DeleteNetwork", "UpdatePort", "DeletePort":
		if id, _ := dockertest.Arg[sdn.ID](c); failing != nil && *failing == string(*id) {
			return sdn.Unavailable(nil, "SDN", "it answers 500 to this one")
		}
		if l.holds.Load() && c.Method == "DeletePort" {
			return sdn.Conflict(sdn.InUse, "port", "", "something has it")
		}
	case "EnsurePorts":
		if l.unsent.Load() {
			return sdn.Unavailable(sdn.ErrNotSent, "SDN", "connection refused")
		}
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

// awayBox is a box whose SDN can be unavailable and whose folders outlive a restart.
func awayBox(t *testing.T) (*box, *leaving) {
	t.Helper()
	l := newLeaving(openStore(t, filepath.Join(t.TempDir(), "store"), true))
	folder := t.TempDir()
	b := boxOn(t, l, func(c *Config) {
		c.StateDir, c.RunDir = filepath.Join(folder, "state"), filepath.Join(folder, "run")
	})
	return b, l
}

// back makes the SDN available again, and completes what is pending.
func (b *box) back(l *leaving) {
	b.t.Helper()
	l.gone.Store(false)
	b.idle()
}

// nothingPlugged checks that no endpoint has rows.
func (b *box) nothingPlugged() {
	b.t.Helper()
	for name := range b.driver.Intents() {
		switch kind, _, _ := strings.Cut(name, "/"); kind {
		case "endpoint", "plug", "publication", "floating":
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
