package reconcile

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// Phase is what a row's owner last asked for.
type Phase uint8

// The phases of a row. A row whose deletion is complete is gone.
const (
	Wanted   Phase = iota + 1 // Set was called
	Deleting                  // Remove was called, a Set failed, or the row is an orphan
)

func (p Phase) String() string {
	switch p {
	case Wanted:
		return "wanted"
	case Deleting:
		return "deleting"
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

// Row is one intent. Its values must not be changed by those who read it.
type Row[S, T any] struct {
	Object
	Gen    uint64 // increases with every Set and Remove of the store
	Phase  Phase
	Spec   S    // what was asked
	Last   T    // what the target last answered
	Done   bool // the target has answered the last Set
	Claims []string
	Owners []string
	Engine string // id of the engine that asked; "" if it has none
	Boot   string // boot id of the last Set
	Acked  bool   // a later call named the key, or the engine listed it
	// Unconfirmed is set if it is unknown whether the target created the object.
	Unconfirmed bool
	Tries       int    // failed attempts since the last success
	Err         string // of the last attempt
}

// Object identifies what a row stands for in its target. A key that is set again after its row
// was removed has a new incarnation, so that a late delete cannot hit the new object.
type Object struct {
	Key         string // of the row: the engine's id
	Incarnation uint64
	// Earlier is set if the key had another incarnation, whose create may still have an effect.
	Earlier bool
}

// Target creates and deletes the objects of one kind. Calls for one key follow one another.
type Target[S, T any] interface {
	// Ensure makes the object agree with the spec and answers what was made of it. It is
	// idempotent and finds an object that an earlier call made. last is the previous answer,
	// the zero T without one; after a crash it may be older than the object. After an error
	// of a key's first Ensure the T says what was done so far, for Delete.
	//
	// An error of Refused says that nothing was changed. An error of Unconfirmed, or of the
	// context, says that it is unknown whether the object will exist.
	Ensure(ctx context.Context, o Object, spec S, last T) (T, error)

	// Delete deletes the object and what Ensure did on the way to it. It returns ErrAbsent if
	// there was nothing to delete, which is a success. An error of Remaining has the T of the
	// next call.
	Delete(ctx context.Context, o Object, spec S, last T) error
}

// Lister is a Target whose objects can be listed. Objects without a row are imported.
type Lister[S, T any] interface {
	// List yields the objects of this store, filtered by the target. After an error the list
	// is not complete.
	List(ctx context.Context) iter.Seq2[Found[S, T], error]
}

// Found is an object as its target describes it: what its row is made of if it has none.
type Found[S, T any] struct {
	Object
	Spec   S
	Last   T
	Claims []string
	Owners []string
	Engine string
}

// Request is what a Set asks for.
type Request[S any] struct {
	Key  string
	Spec S
	// Claims are exclusive resources of the store, such as "address/POOL/10.0.0.5". No two
	// rows have the same claim.
	Claims []string
	// Owners are rows (Kind.Ref) that must outlive this one.
	Owners []string
	Engine string
}

// Action is what becomes of a row when the store is opened.
type Action uint8

// The actions. Rows that are being deleted are deleted unless the action is Drop.
const (
	// Keep does nothing, unless the kind has Confirm and the row's Set was cut off, which is
	// then deleted.
	Keep   Action = iota
	Ensure        // call the target's Ensure
	Delete        // call the target's Delete
	Drop          // remove the row without a call
)

// Options are the properties of a kind.
type Options[S, T any] struct {
	// Timeout bounds each call of the target that no caller waits for, and the cleanup after
	// a failed Set; 0 is 30 s.
	Timeout time.Duration
	// Confirm commits the answers of Ensure before Set returns, and the removal of a row as soon
	// as its deletion is complete. Without it both are written with a later commit, and a crash
	// may lose them.
	Confirm bool
	// Removed is called when a row is gone; nil is not called. It must not wait, and must not
	// call the store but for Get, Holder and Rows.
	Removed func(r Row[S, T])
	// Background makes Set and Remove return when the intent is stored: Run calls the target,
	// and no caller waits for it. A Set replaces a deletion that is not complete, so Ensure must
	// find what earlier calls of the target left. Rows have no claims and no owners, and Confirm
	// does not apply.
	Background bool
	// MaxRows is how many rows there may be: a Set beyond fails with ErrFull. 0 is no limit.
	MaxRows int
	// Start chooses what becomes of each row at Store.Start; nil keeps all. rebooted says that
	// the row was last set before the kernel was started.
	Start func(r Row[S, T], rebooted bool) Action
	// Engine lists what the engine has; nil if rows of this kind are never orphans.
	Engine func(ctx context.Context) (Listing[S, T], error)
	// InUse reports whether something outside the engine still uses the row's object, such
	// as a namespace that holds its interface. nil is never.
	InUse func(r Row[S, T]) bool
}

// Listing is a complete list of what an engine has.
type Listing[S, T any] struct {
	Engine string // id of the engine; rows of other engines are not judged
	// Has reports whether the list has the row's object.
	Has func(r Row[S, T]) bool
}

// ref names a row among those of all kinds.
func ref(kind, key string) string { return kind + "/" + key }
