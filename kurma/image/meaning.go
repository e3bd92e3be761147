package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/kuryr/kuryr/internal/wholefile"
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
	m, err := readMeaning(s.path(refsDir, key(ref)+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return meaning{}, nil
	}
	var damaged *json.SyntaxError
	if errors.As(err, &damaged) {
		return meaning{}, nil // it is found out anew
	}
	if err != nil || m.Reference != ref {
		return meaning{}, err
	}
	if _, err := s.load(m.ID); errors.Is(err, ErrNotFound) {
		return meaning{}, nil
	}
	return m, nil
}

func readMeaning(path string) (m meaning, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	return m, err
}

func (s *Store) meanings() ([]meaning, error) {
	paths, err := filepath.Glob(s.path(refsDir, "*.json"))
	errs := []error{err}
	var all []meaning
	for _, path := range paths {
		m, err := readMeaning(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			continue
		}
		all = append(all, m)
	}
	return all, errors.Join(errs...)
}

// remember records what the reference led to; it is on the disk when it returns nil.
func (s *Store) remember(m meaning) error {
	return wholefile.Write(s.path(refsDir, key(m.Reference)+".json"), 0o600, func(w io.Writer) error { return json.NewEncoder(w).Encode(m) })
}

func (s *Store) forget(ref string) error {
	err := os.Remove(s.path(refsDir, key(ref)+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
