package reconcile

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/kuryr/kuryr/internal/keymutex"
)

// The model test runs random histories of two hosts that share one SDN. Each host has an engine,
// a journal, and a process with a Store that dies at any commit or target call. After each history
// everything becomes available, and engine, table and SDN must agree.
//
// KURYR_HISTORIES sets how many histories are run: 20,000, or 2,000 with -short.

func TestHistories(t *testing.T) {
	n := 20000
	if testing.Short() {
		n = 2000
	}
	if text := os.Getenv("KURYR_HISTORIES"); text != "" {
		n, _ = strconv.Atoi(text)
	}
	ran := 0
	for seed := 0; ran < n; seed++ {
		synctest.Test(t, func(t *testing.T) {
			ran++
			h := rapid.Custom(drawHistory).Example(seed)
			if faults := h.run(); len(faults) > 0 {
				t.Fatalf("history %d: %v\n%s", seed, faults, h)
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d histories", ran)
}

// step is one event of a history.
type step struct {
	host    int
	do      string
	key     string
	address string
	// parallel: the next step does not wait for this one.
	parallel bool
	// lost: the engine does not get the answer.
	lost bool
	// tree: the network is removed with its ports.
	tree bool
	// point is the number of the commit or target call, from this step on, at which the host's
	// process dies; 0 is none.
	point int
	pause time.Duration
}

type history struct {
	steps []step
	// unnamed: it is not known which engine calls, until the engine's list tells.
	unnamed bool
	// listed: the SDN can list its objects, which finds what the table has lost. Without it no
	// database is restored from a backup.
	listed bool
	faults []string // of target calls, in their order
	trace  []string
}

func (h *history) String() string {
	text := fmt.Sprintf("faults %v\n", h.faults)
	for _, s := range h.steps {
		text += fmt.Sprintf("step %+v\n", s)
	}
	for _, line := range h.trace {
		text += line + "\n"
	}
	return text
}

func drawHistory(t *rapid.T) *history {
	s := rapid.Custom(func(t *rapid.T) step {
		return step{
			host: rapid.IntRange(0, 1).Draw(t, "host"),
			do: rapid.SampledFrom([]string{
				"set", "set", "set", "set", "remove", "remove", "remove", "pause", "restart",
				"down", "up", "backup", "restore", "forget", "unlisted", "renew", "renew",
				"tag", "untag", "other", "dropOther",
			}).Draw(t, "do"),
			key:      rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"),
			address:  rapid.SampledFrom([]string{"", "1", "2", "3"}).Draw(t, "address"),
			parallel: rapid.IntRange(0, 3).Draw(t, "parallel") == 0,
			tree:     rapid.Bool().Draw(t, "tree"),
			lost:     rapid.IntRange(0, 7).Draw(t, "lost") == 0,
			point:    max(0, rapid.IntRange(-20, 12).Draw(t, "point")),
			pause: time.Duration(rapid.SampledFrom([]int{0, 0, 1, 20, 300, 900, 4000}).
				Draw(t, "pause")) * time.Second,
		}
	})
	return &history{
		listed:  rapid.Bool().Draw(t, "listed"),
		unnamed: rapid.Bool().Draw(t, "unnamed"),
		steps:   rapid.SliceOfN(s, 3, 25).Draw(t, "steps"),
		faults: rapid.SliceOfN(rapid.SampledFrom([]string{
			"", "", "", "", "refuse", "fail", "half", "lost", "late", "slow",
		}), 0, 30).Draw(t, "faults"),
	}
}

// world is what the processes of a history share.
type world struct {
	*history
	mu      sync.Mutex
	sdn     map[identity]string   // object to its address
	changes map[identity]int      // of each object so far
	on      map[identity]identity // port to its network
	down    bool
	landing int // creates that take effect after their call has ended
	hosts   [2]*host
}

type identity struct {
	store string
	Object
}

// host has an engine and, unless it has died, a process.
type host struct {
	w        *world
	id       string
	rows     map[string][]byte // the journal
	gen      uint64
	backup   map[string][]byte
	engine   map[string]bool   // keys that the engine has
	plugged  map[string]uint64 // the incarnations whose interfaces are in a namespace
	unlisted bool              // the engine does not answer
	restored bool              // the journal was, and with it what was known of tags is lost
	// tagged and other are what the last SetLater and what a second engine, which is never listed,
	// want; nil: that is not known.
	tagged, other *bool
	keys          keymutex.Mutex // its mutexes are channels, which the bubble's clock goes on for
	p             *process
}

type process struct {
	h      *host
	store  *Store
	kind   *Kind[string, string]
	nets   *Kind[string, string]
	tags   *Kind[string, string]
	cancel context.CancelFunc
	done   chan struct{}
	point  int // until it dies
	dead   bool
}

var errDead = errors.New("process is dead")

// passes counts a point at which the process may die, and reports whether it is alive.
func (p *process) passes() bool {
	w := p.h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.point > 0 {
		p.point--
		if p.point == 0 {
			p.dead = true
			w.trace = append(w.trace, p.h.id+" dies")
		}
	}
	return !p.dead
}

func (p *process) commit(changes map[string][]byte, gen uint64) error {
	if !p.passes() {
		return errDead
	}
	p.h.w.mu.Lock()
	p.h.gen = gen
	for name, text := range changes {
		if text == nil {
			delete(p.h.rows, name)
		} else {
			p.h.rows[name] = text
		}
	}
	p.h.w.mu.Unlock()
	if !p.passes() {
		return errDead
	}
	return nil
}

func (p *process) reserve() error { return nil }

func (p *process) close() error { return nil }

func (h *history) nextFault() string {
	if len(h.faults) == 0 {
		return ""
	}
	f := h.faults[0]
	h.faults = h.faults[1:]
	return f
}

// call is one call of the target: effect runs unless the fault prevents it.
func (p *process) call(ctx context.Context, what string, effect func() error) error {
	if !p.passes() {
		return errDead
	}
	w := p.h.w
	w.mu.Lock()
	fault := w.nextFault()
	if w.down {
		fault = "fail"
	}
	w.trace = append(w.trace, fmt.Sprintf("%s %s %s: %s", time.Now().Format("15:04:05"), p.h.id, what, fault))
	var err error
	switch fault {
	case "refuse":
		err = Refused(errors.New("refused"))
	case "fail":
		err = errors.New("failed before the change")
	case "half":
		if err = effect(); err == nil {
			err = errors.New("failed after the change")
		}
	case "lost":
		if err = effect(); err == nil {
			err = Unconfirmed(errors.New("answer lost"))
		}
	case "late":
		w.landing++
		go func() {
			time.Sleep(3 * time.Minute)
			w.mu.Lock()
			defer w.mu.Unlock()
			_ = effect()
			w.landing--
		}()
		err = context.DeadlineExceeded
	case "slow":
		w.mu.Unlock()
		select {
		case <-time.After(20 * time.Second):
		case <-ctx.Done():
		}
		w.mu.Lock()
		err = effect()
	default:
		err = effect()
	}
	w.mu.Unlock()
	if !p.passes() {
		return errDead
	}
	return err
}

// Ensure implements Target. The SDN gives an address to one object only.
func (p *process) Ensure(ctx context.Context, o Object, spec, _ string) (string, error) {
	id := identity{p.h.id, o}
	p.h.w.mu.Lock()
	before := p.h.w.changes[id]
	p.h.w.mu.Unlock()
	address := spec
	err := p.call(ctx, fmt.Sprintf("ensure %v %q", o, spec), func() error {
		// Not played: a create that was made again by the next process, deleted, and lands then.
		if p.h.w.changes[id] != before {
			return errors.New("the object was changed by a later call")
		}
		p.h.w.changes[id]++
		on, err := p.h.w.networkOf(id)
		if err != nil {
			return err
		}
		if spec == "" && on.Incarnation > 0 {
			if address = p.h.w.choose(id); address == "" {
				return Refused(errors.New("no address is free"))
			}
		}
		for other, has := range p.h.w.sdn {
			if other != id && address != "" && has == address && other.store == id.store {
				return Refused(fmt.Errorf("address in use by %v", other))
			}
		}
		p.h.w.sdn[id], p.h.w.on[id] = address, on
		return nil
	})
	p.h.w.mu.Lock()
	defer p.h.w.mu.Unlock()
	return address, err
}

// choose returns the address of an object that has asked for none: for c one that others ask for.
func (w *world) choose(id identity) string {
	used := map[string]bool{}
	for other, address := range w.sdn {
		used[address] = used[address] || other.store == id.store && other != id
	}
	free := []string{w.sdn[id], "4", "5", "6"}
	if id.Key == "c" {
		free[1] = "3"
	}
	for _, address := range free {
		if address != "" && !used[address] {
			return address
		}
	}
	return ""
}

// networkOf returns the network of a port, which must be there: the one it is on, or the newest of
// its host.
func (w *world) networkOf(port identity) (on identity, err error) {
	if !slices.Contains(ports, port.Key) {
		return identity{}, nil
	}
	if on, ok := w.on[port]; ok {
		return on, nil
	}
	for n := range w.sdn {
		if n.store == port.store && n.Key == network && n.Incarnation > on.Incarnation {
			on = n
		}
	}
	if on.Incarnation == 0 {
		return identity{}, Refused(errors.New("network is absent"))
	}
	return on, nil
}

// Delete implements Target.
func (p *process) Delete(ctx context.Context, o Object, _, _ string) error {
	id := identity{p.h.id, o}
	p.h.w.mu.Lock()
	before := p.h.w.changes[id]
	p.h.w.mu.Unlock()
	return p.call(ctx, fmt.Sprintf("delete %v", o), func() error {
		// Not played: a delete that lands after a SetLater, which keeps the incarnation.
		if o.Key == tag && p.h.w.changes[id] != before {
			return errors.New("the object was changed by a later call")
		}
		if _, ok := p.h.w.sdn[id]; !ok {
			return ErrAbsent
		}
		for port, network := range p.h.w.on {
			if network == id {
				return fmt.Errorf("in use by %v", port)
			}
		}
		delete(p.h.w.sdn, id)
		delete(p.h.w.on, id)
		p.h.w.changes[id]++
		return nil
	})
}

// networks is the target of the second kind. Its objects are those with the key network.
type networks struct{ *process }

// List implements Lister.
func (n networks) List(context.Context) iter.Seq2[Found[string, string], error] {
	return n.found(func(key string) bool { return key == network || key == other })
}

// List implements Lister.
func (p *process) List(context.Context) iter.Seq2[Found[string, string], error] {
	return p.found(func(key string) bool { return slices.Contains(ports, key) })
}

func (p *process) found(wanted func(key string) bool) iter.Seq2[Found[string, string], error] {
	return func(yield func(Found[string, string], error) bool) {
		w := p.h.w
		w.mu.Lock()
		down := w.down || p.dead
		objects := maps.Clone(w.sdn)
		w.mu.Unlock()
		if down {
			yield(Found[string, string]{}, errors.New("SDN is unavailable"))
			return
		}
		for id, spec := range objects {
			if id.store != p.h.id || !wanted(id.Key) {
				continue
			}
			f := Found[string, string]{
				Object: id.Object, Spec: spec, Last: spec, Claims: claimsOf(spec), Owners: p.owners(id.Key),
				Engine: w.name(id.Key),
			}
			if !yield(f, nil) {
				return
			}
		}
	}
}

const (
	network = "n" // the key of a host's network, which owns its ports
	other   = "o" // the key of a second engine's network
	tag     = "t" // the key of what the callers of SetLater want
)

// name is the engine of a row, if that is known when it is set.
func (h *history) name(key string) string {
	if h.unnamed || key == other {
		return ""
	}
	return "engine"
}

func (p *process) owners(key string) []string {
	if !slices.Contains(ports, key) {
		return nil
	}
	return []string{p.nets.Ref(network)}
}

func claimsOf(spec string) []string {
	if spec == "" {
		return nil
	}
	return []string{"address/" + spec}
}

// engine is that of a process.
type engine struct{ *process }

func (e engine) List(context.Context) (List, error) {
	w := e.h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.h.unlisted || e.dead {
		return List{}, errors.New("engine is unavailable")
	}
	return List{Engine: "engine", Content: maps.Clone(e.h.engine)}, nil
}

func listed(r Row[string, string], content any) bool { return content.(map[string]bool)[r.Key] }

func (h *host) start(point int) {
	p := &process{h: h, point: point, done: make(chan struct{})}
	h.w.mu.Lock()
	rows := maps.Clone(h.rows)
	h.w.mu.Unlock()
	has := &content{id: h.id, gen: h.gen, rows: rows}
	p.store = newStore(Config{Logger: slog.New(slog.DiscardHandler)}, p, has, "boot")
	var target, nets Target[string, string] = p, networks{p}
	if !h.w.listed {
		target = struct{ Target[string, string] }{p}
		nets = target
	}
	p.tags = Register(p.store, "tags", struct{ Target[string, string] }{p}, Options[string, string]{})
	p.nets = Register(p.store, "network", nets, Options[string, string]{Engine: engine{p}, Listed: listed})
	p.kind = Register(p.store, "port", target, Options[string, string]{
		Engine: engine{p}, Listed: listed,
		Answered: func(r Row[string, string]) []string { return claimsOf(r.Last) },
		InUse: func(r Row[string, string]) bool {
			h.w.mu.Lock()
			defer h.w.mu.Unlock()
			return h.plugged[r.Key] == r.Incarnation
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	err := p.store.Start(ctx)
	go func() {
		defer close(p.done)
		if err == nil {
			p.store.Run(ctx)
		}
		_ = p.store.Close()
	}()
	h.w.mu.Lock()
	h.p = p
	h.w.mu.Unlock()
}

func (h *host) process() *process {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return h.p
}

// stop ends the process. kill: without a chance to write anything.
func (h *host) stop(kill bool) {
	p := h.process()
	h.w.mu.Lock()
	p.dead = p.dead || kill
	h.w.mu.Unlock()
	p.cancel()
	<-p.done
}

// revive starts a process in place of one that has died.
func (h *host) revive(point int) {
	h.w.mu.Lock()
	dead := h.p.dead
	h.w.mu.Unlock()
	if dead {
		h.stop(true)
		h.start(point)
	}
}

// lock has one call of the engine at a time for a key.
func (h *host) lock(key string) (unlock func()) {
	unlock, _ = h.keys.Lock(context.Background(), key)
	return unlock
}

// noting is how long the engine takes to note an answer: with an address that others may ask for
// less than StaleAfter, and always less than the grace period.
func (s step) noting() time.Duration {
	if s.address == "" && s.key != "c" && s.pause > time.Minute {
		return 6 * time.Minute
	}
	return time.Second
}

// set is the engine's create: what fails, or is not answered, it does not have.
func (h *host) set(s step) {
	defer h.lock(s.key)()
	h.w.mu.Lock()
	has := h.engine[s.key]
	h.w.mu.Unlock()
	if has || s.key != network && !h.has(network) {
		return
	}
	p := h.process()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	_, err := p.of(s.key).Set(ctx, Request[string]{
		Key: s.key, Spec: s.address, Claims: claimsOf(s.address), Owners: p.owners(s.key),
		Engine: h.w.name(s.key),
	})
	r, _ := p.of(s.key).Get(s.key)
	time.Sleep(s.noting())
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.trace = append(h.w.trace, fmt.Sprintf("%s set %s: %v lost %v", h.id, s.key, err, s.lost))
	if err == nil && !p.dead && !s.lost {
		h.engine[s.key], h.plugged[s.key] = true, r.Incarnation
	}
}

// remove is the engine's delete. An engine forgets its object whatever the answer is.
func (h *host) remove(s step) {
	defer h.lock(s.key)()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	h.w.mu.Lock()
	delete(h.engine, s.key)
	delete(h.plugged, s.key)
	h.w.mu.Unlock()
	remove := h.process().of(s.key).Remove
	if s.tree {
		remove = h.process().of(s.key).RemoveTree
	}
	err := remove(ctx, s.key)
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.trace = append(h.w.trace, fmt.Sprintf("%s remove %s: %v", h.id, s.key, err))
}

// renew deletes the network of a host with all its ports, and makes it again. An engine does not
// delete a network that has containers.
func (h *host) renew(tree bool) {
	for _, key := range ports {
		h.w.mu.Lock()
		runs := h.plugged[key] != 0 && !h.engine[key]
		if tree && !runs {
			delete(h.engine, key)
			delete(h.plugged, key)
		}
		h.w.mu.Unlock()
		if runs {
			return
		}
		if !tree {
			h.remove(step{key: key})
		}
	}
	h.remove(step{key: network, tree: tree})
	h.set(step{key: network})
}

// tag makes the tags wanted or not, without waiting for the target.
func (h *host) tag(want bool) {
	defer h.lock(tag)()
	p := h.process()
	if want {
		h.note(&h.tagged, want, p.tags.SetLater(context.Background(), Request[string]{Key: tag}))
	} else {
		h.note(&h.tagged, want, p.tags.RemoveLater(context.Background(), tag))
	}
}

// setOther makes a network of the second engine, which names it in a later call.
func (h *host) setOther() {
	defer h.lock(other)()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	p := h.process()
	var err error
	for _, spec := range []string{"made", "used"} {
		if _, failed := p.nets.Set(ctx, Request[string]{Key: other, Spec: spec}); err == nil {
			err = failed
		}
	}
	h.note(&h.other, true, err)
}

func (h *host) removeOther() {
	defer h.lock(other)()
	h.note(&h.other, false, h.process().nets.Remove(context.Background(), other))
}

// note notes what is wanted, unless a call has failed.
func (h *host) note(what **bool, want bool, err error) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if *what = &want; err != nil {
		*what = nil
	}
}

var ports = []string{"a", "b", "c"}

// of returns the kind that has the key.
func (p *process) of(key string) *Kind[string, string] {
	switch key {
	case network, other:
		return p.nets
	case tag:
		return p.tags
	}
	return p.kind
}

func (h *host) has(key string) bool {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return h.engine[key]
}

func (h *host) do(s step) {
	w := h.w
	switch s.do {
	case "set":
		h.set(s)
	case "remove":
		h.remove(s)
	case "renew":
		h.renew(s.tree)
	case "tag", "untag":
		h.tag(s.do == "tag")
	case "other":
		h.setOther()
	case "dropOther":
		h.removeOther()
	case "forget": // the engine has lost it
		defer h.lock(s.key)()
		w.mu.Lock()
		delete(h.engine, s.key)
		if !s.lost { // otherwise the container still runs
			delete(h.plugged, s.key)
		}
		w.mu.Unlock()
	case "pause":
		time.Sleep(s.pause)
	case "unlisted", "down", "up":
		w.mu.Lock()
		defer w.mu.Unlock()
		h.unlisted = s.do == "unlisted"
		w.down = s.do == "down"
	case "backup":
		w.mu.Lock()
		defer w.mu.Unlock()
		h.backup = maps.Clone(h.rows)
	}
}

// run plays the history and returns what does not agree at its end.
func (h *history) run() (faults []string) {
	w := &world{history: h, sdn: map[identity]string{}, changes: map[identity]int{}, on: map[identity]identity{}}
	for i := range w.hosts {
		w.hosts[i] = &host{
			w: w, id: fmt.Sprint("host", i), rows: map[string][]byte{}, engine: map[string]bool{},
			plugged: map[string]uint64{},
		}
		w.hosts[i].start(0)
		w.hosts[i].set(step{key: network})
	}
	var parallel sync.WaitGroup
	for _, s := range h.steps {
		on := w.hosts[s.host]
		on.revive(s.point)
		switch s.do {
		case "renew": // an engine deletes no network while it creates endpoints on it
			parallel.Wait()
			s.parallel = false
		case "restart":
			parallel.Wait()
			on.stop(s.lost)
			on.start(s.point)
		case "restore":
			parallel.Wait()
			on.stop(true)
			w.awaitLanding() // a restore takes longer than any call of the SDN
			w.mu.Lock()
			if on.backup != nil && w.listed {
				on.rows = maps.Clone(on.backup)
				on.tagged, on.other, on.restored = nil, nil, true
			}
			w.mu.Unlock()
			on.start(s.point)
		}
		if s.parallel {
			parallel.Go(func() { on.do(s) })
		} else {
			on.do(s)
		}
	}
	parallel.Wait()
	w.awaitLanding()
	w.mu.Lock()
	w.down, w.history.faults = false, nil
	for _, on := range w.hosts {
		on.unlisted, on.p.point = false, 0
	}
	w.mu.Unlock()
	for _, on := range w.hosts {
		on.revive(0)
	}
	time.Sleep(6 * time.Hour)
	for _, on := range w.hosts {
		on.stop(false)
		faults = append(faults, on.differences()...)
	}
	return faults
}

// awaitLanding waits until no create takes effect later. Attempts go on, so a WaitGroup will not do.
func (w *world) awaitLanding() {
	for {
		w.mu.Lock()
		n := w.landing
		w.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Second)
	}
}

// differences compares what the engine, the table and the SDN have.
func (h *host) differences() (list []string) {
	objects := map[string]int{}
	rows := h.p.store.all()
	for id := range h.w.sdn {
		if id.store == h.id {
			objects[id.Key]++
			unlisted := id.Key == tag && h.restored
			if !h.uses(id.Key) && !unlisted && !h.mayKeep(rows, h.p.of(id.Key).Ref(id.Key)) {
				list = append(list, fmt.Sprintf("%s: the SDN has %v, the engine does not", h.id, id.Object))
			}
		}
	}
	for key, want := range map[string]*bool{tag: h.tagged, other: h.other} {
		lost := key == other && h.restored && want != nil && !*want // Remove does not look for what has no row
		if want != nil && *want != (objects[key] > 0) && !lost {
			list = append(list, fmt.Sprintf("%s: %s is wanted %v, the SDN has %d", h.id, key, *want, objects[key]))
		}
	}
	for _, key := range append(slices.Clone(ports), network) {
		if !h.uses(key) {
			continue
		}
		if objects[key] != 1 {
			list = append(list, fmt.Sprintf("%s: the SDN has %d objects of %s", h.id, objects[key], key))
		}
		r := rows[h.p.of(key).Ref(key)]
		if r == nil || r.Phase != Wanted {
			list = append(list, fmt.Sprintf("%s: the engine has %s, the table does not", h.id, key))
			continue
		}
		address, ok := h.w.sdn[identity{h.id, r.Object}]
		if !ok {
			list = append(list, fmt.Sprintf("%s: the object of %s is another incarnation", h.id, key))
		}
		claim := "address/" + address
		if key != network && r.Last == address && h.p.store.holder(claim) != r {
			list = append(list, fmt.Sprintf("%s: %s does not hold %s", h.id, key, claim))
		}
	}
	for name, r := range rows {
		if r.Phase == Wanted && !r.Superseded && h.uses(r.Key) || h.mayKeep(rows, name) {
			continue
		}
		list = append(list, fmt.Sprintf("%s: the table has %s (%v), the engine does not", h.id, name, r.Phase))
	}
	return list
}

// mayKeep reports whether a row stays though no engine has listed it, as it can be of an engine
// that is not known. Its owner stays too.
func (h *host) mayKeep(rows map[string]*row, name string) bool {
	r := rows[name]
	switch {
	case r == nil:
		return false
	case r.kind.engine == nil:
		return r.Phase == Wanted
	case r.Phase == Deleting:
		return slices.ContainsFunc(h.p.store.children(name), func(child string) bool { return h.mayKeep(rows, child) })
	}
	known, named := false, false
	for _, r := range rows {
		known = known || r.Engine != ""
		named = named || r.kind.engine != nil && r.Phase == Wanted && r.Acked && h.p.store.engineOf(r) == ""
	}
	doubtful := (r.Done || len(h.p.store.children(name)) > 0) && (!known || named)
	return h.p.store.engineOf(r) == "" && (r.Acked || doubtful)
}

// uses reports whether the engine or a running container has the key.
func (h *host) uses(key string) bool { return h.engine[key] || h.plugged[key] != 0 }
