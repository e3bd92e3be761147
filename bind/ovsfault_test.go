//go:build linux

package bind

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

// A fault is what becomes of one request on its way to the database, or of the answer on
// its way back.
type fault string

const (
	lostRequest fault = "lost request" // the connection ends before the database hears of it
	lostAnswer  fault = "lost answer"  // the database does it, then the connection ends
	halfAnswer  fault = "half an answer"
	silence     fault = "silence" // the database does it, and nothing comes
)

// faulty is a socket before a database's, which does a fault to one request.
type faulty struct {
	path, db string

	mu   sync.Mutex
	at   int // the request, counted from 1, that it is done to; 0: none
	do   fault
	seen int           // requests
	met  chan struct{} // closed when the fault was done
}

func newFaulty(t testing.TB, v *vswitch) *faulty {
	f := &faulty{path: filepath.Join(v.dir, "faulty.sock"), db: v.db}
	l, err := net.Listen("unix", f.path)
	must(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { f.serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return f
}

// arm lets the fault come at a request, counted from now.
func (f *faulty) arm(at int, do fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at, f.do, f.seen, f.met = at, do, 0, make(chan struct{})
}

// requests is how many came since arm.
func (f *faulty) requests() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

func (f *faulty) next() fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen++; f.seen != f.at {
		return ""
	}
	close(f.met)
	return f.do
}

func (f *faulty) serve(client net.Conn) {
	defer client.Close()
	db, err := net.Dial("unix", f.db)
	if err != nil {
		return
	}
	defer db.Close()
	faults := make(chan fault, 1) // of the request that the next answer is to
	var pump sync.WaitGroup
	defer pump.Wait()
	defer db.Close()
	pump.Go(func() { answer(client, db, faults) })
	for ask := json.NewDecoder(client); ; {
		var request json.RawMessage
		if ask.Decode(&request) != nil {
			return
		}
		do := f.next()
		if do == lostRequest {
			return
		}
		faults <- do
		if _, err := db.Write(request); err != nil {
			return
		}
	}
}

// answer passes on what the database says, until the fault comes.
func answer(client, db net.Conn, faults <-chan fault) {
	for from := json.NewDecoder(db); ; {
		var said json.RawMessage
		var is struct{ Method string }
		if from.Decode(&said) != nil || json.Unmarshal(said, &is) != nil {
			return
		}
		if is.Method == "" {
			switch do := <-faults; do {
			case lostAnswer:
				_ = client.Close()
				return
			case halfAnswer:
				_, _ = client.Write(said[:len(said)/2])
				_ = client.Close()
				return
			case silence:
				continue
			}
		}
		if _, err := client.Write(said); err != nil {
			return
		}
	}
}

// TestOVSFaults does every fault to every request of a Plug and an Unplug: the call
// succeeds, or leaves nothing, and the next one succeeds.
func TestOVSFaults(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]func(*world) sdn.Port{"native": (*world).ovsPort, "hybrid": (*world).hybridPort} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := newSwitch(w, true)
			f := newFaulty(t, v)
			w.binder(f.path)
			a := nstest.New(t)
			p := kind(w)

			f.arm(0, "")
			w.plug(w.in(p, a))
			plugs := f.requests()
			f.arm(0, "")
			w.unplug(p)
			unplugs := f.requests()
			if plugs < 2 || unplugs < 3 {
				t.Fatalf("%d requests to plug, %d to unplug: too few for this test to be one", plugs, unplugs)
			}
			for _, do := range []fault{lostRequest, lostAnswer, halfAnswer} {
				for at := range plugs {
					p := kind(w)
					f.arm(at+1, do)
					if _, err := w.b.Plug(t.Context(), w.in(p, a)); err != nil {
						t.Errorf("%s at request %d of a plug: %v", do, at+1, err)
					}
					v.wantPorts("br-int", uplink(p))
					w.unplug(p)
				}
				for at := range unplugs {
					p := kind(w)
					f.arm(0, "")
					w.plug(w.in(p, a))
					f.arm(at+1, do)
					if err := w.b.Unplug(t.Context(), p); err != nil {
						t.Errorf("%s at request %d of an unplug: %v", do, at+1, err)
					}
					v.wantPorts("br-int")
					w.wantHost()
				}
			}
			// The caller gives up in the middle: what is taken back for it is asked for again.
			for at := range plugs {
				p := kind(w)
				ctx, cancel := context.WithCancel(t.Context())
				f.arm(at+1, silence)
				failed := make(chan error)
				go func() { _, err := w.b.Plug(ctx, w.in(p, a)); failed <- err }()
				<-f.met
				cancel()
				if err := <-failed; err == nil || !sdn.IsUnavailable(err) {
					t.Errorf("silence at request %d: %v", at+1, err)
				}
				v.wantPorts("br-int")
				w.wantHost()
				wantNames(t, a)
			}
		})
	}
}

// TestOVSGone: a switch that ended leaves no link of a Plug, and lets an Unplug take
// the links at least.
func TestOVSGone(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]func(*world) sdn.Port{"native": (*world).ovsPort, "hybrid": (*world).hybridPort} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := newSwitch(w, true)
			w.binder(v.db)
			a := nstest.New(t)
			p := kind(w)
			w.plug(w.in(p, a))
			w.binder(fmt.Sprint(v.dir, "/gone.sock"))
			if err := w.b.Unplug(t.Context(), p); !sdn.IsUnavailable(err) {
				t.Errorf("unplugged without the switch: %v", err)
			}
			w.wantHost()
			wantNames(t, a)
			if _, err := w.b.State(t.Context(), p); err != nil {
				t.Errorf("state of what is not there: %v", err)
			}
			w.binder(v.db)
			w.unplug(p)
			v.wantPorts("br-int")
		})
	}
}
