//go:build linux

package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// decode reads one JSON object of which it knows all keys, each at most once. An empty body
// stands for an empty object.
func decode(body []byte, in any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	err := checkObject(body)
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	return d.Decode(in)
}

// checkObject refuses what encoding/json takes for an object: null, an object with something
// after it, and keys that differ in case alone, of which it would take the last.
func checkObject(body []byte) error {
	d := json.NewDecoder(bytes.NewReader(body))
	if token, err := d.Token(); err != nil {
		return err
	} else if token != json.Delim('{') {
		return errors.New("want a JSON object")
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string) // the decoder lets no other token pass here
		if seen[strings.ToLower(key)] {
			return fmt.Errorf("key %q is there twice", key)
		}
		seen[strings.ToLower(key)] = true
		if err := d.Decode(new(json.RawMessage)); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON object")
	}
	return nil
}

// stream writes lines that its reader has at once. Several may write. A reader that takes none for its patience gets no more: what writes holds the image meanwhile.
type stream struct {
	mu       sync.Mutex
	to       *json.Encoder
	control  *http.ResponseController
	patience time.Duration
}

func (s *stream) write(p Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.control.SetWriteDeadline(time.Now().Add(s.patience)) // a test's recorder has none
	if s.to.Encode(p) == nil {
		_ = s.control.Flush()
	}
}

// end lets the connection be used again.
func (s *stream) end() { _ = s.control.SetWriteDeadline(time.Time{}) }
