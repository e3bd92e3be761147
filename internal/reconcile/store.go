package reconcile

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/keymutex"
)

// Config is what a Store needs.
type Config struct {
	Path string // of the file, created with mode 0600 if it is missing
	// Volatile stores are discarded when the kernel has been started since, and do not wait
	// for the disk.
	Volatile bool
	// OrphanTTL is how long the object of an unconfirmed create is looked for, while its
	// target answers; 0 is 10 minutes.
	OrphanTTL time.Duration
	// GracePeriod is the time between the two lists of an engine that make a row an orphan;
	// 0 is 10 minutes, and less is never.
	GracePeriod time.Duration
	// MinBackoff and MaxBackoff bound the time between attempts; 0 is 1 s and 2 min.
	MinBackoff, MaxBackoff time.Duration
	// Room fails if there is no room for new rows; nil allocates it in the file system.
	Room       func() error
	Logger     *slog.Logger          // nil is slog.Default
	Registerer prometheus.Registerer // nil: no metrics
}

const (
	defaultTTL        = 10 * time.Minute
	defaultGrace      = 10 * time.Minute
	defaultMinBackoff = time.Second
	defaultMaxBackoff = 2 * time.Minute
)

// lockJournal is the lock of those that write commits.
const lockJournal = "journal"

// Store is the table of one daemon. Its methods may be called concurrently.
type Store struct {
	cfg     Config
	log     *slog.Logger
	journal journal
	id      string
	boot    string
	locks   keymutex.Mutex  // by ref, and then lockJournal
	backoff backoff.Backoff // read only: its count is in the rows
	metrics *metrics

	failed  atomic.Bool   // an attempt has failed since the last RetryFailed
	retries *rate.Limiter // of RetryFailed

	mu      sync.Mutex
	kinds   map[string]*kind
	ordered []*kind                       // as they were registered
	running map[string]context.CancelFunc // attempts that no caller waits for, by ref
	closed  bool
	work    sync.WaitGroup // calls and attempts
	gen     uint64
	rows    map[string]*row   // by ref; a row is replaced, never changed
	claims  map[string]string // claim to the ref of its holder
	owned   index             // by the refs of owners; a Set in progress may have no row yet
	earlier index             // superseded rows, by the ref that they had
	raw     map[string][]byte // rows that no registered kind can decode
	dirty   map[string][]byte // what differs from the journal; nil: the row is gone
	touched map[string]bool   // refs, and claims of rows, that have changed since a list was asked for
	waiting []*commit
	// candidates are the rows that the last list of their engine did not have.
	candidates map[string]candidate
	compare    chan struct{} // notifies watchOrphans
}

// row is a Row in the store and in the journal. Spec and Last hold the S and T of its kind.
type row struct {
	Object
	Superseded  bool          `json:"superseded,omitempty"` // by a later incarnation of its key
	Gen         uint64        `json:"gen"`
	Answer      uint64        `json:"answer,omitempty"` // increases with answers that change claims
	Phase       Phase         `json:"phase"`
	Tree        bool          `json:"tree,omitempty"` // being deleted with all rows that it owns
	Spec        any           `json:"spec"`
	Last        any           `json:"last,omitempty"`
	Done        bool          `json:"done,omitempty"`
	Redo        bool          `json:"redo,omitempty"` // ensure the spec, as a failed Set may have changed it
	Claims      []string      `json:"claims,omitempty"`
	Owners      []string      `json:"owners,omitempty"`
	Engine      string        `json:"engine,omitempty"`
	Boot        string        `json:"boot,omitempty"`
	Acked       bool          `json:"acked,omitempty"`
	Unheard     bool          `json:"unheard,omitempty"` // the engine may not have got the last answer
	Unconfirmed bool          `json:"unconfirmed,omitempty"`
	Looked      time.Duration `json:"looked,omitempty"` // for an unconfirmed object; 0: not yet
	Tries       int           `json:"tries,omitempty"`
	Err         string        `json:"err,omitempty"`
	// Prev is what the row was before a Set that has not ended. After a crash it is that again.
	Prev *row `json:"prev,omitempty"`

	kind *kind
	// Times of this process, of the monotonic clock.
	looked  time.Time // of the last look for an unconfirmed object
	changed time.Time // of the last Set
}

func (r *row) ref() string {
	if r.Superseded {
		return fmt.Sprintf("%s#%d", ref(r.kind.name, r.Key), r.Incarnation)
	}
	return ref(r.kind.name, r.Key)
}

// with returns a changed copy.
func (r *row) with(change func(*row)) *row {
	c := *r
	change(&c)
	return &c
}

// superseded returns the row under the name that it has beside a later incarnation of its key.
func (r *row) superseded() *row {
	return r.with(func(r *row) { r.Superseded, r.Claims, r.Owners = true, nil, nil })
}

// deleting returns the row with its deletion asked for. It is not known whether a Set that was
// cut off created the object.
func (r *row) deleting(gen uint64) *row {
	return r.with(func(r *row) {
		r.Unconfirmed = r.Unconfirmed || !r.Done
		r.Gen, r.Phase, r.Redo, r.Tries = gen, Deleting, false, 0
	})
}

// held returns all claims of the row. Others may have those of an object that is looked for: the
// target knows what is in use.
func (r *row) held() []string {
	if r.Looked > 0 || r.Superseded {
		return nil
	}
	if r.kind.answered == nil {
		return r.Claims
	}
	return slices.Concat(r.Claims, r.kind.answered(r))
}

// encode returns the form of a row in the journal; nil for a row that is gone.
func (r *row) encode() ([]byte, error) {
	if r == nil {
		return nil, nil
	}
	return json.Marshal(r)
}

func (k *kind) decode(text []byte) (*row, error) {
	r := &row{kind: k, Prev: &row{kind: k}}
	for _, r := range []*row{r, r.Prev} {
		r.Spec, r.Last = k.values() // pointers, which json fills
	}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, err
	}
	for _, r := range []*row{r, r.Prev} {
		r.Spec, r.Last = valueOf(r.Spec), valueOf(r.Last)
	}
	if r.Prev.Gen == 0 { // the text has none
		r.Prev = nil
	}
	return r, nil
}

// valueOf returns what a pointer points to; nil for nil.
func valueOf(pointer any) any {
	if pointer == nil {
		return nil
	}
	return reflect.ValueOf(pointer).Elem().Interface()
}

// bootFile identifies one boot of the kernel (random(4)).
const bootFile = "/proc/sys/kernel/random/boot_id"

// Open opens the file, which one process at a time can do. Kinds are registered before Start.
// Errors: ErrInUse, ErrNewer, or of the file system.
func Open(c Config) (*Store, error) {
	text, err := os.ReadFile(bootFile)
	if err != nil {
		return nil, fmt.Errorf("boot id: %w", err)
	}
	boot := strings.TrimSpace(string(text))
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	j, has, err := openBolt(c.Path, boot, c.Volatile, c.Logger)
	if err != nil {
		return nil, err
	}
	return newStore(c, j, has, boot), nil
}

func newStore(c Config, j journal, has *content, boot string) *Store {
	setDefault(&c.OrphanTTL, defaultTTL)
	setDefault(&c.GracePeriod, defaultGrace)
	setDefault(&c.MinBackoff, defaultMinBackoff)
	setDefault(&c.MaxBackoff, defaultMaxBackoff)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Room == nil {
		c.Room = j.reserve
	}
	s := &Store{
		cfg: c, log: c.Logger, journal: j, id: has.id, boot: boot,
		// Numbers of a lost file, or of one restored from a backup, are not given again.
		gen:     max(has.gen, uint64(time.Now().Unix())<<20),
		kinds:   map[string]*kind{},
		running: map[string]context.CancelFunc{},
		rows:    map[string]*row{},
		claims:  map[string]string{},
		owned:   index{},
		earlier: index{},
		raw:     has.rows,
		dirty:   map[string][]byte{},
		compare: make(chan struct{}, 1),
		retries: rate.NewLimiter(rate.Every(c.MinBackoff), 1),
	}
	s.backoff = backoff.Backoff{Min: c.MinBackoff, Max: c.MaxBackoff}
	s.metrics = newMetrics(s, c.Registerer)
	return s
}

func setDefault(d *time.Duration, to time.Duration) {
	if *d == 0 {
		*d = to
	}
}

// ID identifies the store in its targets. It was created with the file.
func (s *Store) ID() string { return s.id }

// Boot returns the id of the kernel's boot, which Row.Boot has of the last Set.
func (s *Store) Boot() string { return s.boot }

// register adds a kind and decodes its rows.
func (s *Store) register(k *kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds[k.name] = k
	s.ordered = append(s.ordered, k)
	var rows []*row
	for name, text := range s.raw {
		if kind, _, _ := strings.Cut(name, "/"); kind != k.name {
			continue
		}
		r, err := k.decode(text)
		if err != nil {
			s.log.Error("row cannot be read", "row", name, "err", err)
			continue
		}
		delete(s.raw, name)
		rows = append(rows, r)
	}
	// The last answer of two rows with one answered claim has it. Earlier versions stored none.
	slices.SortFunc(rows, func(a, b *row) int {
		return cmp.Compare(cmp.Or(a.Answer, a.Incarnation), cmp.Or(b.Answer, b.Incarnation))
	})
	for _, r := range rows {
		s.put(r.ref(), r)
	}
}

// Start decides on each row what to do about it, by its kind's Options.Start. It makes no call
// of a target; Run does.
func (s *Store) Start(ctx context.Context) error {
	changes := map[string]*row{}
	for name, r := range s.all() {
		if r.Prev != nil && r.Phase == Wanted {
			r = r.Prev.with(func(p *row) { p.Gen, p.Acked, p.Redo, p.Unconfirmed = r.Gen, true, true, true })
			changes[name] = r
		}
		switch action := r.kind.start(r, r.Boot != s.boot); {
		case action == Drop:
			changes[name] = nil
		case r.Phase == Deleting:
			r.kind.queue.add(name, 0)
		case action == Delete, action == Keep && r.kind.confirm && !r.Done && !r.Redo:
			changes[name] = r.deleting(r.Gen)
			r.kind.queue.add(name, 0)
		case action == Ensure || r.Redo:
			changes[name] = r.with(func(r *row) { r.Redo = true })
			r.kind.queue.add(name, 0)
		}
	}
	return s.commit(ctx, changes)
}

// allKinds returns the kinds in the order of their registration.
func (s *Store) allKinds() []*kind {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ordered)
}

// Close waits for in-flight calls and attempts, writes what is not written yet, and
// closes the file. It is called after Run has returned.
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.work.Wait()
	return errors.Join(s.flush(nil), s.journal.close())
}

// begin admits a call until end is called.
func (s *Store) begin() (end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	s.work.Add(1)
	return s.work.Done, nil
}

func (s *Store) row(ref string) *row {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[ref]
}

func (s *Store) holder(claim string) *row {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[s.claims[claim]]
}

func (s *Store) all() map[string]*row {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.rows)
}

// children returns the refs of the rows that a row owns.
func (s *Store) children(ref string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var refs []string
	for name := range s.owned.of(ref) {
		refs = append(refs, name)
	}
	slices.Sort(refs)
	return refs
}

// touchedClaim begins the entries of touched that are of claims: the row of a claim can be about an
// object whose own key it does not know.
const touchedClaim = "claim "

// put replaces a row in memory; nil removes it. The store's mutex is held.
func (s *Store) put(name string, r *row) {
	if s.touched != nil {
		s.touched[name] = true
	}
	var had []string
	if old := s.rows[name]; old != nil {
		had = old.held()
		for _, c := range had {
			if s.claims[c] == name {
				delete(s.claims, c)
			}
			if s.touched != nil {
				s.touched[touchedClaim+c] = true
			}
		}
		for _, o := range old.Owners {
			s.owned.remove(o, name)
		}
		delete(s.rows, name)
		old.kind.table.remove(name, old)
		s.earlier.remove(ref(old.kind.name, old.Key), name)
	}
	if r == nil {
		return
	}
	s.rows[name] = r
	r.kind.table.add(name, r)
	if r.Superseded {
		s.earlier.add(ref(r.kind.name, r.Key), name, r)
	}
	for _, c := range r.held() {
		if s.claims[c] == "" || !slices.Contains(had, c) { // otherwise it has passed to another row
			s.claims[c] = name
		}
	}
	for _, o := range r.Owners {
		s.owned.add(o, name, r)
	}
}

// hasEarlier reports whether the object of an earlier incarnation of a key may still appear.
func (s *Store) hasEarlier(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.earlier[name]
	return ok
}

// nextGen returns a number that no earlier Set or Remove had.
func (s *Store) nextGen() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gen++
	return s.gen
}

// numbered returns a row that takes the place of one in the table, with the number of its answer.
// The store's mutex is held.
func (s *Store) numbered(name string, r *row) *row {
	if r == nil || r.kind.answered == nil {
		return r
	}
	answer := uint64(0)
	old := s.rows[name]
	if old != nil && slices.Equal(r.kind.answered(old), r.kind.answered(r)) {
		answer = old.Answer
	} else {
		s.gen++
		answer = s.gen
	}
	return r.with(func(r *row) { r.Answer = answer })
}

// later changes a row without a commit of its own: the change is written with the next one.
// A crash may lose it.
func (s *Store) later(name string, r *row) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.laterLocked(name, r)
}

// laterLocked is later if the store's mutex is held.
func (s *Store) laterLocked(name string, r *row) error {
	r = s.numbered(name, r)
	text, err := r.encode()
	if err != nil {
		return fmt.Errorf("row %s: %w", name, err)
	}
	s.put(name, r)
	s.dirty[name] = text
	return nil
}

// note is later for a row of which only counters or flags have changed.
func (s *Store) note(name string, r *row) {
	if err := s.later(name, r); err != nil {
		s.log.Error("row not stored", "row", name, "err", err) // it was encoded before
	}
}

// noteInPlace changes a row without its lock, which a call in progress holds.
func (s *Store) noteInPlace(name string, change func(*row)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.rows[name]; r != nil {
		if err := s.laterLocked(name, r.with(change)); err != nil {
			s.log.Error("row not stored", "row", name, "err", err)
		}
	}
}

// ack is Kind.Ack. The row gets the engine, unless that is "". It reports whether the row has
// changed. It does not wait for the row's lock, which a call in progress holds.
func (s *Store) ack(name, engine string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ackLocked(name, engine)
}

func (s *Store) ackLocked(name, engine string) bool {
	r := s.rows[name]
	if r == nil || r.Acked && (engine == "" || engine == r.Engine) {
		return false
	}
	r = r.with(func(r *row) { r.Acked, r.Engine = true, cmp.Or(engine, r.Engine) })
	return s.laterLocked(name, r) == nil
}

// commit is changes on their way to the journal.
type commit struct {
	rows    map[string]*row   // nil: the row is removed
	text    map[string][]byte // the same, encoded
	written bool
	err     error
}

// commit writes changes and what later has left, and applies them in memory when they are
// written. Commits that arrive while another is written are written together.
func (s *Store) commit(ctx context.Context, changes map[string]*row) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	return s.flush(changes)
}

func (s *Store) flush(changes map[string]*row) error {
	c := &commit{rows: map[string]*row{}, text: map[string][]byte{}}
	s.mu.Lock()
	for name, r := range changes {
		c.rows[name] = s.numbered(name, r)
	}
	s.mu.Unlock()
	for name, r := range c.rows {
		text, err := r.encode()
		if err != nil {
			return fmt.Errorf("row %s: %w", name, err)
		}
		c.text[name] = text
	}
	s.mu.Lock()
	s.waiting = append(s.waiting, c)
	s.mu.Unlock()
	unlock, err := s.locks.Lock(context.Background(), lockJournal)
	if err != nil {
		return err
	}
	defer unlock()
	if !c.written { // otherwise the commit before has written it
		s.flushWaiting()
	}
	return c.err
}

// flushWaiting writes the commits that wait. The caller is the only one that writes.
func (s *Store) flushWaiting() {
	s.mu.Lock()
	batch, text, gen := s.waiting, s.dirty, s.gen
	s.waiting, s.dirty = nil, map[string][]byte{}
	s.mu.Unlock()
	for _, c := range batch {
		maps.Copy(text, c.text)
	}
	err := s.write(text, gen)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range batch {
		c.written, c.err = true, err
		if err != nil {
			continue
		}
		for name, r := range c.rows {
			s.apply(name, r)
		}
	}
	if err != nil {
		s.restore(text)
	}
}

// apply replaces a row in memory after its commit. An ack or a note during the commit changed the
// row that is replaced: what it left to write must not follow the commit. An ack is kept if the
// object is the same. The store's mutex is held.
func (s *Store) apply(name string, r *row) {
	old := s.rows[name]
	_, noted := s.dirty[name]
	delete(s.dirty, name)
	s.put(name, r)
	if noted && r != nil && old != nil && old.Acked && old.Incarnation == r.Incarnation {
		s.ackLocked(name, old.Engine)
	}
}

// restore marks the rows of a failed write, of which the file may have any part. The store's
// mutex is held.
func (s *Store) restore(failed map[string][]byte) {
	for name := range failed {
		if _, ok := s.dirty[name]; ok {
			continue
		}
		text, err := s.rows[name].encode()
		if err != nil {
			s.log.Error("row not stored", "row", name, "err", err)
			continue
		}
		s.dirty[name] = text
	}
}

func (s *Store) write(changes map[string][]byte, gen uint64) error {
	if len(changes) == 0 {
		return nil
	}
	s.metrics.commits.Inc()
	if err := s.journal.commit(changes, gen); err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritten, err)
	}
	return nil
}
