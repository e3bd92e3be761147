package docker

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kuryr/kuryr/internal/reconcile"
	"golang.org/x/sys/unix"
)

// TestErrorTexts checks what Docker's user is told of errors that are no refusal.
func TestErrorTexts(t *testing.T) {
	const path = "/var/lib/kuryr/docker.db"
	for _, c := range []struct {
		err  error
		want string
	}{
		{
			fmt.Errorf("%w: %s: %w", reconcile.ErrNotWritten, path, unix.EIO),
			"kuryr: change not written: " + path + ": input/output error",
		},
		{
			fmt.Errorf("%w: %w", reconcile.ErrFull, unix.ENOSPC),
			"kuryr: no space left in state_dir for a new intent",
		},
		{errors.New("password=secret"), "kuryr: internal error; see its log, request 12ab"},
	} {
		if got := say(c.err, "12ab"); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}
