package reconcile

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"time"
)

// Kind is the rows of one target.
type Kind[S, T any] struct{ *kind }

// kind is a Kind without its types: its rows have values of type any that hold S and T.
type kind struct {
	store *Store
	name  string
	queue *queue
	// imported is set when every object of the target has had a row since the store was opened.
	imported atomic.Bool
	timeout  time.Duration
	confirm  bool
	maxRows  int
	table    table

	ensure func(ctx context.Context, o Object, spec, last any) (any, error)
	delete func(ctx context.Context, o Object, spec, last any) error
	// values returns pointers to a new S and a new T.
	values func() (spec, last any)
	// answered is nil without Options.Answered.
	answered   func(r *row) []string
	start      func(r *row, rebooted bool) Action
	engine     Engine // nil: no row is judged
	listed     func(r *row, content any) bool
	used       func(r *row) bool
	inUse      func(r *row) bool
	stale      func(ctx context.Context, r *row) (bool, error)
	staleAfter time.Duration
	gone       func(r *row)
	list       func(ctx context.Context) iter.Seq2[*row, error] // nil: nothing is imported
}

const (
	defaultTimeout    = 30 * time.Second
	defaultStaleAfter = 10 * time.Second
)

// Register adds a kind to a store that is not started yet. Its name is part of the file's
// format. Objects without a row are imported in the order of registration: owners come first.
func Register[S, T any](s *Store, name string, target Target[S, T], o Options[S, T]) *Kind[S, T] {
	k := &kind{
		store: s, name: name, queue: newQueue(), timeout: o.Timeout, confirm: o.Confirm,
		maxRows: o.MaxRows, staleAfter: o.StaleAfter, table: newTable(),
	}
	setDefault(&k.timeout, defaultTimeout)
	setDefault(&k.staleAfter, defaultStaleAfter)
	k.ensure = func(ctx context.Context, ob Object, spec, last any) (any, error) {
		s, _ := spec.(S) // an S that is an interface may be nil
		t, _ := last.(T)
		return target.Ensure(ctx, ob, s, t)
	}
	k.delete = func(ctx context.Context, ob Object, spec, last any) error {
		s, _ := spec.(S)
		t, _ := last.(T)
		return target.Delete(ctx, ob, s, t)
	}
	k.values = func() (spec, last any) { return new(S), new(T) }
	if o.Answered != nil {
		k.answered = func(r *row) []string { return o.Answered(typed[S, T](r)) }
	}
	k.start = func(*row, bool) Action { return Keep }
	if o.Start != nil {
		k.start = func(r *row, rebooted bool) Action { return o.Start(typed[S, T](r), rebooted) }
	}
	k.engine = o.Engine
	k.listed = func(r *row, content any) bool { return o.Listed(typed[S, T](r), content) }
	k.used = func(r *row) bool { return r.Acked }
	if o.Used != nil {
		k.used = func(r *row) bool { return o.Used(typed[S, T](r)) }
	}
	k.stale = k.isUnlisted
	if o.Stale != nil {
		k.stale = func(ctx context.Context, r *row) (bool, error) { return o.Stale(ctx, typed[S, T](r)) }
	}
	k.inUse = func(*row) bool { return false }
	if o.InUse != nil {
		k.inUse = func(r *row) bool { return o.InUse(typed[S, T](r)) }
	}
	k.gone = func(*row) {}
	if o.Removed != nil {
		k.gone = func(r *row) { o.Removed(typed[S, T](r)) }
	}
	if l, ok := target.(Lister[S, T]); ok {
		k.list = func(ctx context.Context) iter.Seq2[*row, error] { return imported(l.List(ctx)) }
	}
	s.register(k)
	return &Kind[S, T]{k}
}

// Ref names a row for the Owners of other rows.
func (k *Kind[S, T]) Ref(key string) string { return ref(k.name, key) }

// Set stores the intent and has the target fulfil it. It answers what the target answered.
//
// A Set of what this process was answered already, with the same spec, claims and owners, makes no
// call of the target. A Set of a key that is being deleted completes the deletion first, as it does
// for the holder of a claim.
//
// After an error nothing of this call is left, or its cleanup is committed and repeated; an
// existing row has its previous spec again. Errors: IsConflict, IsOwnerGone, IsPending if an
// earlier deletion could not be completed, ErrAbsent, ErrFull, ErrClosed, or what the target
// answered.
func (k *Kind[S, T]) Set(ctx context.Context, q Request[S]) (T, error) {
	last, err := k.set(ctx, wanted(q), any(*new(T)), setting{existing: q.Existing})
	if err != nil {
		return *new(T), err
	}
	t, _ := last.(T)
	return t, nil
}

// SetLater stores the intent, and Run calls the target. It takes the place of an earlier Set and of
// a deletion that is not complete, so Ensure must find what earlier calls of the target left.
// Errors: IsConflict, IsOwnerGone, ErrAbsent, ErrFull, ErrClosed.
func (k *Kind[S, T]) SetLater(ctx context.Context, q Request[S]) error {
	_, err := k.set(ctx, wanted(q), any(*new(T)), setting{later: true, existing: q.Existing})
	return err
}

// Remove stores the deletion of a row, deletes the rows that it owns and are being deleted, and
// makes one attempt within ctx. An absent row is no error. An error of IsPending says that the
// deletion is committed and will be repeated; after any other error nothing has changed.
func (k *Kind[S, T]) Remove(ctx context.Context, key string) error {
	return k.remove(ctx, key, removal{})
}

// RemoveTree is Remove of a row and of all rows that it owns, which are stored in one commit. After
// an error that is not of IsPending a crash may undo a part.
func (k *Kind[S, T]) RemoveTree(ctx context.Context, key string) error {
	return k.remove(ctx, key, removal{tree: true})
}

// RemoveTreeIf is RemoveTree if met, which is called under the row's lock, returns true for the row. It
// is not called for a row that is being deleted. An error of met is returned and nothing has changed.
func (k *Kind[S, T]) RemoveTreeIf(
	ctx context.Context, key string, met func(context.Context, Row[S, T]) (bool, error),
) error {
	return k.remove(ctx, key, removal{tree: true, met: func(ctx context.Context, r *row) (bool, error) {
		return met(ctx, typed[S, T](r))
	}})
}

// RemoveLater is Remove without an attempt: Run calls the target.
func (k *Kind[S, T]) RemoveLater(ctx context.Context, key string) error {
	return k.remove(ctx, key, removal{later: true})
}

// Forget removes a row without a call of the target. What it stands for stays.
func (k *Kind[S, T]) Forget(ctx context.Context, key string) error {
	return k.remove(ctx, key, removal{forget: true})
}

// Import stores rows in one commit, without a call of the target: those of an earlier version's
// files, or those that Repeat has ensured. Keys that have a row are left out, and no row may own
// another of the same call. Of the rows only Key, Phase, Spec, Last, Done, Claims, Owners, Engine,
// Acked and Unconfirmed count. Run completes the deletions.
func (k *Kind[S, T]) Import(ctx context.Context, rows []Row[S, T]) error {
	found := map[string]Row[S, T]{}
	for _, r := range rows {
		found[k.Ref(r.Key)] = r
	}
	_, err := k.store.importRows(ctx, slices.Collect(maps.Keys(found)), func(name string) (*row, error) {
		return k.imported(found[name]), nil
	})
	return err
}

// ImportFound stores the row that find returns, unless the key has a row. find is called under the
// row's lock, so what it reads of an object is not older than the end of a deletion; nil: there is
// none.
func (k *Kind[S, T]) ImportFound(
	ctx context.Context, key string, find func(context.Context) (*Row[S, T], error),
) (imported bool, err error) {
	n, err := k.store.importRows(ctx, []string{k.Ref(key)}, func(string) (*row, error) {
		r, err := find(ctx)
		if err != nil || r == nil {
			return nil, err
		}
		return k.imported(*r), nil
	})
	return n > 0, err
}

// imported returns a row as the store has it.
func (k *Kind[S, T]) imported(r Row[S, T]) *row {
	gen := k.store.nextGen()
	return &row{
		Object: Object{Key: r.Key, Incarnation: cmp.Or(r.Incarnation, gen), Earlier: r.Earlier}, kind: k.kind,
		Gen: gen, Phase: r.Phase, Spec: r.Spec, Last: r.Last, Done: r.Done, Claims: r.Claims, Owners: r.Owners,
		Engine: r.Engine, Boot: k.store.boot, Acked: r.Acked, Unconfirmed: r.Unconfirmed,
	}
}

// Note changes what is stored of a row's object without a call of the target. The change is written
// with the next commit. A Set in progress overwrites it.
func (k *Kind[S, T]) Note(key string, change func(T) T) {
	k.store.noteInPlace(ref(k.name, key), func(r *row) {
		t, _ := r.Last.(T)
		r.Last = change(t)
	})
}

// NoteHeard notes whether the engine got the answer of the last Set. Until the next Set, a row
// without that is judged as if the Set was not answered, with the rows that it owns: no engine can
// have it. It is stored with the next commit.
func (k *Kind[S, T]) NoteHeard(key string, heard bool) {
	if r := k.store.row(ref(k.name, key)); r == nil || r.Unheard == !heard {
		return
	}
	k.store.noteInPlace(ref(k.name, key), func(r *row) { r.Unheard = !heard })
}

// Ack notes that a later call had to do with a row, which is therefore no orphan unless its engine
// is known. A Set of its key and the engine's list do that too. It is stored with the next commit.
func (k *Kind[S, T]) Ack(key string) { k.store.ack(ref(k.name, key), "") }

// Get returns a row, also one that is being deleted.
func (k *Kind[S, T]) Get(key string) (Row[S, T], bool) {
	r := k.store.row(ref(k.name, key))
	if r == nil {
		return Row[S, T]{}, false
	}
	return typed[S, T](r), true
}

// Holder returns the row of this kind that has the claim, also by its answer.
func (k *Kind[S, T]) Holder(claim string) (Row[S, T], bool) {
	r := k.store.holder(claim)
	if r == nil || r.kind != k.kind {
		return Row[S, T]{}, false
	}
	return typed[S, T](r), true
}

// Rows yields a snapshot of the rows, in no order.
func (k *Kind[S, T]) Rows() iter.Seq[Row[S, T]] {
	return k.each(func(t *table) iter.Seq2[string, *row] { return maps.All(t.rows) })
}

// Unacked yields the rows that no later call has named and no engine has listed, in no order.
func (k *Kind[S, T]) Unacked() iter.Seq[Row[S, T]] {
	return k.each(func(t *table) iter.Seq2[string, *row] { return maps.All(t.unacked) })
}

// ByIndex yields the rows whose Spec is Indexed by the value, in no order.
func (k *Kind[S, T]) ByIndex(value string) iter.Seq[Row[S, T]] {
	return k.each(func(t *table) iter.Seq2[string, *row] { return t.indexed.of(value) })
}

func (k *Kind[S, T]) each(of func(*table) iter.Seq2[string, *row]) iter.Seq[Row[S, T]] {
	return func(yield func(Row[S, T]) bool) {
		for _, r := range k.snapshot(of) {
			if !yield(typed[S, T](r)) {
				return
			}
		}
	}
}

// Retry makes every unfinished row of the kind due now, as when its target is available again.
func (k *Kind[S, T]) Retry() { k.kind.retry() }

// Repeat has Ensure called for a row, without waiting for it, as when its object has ended. After
// failures it is called when the backoff of so many is over. Repeat waits for calls of the target
// in progress for the row.
func (k *Kind[S, T]) Repeat(ctx context.Context, key string, failures int, cause error) error {
	return k.store.repeat(ctx, ref(k.name, key), failures, cause)
}

// Due returns the time of the next attempt for a row; the zero Time if none is planned.
func (k *Kind[S, T]) Due(key string) time.Time { return k.queue.due(ref(k.name, key)) }

// Wake makes the deletion of an object due now, as when what it waited for (ErrWaiting) has
// come. An object without such a row is no error.
func (k *Kind[S, T]) Wake(o Object) { k.store.wake(k.kind, o) }

func wanted[S any](q Request[S]) *row {
	return &row{
		Object: Object{Key: q.Key}, Spec: q.Spec,
		Claims: slices.Clone(q.Claims), Owners: slices.Clone(q.Owners), Engine: q.Engine,
	}
}

// typed is not inlined: each kind calls it from many places, which costs 10 KB of the binary.
//
//go:noinline
func typed[S, T any](r *row) Row[S, T] {
	spec, _ := r.Spec.(S)
	last, _ := r.Last.(T)
	return Row[S, T]{
		Object: r.Object, Gen: r.Gen, Phase: r.Phase, Spec: spec, Last: last,
		Done: r.Done, Claims: r.Claims, Owners: r.Owners, Engine: r.Engine, Boot: r.Boot,
		Acked: r.Acked, Unconfirmed: r.Unconfirmed, Tries: r.Tries, Err: r.Err,
	}
}

func imported[S, T any](list iter.Seq2[Found[S, T], error]) iter.Seq2[*row, error] {
	return func(yield func(*row, error) bool) {
		for f, err := range list {
			r := &row{
				Object: f.Object, Phase: cmp.Or(f.Phase, Wanted), Spec: f.Spec, Last: f.Last,
				Claims: f.Claims, Owners: f.Owners, Engine: f.Engine,
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

func same(a, b *row) bool {
	return a.Engine == b.Engine && reflect.DeepEqual(a.Spec, b.Spec) && slices.Equal(a.Claims, b.Claims) &&
		slices.Equal(a.Owners, b.Owners)
}
