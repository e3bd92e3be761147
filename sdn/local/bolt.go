package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"strings"
	"sync"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// boltStore is the engine's store in a bbolt file.
type boltStore struct {
	db *bbolt.DB
	// commit is bbolt's Commit. Tests replace it to play a disk that fails.
	commit func(*bbolt.Tx) error
	// writing is held by the open Writer, which owns unsynced: the disk may not have the last change.
	writing  sync.Mutex
	unsynced bool
}

// NewStore returns the store of an engine in a bbolt file that has its tables.
func NewStore(db *bbolt.DB) engine.Store {
	return &boltStore{db: db, commit: (*bbolt.Tx).Commit}
}

// Location implements engine.Store.
func (s *boltStore) Location() string { return s.db.Path() }

// View implements engine.Store.
func (s *boltStore) View(read func(engine.Tx) error) error {
	return closed(s.db.View(func(b *bbolt.Tx) error { return read(newBoltTx(b)) }))
}

// Begin implements engine.Store. It first syncs a change that the disk has not confirmed: bbolt
// would overwrite the pages that the disk still needs if that change is lost.
func (s *boltStore) Begin(context.Context) (engine.Writer, error) {
	s.writing.Lock()
	b, err := s.db.Begin(true)
	if err != nil {
		s.writing.Unlock()
		return nil, closed(err)
	}
	w := &boltWriter{newBoltTx(b), s}
	if s.unsynced {
		if err := s.db.Sync(); err != nil {
			w.Rollback()
			return nil, s.unwritten(err)
		}
		s.unsynced = false
	}
	return w, nil
}

// closed turns the use of a closed store into an error that IsUnavailable.
func closed(err error) error {
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return sdn.Unavailable(err, "store", "the provider was closed")
	}
	return err
}

// unwritten describes a failure to write the store.
func (s *boltStore) unwritten(err error) error {
	if full := full(err); sdn.IsExhausted(full) {
		return full
	}
	var failed *os.PathError
	if !errors.As(err, &failed) {
		err = fmt.Errorf("sync %s: %w", s.db.Path(), err)
	}
	return sdn.Unavailable(sdn.OfHost(err), "store", "the change could not be written")
}

// boltWriter is a transaction that changes the store.
type boltWriter struct {
	*boltTx
	store *boltStore // nil after the end
}

// Commit implements engine.Writer.
func (w *boltWriter) Commit() error {
	s := w.store
	if s == nil {
		return bolterrors.ErrTxClosed
	}
	defer w.Rollback()
	id := w.b.ID()
	err := s.commit(w.b)
	switch {
	case err == nil:
		return nil
	case s.stored(id):
		s.unsynced = true
		return notDurable{s.unwritten(err)}
	}
	return s.unwritten(err)
}

// notDurable makes an error engine.ErrNotDurable and keeps its text.
type notDurable struct{ error }

// Is reports whether target is engine.ErrNotDurable.
func (e notDurable) Is(target error) bool { return target == engine.ErrNotDurable }

// Unwrap returns the error with its text.
func (e notDurable) Unwrap() error { return e.error }

// Rollback implements engine.Writer.
func (w *boltWriter) Rollback() {
	if w.store != nil {
		_ = w.b.Rollback() // an error after Commit, which has ended it
		w.store.writing.Unlock()
		w.store = nil
	}
}

// stored reports whether readers see a transaction whose Commit failed. Then only its last step
// failed, the wait for the disk.
func (s *boltStore) stored(id int) bool {
	b, err := s.db.Begin(false)
	if err != nil {
		return false
	}
	defer func() { _ = b.Rollback() }()
	return b.ID() >= id
}

// boltTx is a transaction on buckets. A table is the bucket of its name. The bucket of a table whose
// name has slashes is in that of the table above it. The buckets of tables without a slash are made
// with the store and stay.
type boltTx struct {
	b     *bbolt.Tx
	found map[string]*bbolt.Bucket // by table
}

func newBoltTx(b *bbolt.Tx) *boltTx {
	return &boltTx{b: b, found: map[string]*bbolt.Bucket{}}
}

// buckets is what a transaction and a bucket have in common.
type buckets interface {
	Bucket(name []byte) *bbolt.Bucket
	CreateBucket(name []byte) (*bbolt.Bucket, error)
	DeleteBucket(name []byte) error
}

// packed is how full the pages of a new bucket get. It is written in the order of its keys, so its
// pages need little room for more.
const packed = 0.9

// bucket returns the bucket of a table; nil if it is absent and create is not set.
func (t *boltTx) bucket(table string, create bool) (*bbolt.Bucket, error) {
	if b := t.found[table]; b != nil {
		return b, nil
	}
	in, name, err := t.above(table, create)
	if in == nil {
		return nil, err
	}
	b := in.Bucket([]byte(name))
	if b == nil && create {
		if b, err = in.CreateBucket([]byte(name)); err != nil {
			return nil, fmt.Errorf("create table %s: %w", table, err)
		}
		b.FillPercent = packed
	}
	if b != nil {
		t.found[table] = b
	}
	return b, nil
}

// above returns what the bucket of a table is in, and its name there; nil if that is absent.
func (t *boltTx) above(table string, create bool) (in buckets, name string, err error) {
	i := strings.LastIndexByte(table, '/')
	if i < 0 {
		return t.b, table, nil
	}
	b, err := t.bucket(table[:i], create)
	if b == nil {
		return nil, "", err
	}
	return b, table[i+1:], nil
}

// Get implements engine.Tx.
func (t *boltTx) Get(table string, key []byte) []byte {
	b, _ := t.bucket(table, false)
	if b == nil {
		return nil
	}
	return b.Get(key)
}

// Put implements engine.Tx. A nil value becomes an empty one: bbolt would return nil in the same
// transaction, which is how it marks the bucket of a table below.
func (t *boltTx) Put(table string, key, value []byte) error {
	b, err := t.bucket(table, true)
	if err != nil {
		return err
	}
	if value == nil {
		value = []byte{}
	}
	return b.Put(key, value)
}

// Delete implements engine.Tx.
func (t *boltTx) Delete(table string, key []byte) error {
	b, _ := t.bucket(table, false)
	if b == nil {
		return nil
	}
	return b.Delete(key)
}

// Seek implements engine.Tx.
func (t *boltTx) Seek(table string, from []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(k, v []byte) bool) {
		b, _ := t.bucket(table, false)
		if b == nil {
			return
		}
		c := b.Cursor()
		for k, v := c.Seek(from); k != nil; k, v = c.Next() {
			if v != nil && !yield(k, v) {
				return
			}
		}
	}
}

// Floor implements engine.Tx.
func (t *boltTx) Floor(table string, key []byte) (k, v []byte) {
	b, _ := t.bucket(table, false)
	if b == nil {
		return nil, nil
	}
	c := b.Cursor()
	k, v = c.Seek(key)
	if v != nil && bytes.Equal(k, key) {
		return k, v
	}
	past := k == nil
	if !past {
		if k, v = c.Prev(); v != nil {
			return k, v
		}
	}
	// Pages that this transaction has emptied stay until it commits. On one of them bbolt's Prev returns
	// nil although it can go on, and its Last never returns if there are no others.
	first, _ := b.Cursor().First()
	if first == nil || bytes.Compare(first, key) > 0 {
		return nil, nil
	}
	if past {
		k, v = c.Last()
	}
	for v == nil && !bytes.Equal(k, first) { // also past the bucket of a table below
		k, v = c.Prev()
	}
	if v == nil {
		return nil, nil
	}
	return k, v
}

// Clear implements engine.Tx.
func (t *boltTx) Clear(table string) error {
	maps.DeleteFunc(t.found, func(name string, _ *bbolt.Bucket) bool {
		return name == table || strings.HasPrefix(name, table+"/")
	})
	in, name, _ := t.above(table, false)
	if in == nil {
		return nil
	}
	if err := in.DeleteBucket([]byte(name)); err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
		return fmt.Errorf("clear table %s: %w", table, err)
	}
	if name != table {
		return nil
	}
	_, err := in.CreateBucket([]byte(name))
	return err
}
