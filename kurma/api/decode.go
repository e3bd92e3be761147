//go:build linux

package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// decode reads one JSON object of which it knows all keys. Nothing at all stands for an empty one.
func decode(body []byte, in any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(in); err != nil {
		if errors.Is(err, io.EOF) {
			return nil
		}
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
