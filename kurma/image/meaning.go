package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/kuryr/kuryr/internal/jsonstore"
)

// A meaning is what a reference led to when it was fetched last.
type meaning struct {
	Reference string `json:"reference"`
	ID        ID     `json:"id"`
	// What a server said of a download, to ask whether it has changed.
	ETag     string `json:"etag,omitempty"`
	Modified string `json:"modified,omitempty"`
	// The file it was.
	File fileState `json:"file,omitzero"`
}

// fromFile reports whether the image was read from a file of this machine.
func (m meaning) fromFile() bool { return m.File != fileState{} }

// fileState tells whether a file is the one that was read.
type fileState struct {
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Inode    uint64    `json:"inode"`
}

// key is a file's name for a text of any length.
func key(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func fileReference(path string) string {
	return string(File) + "://" + (&url.URL{Path: path}).EscapedPath()
}

// meaning is the zero one where nothing is known, and where the image it led to is gone.
func (s *Store) meaning(ref string) (meaning, error) {
	m, found, err := jsonstore.Get[meaning](s.refs, key(ref))
	if _, damaged := errors.AsType[*json.SyntaxError](err); damaged {
		return meaning{}, nil // the next fetch writes it again
	}
	if err != nil || !found || m.Reference != ref {
		return meaning{}, err
	}
	if _, err := s.load(m.ID); errors.Is(err, ErrNotFound) {
		return meaning{}, nil
	}
	return m, nil
}

func (s *Store) meanings() ([]meaning, error) {
	all, err := jsonstore.Load[meaning](s.refs)
	return slices.Collect(maps.Values(all)), err
}

// remember records what the reference led to; it is on the disk when it returns nil.
func (s *Store) remember(m meaning) error { return s.refs.Put(key(m.Reference), m) }

func (s *Store) forget(ref string) error { return s.refs.Delete(key(ref)) }
