package raven

import (
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/kube/raven/core"
)

// TestPassing checks that Raven waits at its start for an API server that is unreachable, and does
// not wait for one that it cannot trust.
func TestPassing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{syscall.ECONNREFUSED, true},
		{syscall.ECONNRESET, true},
		{os.ErrDeadlineExceeded, true},
		{syscall.EHOSTUNREACH, true},
		{syscall.ENETUNREACH, true},
		{io.EOF, true},
		{&net.DNSError{Err: "server misbehaving", IsTemporary: true}, true},
		{&net.DNSError{Err: "no such host", IsNotFound: true}, false},
		{x509.UnknownAuthorityError{}, false},
	} {
		err := fmt.Errorf("router: %w", &url.Error{Op: "Post", URL: "https://10.0.0.1:6443", Err: c.err})
		if is := core.Passing(err); is != c.want {
			t.Errorf("%v passes: %v, want %v", err, is, c.want)
		}
	}
}
