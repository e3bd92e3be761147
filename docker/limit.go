package docker

import (
	"context"
	"net/http"
)

// Bounds of what bodies cost from when they are read until they are answered: as many small
// ones as internal/httpserve lets connections in, and largeBodies bytes of larger ones.
const (
	smallBody   = 64 << 10
	largeBodies = 2 * maxBody
)

// roomFor waits until there is memory for the body of a request. Small bodies do not wait.
func (d *Driver) roomFor(ctx context.Context, r *http.Request) (done func(), err error) {
	size := r.ContentLength
	switch {
	case size < 0, size > maxBody:
		size = maxBody
	case size <= smallBody:
		return func() {}, nil
	}
	if err := d.large.Acquire(ctx, size); err != nil {
		return nil, &httpError{http.StatusServiceUnavailable, "too many large calls at once"}
	}
	return func() { d.large.Release(size) }, nil
}
