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
	Engine string // id of the engine that asked or that has listed it; "" is that of its owner
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
	Key         string `json:"key"` // of the row: the engine's id
	Incarnation uint64 `json:"incarnation"`
	// Earlier is set if the object of an earlier incarnation could still appear when the key was
	// set again, so that the two need different names in the target.
	Earlier bool `json:"earlier,omitempty"`
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
	Phase  Phase // Deleting if a host has begun to delete it; 0 is Wanted
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
	// Owners are rows (Kind.Ref) that must outlive this one. Each must have a row that is not being
	// deleted. An owner that the key's row has already may have none, as an import brings rows in
	// any order.
	Owners []string
	Engine string
	// Existing fails with ErrAbsent unless the key has a row that is not being deleted.
	Existing bool
}

// Indexed is a Spec whose rows Kind.ByIndex finds.
type Indexed interface {
	// Index returns values that other rows may share. It must not call the store.
	Index() []string
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
	// call the store but for Get, Holder, Rows and ByIndex.
	Removed func(r Row[S, T])
	// Answered returns exclusive resources that the target has chosen, such as an address. The row
	// has claims on them beside those of its Request. A claim passes from another row to the
	// newer answer, as the other row's object must be gone. It must not call the store. nil is none.
	Answered func(r Row[S, T]) []string
	// MaxRows is how many rows there may be: a Set beyond fails with ErrFull. 0 is no limit.
	MaxRows int
	// Start chooses what becomes of each row at Store.Start; nil keeps all. rebooted says that
	// the row was last set before the kernel was started.
	Start func(r Row[S, T], rebooted bool) Action
	// Engine lists what the engine has; nil if rows of this kind are never orphans.
	Engine Engine
	// Listed reports whether a list of Engine has the row's object, by its List.Content.
	Listed func(r Row[S, T], content any) bool
	// Used reports whether a row that no engine has listed was used, so that an engine which is not
	// asked must have it; nil: a later call named it.
	Used func(r Row[S, T]) bool
	// Stale reports whether a Wanted row of which another wants a claim can be deleted, with the
	// rows that it owns. nil: the engine's list does not have it. A kind whose engine waits for Set
	// has its own, as the engine may not answer then.
	Stale func(ctx context.Context, r Row[S, T]) (bool, error)
	// StaleAfter is how long after its last Set a row can be stale, as an engine may take so long
	// to note an answer; 0 is 10 s, and less is no time.
	StaleAfter time.Duration
	// InUse reports whether something outside the engine still uses the row's object, such
	// as a namespace that holds its interface. A row is also in use if one that it owns is. nil is
	// never.
	InUse func(r Row[S, T]) bool
}

// Engine is listed once for all kinds that have the same one, as == tells.
type Engine interface {
	List(ctx context.Context) (List, error)
}

// List is a complete list of what an engine has.
type List struct {
	Engine  string // id of the engine; rows of other engines are not judged
	Content any
}

// ref names a row among those of all kinds.
func ref(kind, key string) string { return kind + "/" + key }
