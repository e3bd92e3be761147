package engine

import (
	"context"
	"errors"
	"iter"
)

// MaxKey is the largest size of a key in bytes. No key is empty.
const MaxKey = 32768

var (
	// ErrNotDurable reports that every reader sees a change that the disk has not confirmed.
	ErrNotDurable = errors.New("the change is stored, but not confirmed by the disk")
	// ErrConflict reports that another process has changed the store first. Nothing was written.
	ErrConflict = errors.New("another process has changed the store")
)

// Tx is a transaction on named tables. A table maps keys to values and orders them by key. A table
// without keys and a table that was never written to are the same. A table is below another one if
// its name starts with that one's name and a slash; what follows the slash is no key of that one.
//
// The keys and values that a Tx returns stay valid until it ends, and the caller does not change
// them. The caller does not change a table while it reads that table with Seek.
type Tx interface {
	// Get returns the value of a key. It is nil if the key is absent, and not nil if it is empty.
	Get(table string, key []byte) []byte
	// Put sets the value of a key. The caller does not change the value afterwards.
	Put(table string, key, value []byte) error
	// Delete deletes a key. An absent key is no error.
	Delete(table string, key []byte) error
	// Seek returns the keys from the first one that is not below from, in ascending order.
	Seek(table string, from []byte) iter.Seq2[[]byte, []byte]
	// Floor returns the greatest key that is not above key; nil if there is none.
	Floor(table string, key []byte) (k, v []byte)
	// Clear deletes all keys of a table and of the tables below it.
	Clear(table string) error
}

// Writer is a transaction that changes a store.
type Writer interface {
	Tx
	// Commit makes the changes visible and durable, and ends the transaction. After an error nothing
	// is visible, unless the error is ErrNotDurable.
	Commit() error
	// Rollback drops the changes and ends the transaction. After Commit it does nothing.
	Rollback()
}

// Store keeps tables.
type Store interface {
	// View calls read with a transaction that sees one state of the store.
	View(read func(Tx) error) error
	// Begin opens the only Writer of this process. It waits until the previous one has ended. A store
	// that asks a server gives up when ctx ends.
	Begin(ctx context.Context) (Writer, error)
	// Location returns where the store is, such as the path of a file, for error messages.
	Location() string
}
