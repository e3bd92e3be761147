package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kuryr/kuryr/internal/atomicfile"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// errLocked says that another process has the store open.
var errLocked = errors.New("another kuryr has it open")

// lockPatience is how long Open waits for a process that is just ending.
const lockPatience = 2 * time.Second

// openStore opens the file, or makes it, and brings it to the schema of this program. Nothing that is there is ever
// replaced: what cannot be trusted, be it an empty file, is an error that says what to do.
func openStore(ctx context.Context, path string, s schema, installation string, noSync bool) (*bbolt.DB, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("folder of the store: %w", err)
	}
	err := verifyFile(ctx, path)
	switch {
	case err == nil:
		err = removeUnfinished(path)
	case errors.Is(err, os.ErrNotExist):
		err = s.create(path, installation, noSync)
	}
	if err != nil {
		return nil, err
	}
	db, err := openBolt(path, boltOptions(noSync))
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("store %s: %w", path, errLocked)
	case err != nil:
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	if err := s.prepare(db, installation); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	if err := checkTables(db); err != nil {
		_ = db.Close()
		return nil, damagedStore(path, err)
	}
	return db, nil
}

// checkTables reports a table that is missing: to the engine it would be empty.
func checkTables(db *bbolt.DB) error {
	return db.View(func(b *bbolt.Tx) error {
		for _, name := range engine.Tables() {
			if b.Bucket([]byte(name)) == nil {
				return fmt.Errorf("table %s is missing", name)
			}
		}
		return nil
	})
}

// create makes a new store under another name and gives it its own when it is whole. So a file that is empty or cut off is never one that
// was just being made.
func (s schema) create(path, installation string, noSync bool) error {
	if err := removeUnfinished(path); err != nil {
		return err
	}
	temp := path + unfinished
	db, err := openBolt(temp, boltOptions(noSync))
	if err != nil {
		return fmt.Errorf("make store %s: %w", path, full(err))
	}
	if err := errors.Join(s.prepare(db, installation), db.Close()); err != nil {
		return fmt.Errorf("make store %s: %w", path, err)
	}
	failpoint.Here("local.create.made")
	// Unlike a renaming, a link does not replace the store of another kuryr that was quicker; that one is then found locked.
	if err := os.Link(temp, path); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make store %s: %w", path, full(err))
	}
	failpoint.Here("local.create.linked")
	if err := removeUnfinished(path); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// unfinished ends the name of a store that is being made.
const unfinished = ".new"

// removeUnfinished removes what a killed create left.
func removeUnfinished(path string) error {
	if err := os.Remove(path + unfinished); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("store %s: %w", path, err)
	}
	return nil
}

func boltOptions(noSync bool) *bbolt.Options {
	return &bbolt.Options{
		FreelistType: bbolt.FreelistMapType, NoFreelistSync: true, NoStatistics: true, Timeout: lockPatience, NoSync: noSync,
	}
}

// openBolt is bbolt.Open, which panics over damage that it finds by itself.
func openBolt(path string, o *bbolt.Options) (db *bbolt.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = damagedStore(path, fmt.Errorf("%v", p))
		}
	}()
	return bbolt.Open(path, 0o600, o)
}

// verifyFile checks a file under its lock. The error is os.ErrNotExist if there is none.
func verifyFile(ctx context.Context, path string) error {
	return withVerified(ctx, path, func(*os.File, int64) error { return nil })
}

// withVerified is verifyFile and then do, with the file and its size, under the same lock.
func withVerified(ctx context.Context, path string, do func(f *os.File, size int64) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer f.Close()
	if err := lockFile(ctx, f); err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	if err := verify(f, info.Size()); err != nil {
		return damagedStore(path, err)
	}
	return do(f, info.Size())
}

func damagedStore(path string, cause error) error {
	return fmt.Errorf("store %s is damaged: %w; put a backup in its place with `kuryr sdn restore FILE`, or move it away to start empty", path, cause)
}

// lockFile takes the lock that bbolt also takes; closing f lets it go. The kernel has no lock that both waits and can be told
// to stop waiting, so this asks again and again for a short while, as bbolt does.
func lockFile(ctx context.Context, f *os.File) error {
	deadline := time.NewTimer(lockPatience)
	defer deadline.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return errLocked
		case <-again.C:
		}
	}
}

// full turns "no space left" into what callers can ask for.
func full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) {
		return &sdn.Error{Kind: sdn.KindExhausted, Reason: sdn.NoSpace, Noun: "store", Detail: "no space left to write it", Err: err}
	}
	return err
}

// Backup writes a copy of the store as it is at one moment; changes go on meanwhile.
func (p *Provider) Backup(ctx context.Context, w io.Writer) error {
	return p.db.View(func(b *bbolt.Tx) error {
		_, err := b.WriteTo(contextWriter{ctx, w})
		if err != nil {
			return fmt.Errorf("back up the store: %w", err)
		}
		return nil
	})
}

// Copy writes the store at path, which no provider has open, as it is: nothing in it or beside it is changed, not even an older schema.
// The error is os.ErrNotExist if there is none.
func Copy(ctx context.Context, path string, w io.Writer) error {
	return withVerified(ctx, path, func(f *os.File, size int64) error {
		if _, err := io.Copy(contextWriter{ctx, w}, io.NewSectionReader(f, 0, size)); err != nil {
			return fmt.Errorf("copy the store: %w", full(err))
		}
		return nil
	})
}

// contextWriter stops writing when its context ends.
type contextWriter struct {
	ctx context.Context
	w   io.Writer
}

func (c contextWriter) Write(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.w.Write(b)
}

// Restore puts a backup in the place of the store at path, whose provider must be closed. The backup is checked first; the
// store that was there is kept beside it, and its name returned ("" if there was none). Killed at any point it leaves one or the
// other in place.
func Restore(ctx context.Context, path string, r io.Reader) (kept string, err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("folder of the store: %w", err)
	}
	old, err := os.Open(path)
	switch {
	case err == nil:
		defer old.Close()
		if err := lockFile(ctx, old); err != nil {
			return "", fmt.Errorf("store %s: %w: stop it first", path, err)
		}
	case !errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("store: %w", err)
	}
	err = atomicfile.Write(path, 0o600, func(temp *os.File) error {
		if err := copyBackup(ctx, temp, r); err != nil {
			return err
		}
		failpoint.Here("local.restore.copied")
		if old == nil {
			return nil
		}
		name := path + ".before-restore-" + time.Now().UTC().Format("20060102T150405.000000000")
		if err := os.Link(path, name); err != nil {
			return fmt.Errorf("keep the old store: %w", err)
		}
		kept = name
		failpoint.Here("local.restore.kept")
		return nil
	})
	if err != nil {
		return kept, fmt.Errorf("restore: %w", full(err))
	}
	failpoint.Here("local.restore.renamed")
	return kept, nil
}

// copyBackup fills temp from r and checks that a provider could open it.
func copyBackup(ctx context.Context, temp *os.File, r io.Reader) error {
	w := contextWriter{ctx, temp}
	size, err := io.Copy(w, r)
	if err != nil {
		return fmt.Errorf("copy the backup: %w", err)
	}
	if err := verify(temp, size); err != nil {
		return fmt.Errorf("the backup is no good, the store stays as it was: %w", err)
	}
	db, err := openBolt(temp.Name(), &bbolt.Options{ReadOnly: true, Timeout: lockPatience})
	if err != nil {
		return fmt.Errorf("the backup is no good, the store stays as it was: %w", err)
	}
	defer func() { _ = db.Close() }()
	if _, err := currentSchema.check(db); err != nil {
		return fmt.Errorf("the store stays as it was: %w", err)
	}
	return nil
}
