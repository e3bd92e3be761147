package reconcile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/atomicfile"
)

// journal is where rows are stored.
type journal interface {
	// commit writes the values, deletes the keys that have none, and notes the last Gen, in one
	// transaction.
	commit(changes map[string][]byte, gen uint64) error
	// reserve fails if there is no room for new rows beside what deletions need.
	reserve() error
	close() error
}

// content is what a journal has when it is opened.
type content struct {
	id   string            // of the store, created with the file
	gen  uint64            // the highest that was given to a row
	rows map[string][]byte // by ref
}

const (
	format = "1"
	// lockWait is how long Open waits for another process that is ending.
	lockWait = 2 * time.Second
	// reserved is the room in bytes that deletions have on a full disk: it is allocated behind
	// the end of the file.
	reserved = 1 << 20
)

var (
	bucketMeta = []byte("meta")
	bucketRows = []byte("rows")
	keyFormat  = []byte("format")
	keyID      = []byte("id")
	keyGen     = []byte("gen")
)

// boltJournal is a journal in a bbolt file.
type boltJournal struct {
	db       *bbolt.DB
	file     *os.File     // the same file, to allocate its blocks
	reserved atomic.Int64 // the size of the file when the blocks behind its end were allocated
}

// openBolt opens the file, and creates it if it is missing. A damaged file is renamed to
// PATH.damaged, and an empty one takes its place.
func openBolt(path, boot string, volatile bool, log *slog.Logger) (*boltJournal, *content, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, err
	}
	if volatile {
		if err := discardOtherBoot(path, boot); err != nil {
			return nil, nil, err
		}
	}
	j, c, err := tryBolt(path)
	if errors.Is(err, errDamaged) {
		aside := damagedPath(path, strconv.FormatInt(time.Now().Unix(), 10))
		log.Error("store damaged, starting empty", "path", path, "kept", aside, "err", err)
		if err := os.Rename(path, aside); err != nil {
			return nil, nil, err
		}
		j, c, err = tryBolt(path)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("store %s: %w", path, err)
	}
	j.db.NoSync = volatile
	if err := j.reserve(); err != nil {
		log.Warn("no room for new rows", "path", path, "err", err)
	}
	return j, c, nil
}

// discardOtherBoot removes a file that was written before the kernel was started. It must not be
// opened: it was not synced, and a power failure leaves any mixture of its pages.
func discardOtherBoot(path, boot string) error {
	note := bootPath(path)
	if was, err := os.ReadFile(note); err == nil && string(was) == boot {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return atomicfile.WriteVolatile(note, []byte(boot), 0o600)
}

var errDamaged = errors.New("file is damaged")

func tryBolt(path string) (_ *boltJournal, _ *content, err error) {
	if err := view(path, lockWait, func(*bbolt.Tx) error { return nil }); err != nil {
		return nil, nil, err
	}
	defer recoverDamage(&err)()
	// The list of free pages is stored: without it bbolt looks for them in a goroutine of its
	// own, where a damaged page is a panic that cannot be recovered.
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout: lockWait, FreelistType: bbolt.FreelistMapType,
	})
	if err != nil {
		return nil, nil, openError(err)
	}
	c := &content{rows: map[string][]byte{}}
	err = db.Update(c.read)
	if err != nil && !errors.Is(err, ErrNewer) && !errors.Is(err, unix.ENOSPC) {
		err = fmt.Errorf("%w: %w", errDamaged, err)
	}
	var file *os.File
	if err == nil {
		file, err = os.OpenFile(path, os.O_WRONLY, 0)
	}
	if err != nil {
		_ = db.Close()
		return nil, nil, err
	}
	return &boltJournal{db: db, file: file}, c, nil
}

// view calls read for a file that exists and is not empty. A file that was cut off is damaged: to
// read behind its end is a fatal signal.
func view(path string, wait time.Duration, read func(*bbolt.Tx) error) (err error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if least := int64(2 * os.Getpagesize()); info.Size() < least { // the two meta pages
		return fmt.Errorf("%w: %d bytes, want at least %d", errDamaged, info.Size(), least)
	}
	defer recoverDamage(&err)()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: wait})
	if err != nil {
		return openError(err)
	}
	defer func() { _ = db.Close() }()
	return db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("%w: %d bytes of %d", errDamaged, info.Size(), tx.Size())
		}
		return read(tx)
	})
}

func openError(err error) error {
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return ErrInUse
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum),
		errors.Is(err, bolterrors.ErrVersionMismatch):
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return err
}

// recoverDamage turns a panic of bbolt over a damaged page into an error.
func recoverDamage(err *error) func() {
	old := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(old)
		if p := recover(); p != nil {
			*err = fmt.Errorf("%w: %v", errDamaged, p)
		}
	}
}

func (c *content) read(tx *bbolt.Tx) error {
	meta, err := tx.CreateBucketIfNotExists(bucketMeta)
	if err != nil {
		return err
	}
	switch has := string(meta.Get(keyFormat)); has {
	case format:
	case "":
		if err := meta.Put(keyFormat, []byte(format)); err != nil {
			return err
		}
		if err := meta.Put(keyID, []byte(uuid.NewString())); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w: format %q, want %q", ErrNewer, has, format)
	}
	c.id = string(meta.Get(keyID))
	if text := meta.Get(keyGen); len(text) == 8 {
		c.gen = binary.BigEndian.Uint64(text)
	}
	rows, err := tx.CreateBucketIfNotExists(bucketRows)
	if err != nil {
		return err
	}
	return rows.ForEach(func(key, value []byte) error {
		c.rows[string(key)] = append([]byte(nil), value...)
		return nil
	})
}

func (j *boltJournal) commit(changes map[string][]byte, gen uint64) error {
	err := j.db.Update(func(tx *bbolt.Tx) error {
		text := binary.BigEndian.AppendUint64(nil, gen)
		if err := tx.Bucket(bucketMeta).Put(keyGen, text); err != nil {
			return err
		}
		rows := tx.Bucket(bucketRows)
		for key, value := range changes {
			if value == nil {
				if err := rows.Delete([]byte(key)); err != nil {
					return err
				}
			} else if err := rows.Put([]byte(key), value); err != nil {
				return err
			}
		}
		return nil
	})
	if _, named := errors.AsType[*fs.PathError](err); err != nil && !named {
		return fmt.Errorf("%s: %w", j.db.Path(), err)
	}
	return err
}

// reserve allocates the blocks of the file and of what deletions need behind its end, once for each
// size of the file. It does nothing on file systems that cannot allocate.
func (j *boltJournal) reserve() error {
	info, err := j.file.Stat()
	if err != nil || info.Size() == j.reserved.Load() {
		return err
	}
	err = unix.EINTR
	for errors.Is(err, unix.EINTR) {
		err = unix.Fallocate(int(j.file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, info.Size()+reserved)
	}
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	j.reserved.Store(info.Size())
	return nil
}

func (j *boltJournal) close() error { return errors.Join(j.file.Close(), j.db.Close()) }
