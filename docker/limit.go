package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/kuryr/kuryr/docker/api"
)

// Bounds of what bodies cost from when they are read until they are answered: as many small
// ones as internal/httpserve lets connections in, and largeBodies bytes of larger ones.
const (
	smallBody   = 64 << 10
	largeBodies = 2 * maxBody
)

// largeTime is how long a large body may take to arrive once it has room. Engines have the
// whole body in memory before they send it.
const largeTime = 3 * time.Second

// readBody reads the body of a request. The caller calls done when it no longer needs it.
// A large body waits for room once its first smallBody bytes have arrived, so that a
// slow caller takes room from others for largeTime at most.
func (d *Driver) readBody(
	w http.ResponseWriter, r *http.Request,
) (body []byte, done func(), err error) {
	limited := http.MaxBytesReader(w, r.Body, maxBody)
	head, err := io.ReadAll(io.LimitReader(limited, smallBody+1))
	if err != nil || len(head) <= smallBody {
		return head, func() {}, bodyError(err)
	}
	room := r.ContentLength
	if room < 0 || room > maxBody {
		room = maxBody
	}
	waiting, cancel := context.WithTimeout(r.Context(), d.config.CallTimeout)
	defer cancel()
	if err := d.large.Acquire(waiting, room); err != nil {
		return nil, nil, &api.Error{Status: http.StatusServiceUnavailable, Text: "too many concurrent large calls"}
	}
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(largeTime))
	body, err = io.ReadAll(io.MultiReader(bytes.NewReader(head), limited))
	if err != nil {
		d.large.Release(room)
		return nil, nil, bodyError(err)
	}
	_ = connection.SetReadDeadline(time.Time{}) // otherwise its end cancels the call
	size := int64(len(body))
	d.large.Release(room - size)
	return body, func() { d.large.Release(size) }, nil
}

// bodyError is the answer to a body that could not be read, nil for nil.
func bodyError(err error) error {
	tooBig := (*http.MaxBytesError)(nil)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &tooBig):
		text := fmt.Sprintf("the body is longer than %d bytes", maxBody)
		return &api.Error{Status: http.StatusRequestEntityTooLarge, Text: text}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &api.Error{Status: http.StatusRequestTimeout, Text: "the body did not arrive in time"}
	default:
		return &api.Error{Status: http.StatusBadRequest, Text: "reading the body failed"}
	}
}
