package docker

import (
	"context"
	"net/http"
)

// What a flood of callers may cost: as many small bodies as internal/httpserve lets connections in, and a few large ones, from when
// they are read until they are answered.
const (
	smallBody = 64 << 10
	maxLarge  = 16
)

// roomFor waits until there is memory for the body of a request. Small ones need not wait.
func (d *Driver) roomFor(ctx context.Context, r *http.Request) (done func(), err error) {
	if r.ContentLength >= 0 && r.ContentLength <= smallBody {
		return func() {}, nil
	}
	select {
	case d.large <- struct{}{}:
		return func() { <-d.large }, nil
	case <-ctx.Done():
		return nil, &httpError{http.StatusServiceUnavailable, "too many large calls at once"}
	}
}
