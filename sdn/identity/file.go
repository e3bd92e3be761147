//go:build linux

package identity

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
)

// A TokenFile is a token file that may change while it is used. Its methods may be called
// concurrently.
type TokenFile struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	current *TokenSet
	seen    stamp  // what need not be read again; zero: it must
	taken   stamp  // of what is current
	told    string // the last warning
}

// stamp changes with a file.
type stamp struct {
	inode           uint64
	size            int64
	changed, status time.Time // content and inode
	mode            fs.FileMode
	owner           uint32
}

// racy is how young a file may be when it is read and its next change still be missed:
// the kernel's clock for files goes in steps.
const racy = 50 * time.Millisecond

// OpenTokens reads the file. It must be a regular one that belongs to root or to this
// process's user, and be readable by no other user (mode 0600 or less).
func OpenTokens(path string, log *slog.Logger) (*TokenFile, error) {
	f := &TokenFile{path: path, log: log}
	set, seen, err := f.read()
	if err != nil {
		return nil, err
	}
	f.current, f.seen, f.taken = set, seen.final(), seen
	return f, nil
}

// Set is what the file says now. A file that is spoilt changes nothing: what was read
// last goes on to hold, and the log is told once. One that is gone, cannot be read or is
// open to others holds nothing: it lets no client in.
func (f *TokenFile) Set() *TokenSet {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err == nil && f.seen == stampOf(info) {
		return f.current
	}
	set, seen, err := f.read()
	switch {
	case err == nil:
		if f.taken != seen {
			f.log.Info("token file read again", "file", f.path, "entries", set.Len())
		}
		f.current, f.seen, f.taken, f.told = set, seen.final(), seen, ""
	case seen == (stamp{}): // not even looked into
		f.current, f.seen, f.taken = &TokenSet{}, stamp{}, stamp{}
		f.warn("token file unusable, its tokens are refused", err)
	default:
		f.seen = seen.final()
		f.warn("token file invalid, the earlier one stays in use", err)
	}
	return f.current
}

// warn logs a problem once.
func (f *TokenFile) warn(what string, err error) {
	if f.told != err.Error() {
		f.log.Warn(what, "err", err)
		f.told = err.Error()
	}
}

// read gives what the file says and how it looks. With an error the stamp is zero where
// the file must not, or cannot, be looked into.
func (f *TokenFile) read() (*TokenSet, stamp, error) {
	file, err := os.OpenFile(f.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, stamp{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, stamp{}, err
	}
	seen := stampOf(info)
	switch {
	case !info.Mode().IsRegular():
		return nil, stamp{}, fmt.Errorf("%s is no regular file", f.path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, stamp{}, fmt.Errorf(
			"%s has mode %04o, so others may read it: want 0600 (chmod 600 %s)", f.path, info.Mode().Perm(),
			f.path,
		)
	case seen.owner != 0 && int(seen.owner) != os.Geteuid():
		return nil, stamp{}, fmt.Errorf("%s belongs to user %d: want root", f.path, seen.owner)
	}
	set, err := ParseTokens(file, f.path)
	return set, seen, err
}

// final is the stamp of a file that cannot change unseen any more, and none of another,
// which is read again at the next use.
func (s stamp) final() stamp {
	if time.Since(s.status) < racy {
		return stamp{}
	}
	return s
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size(), changed: info.ModTime(), mode: info.Mode()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode, s.owner = sys.Ino, sys.Uid
		s.status = time.Unix(sys.Ctim.Unix())
	}
	return s
}
