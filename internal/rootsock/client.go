package rootsock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"syscall"
)

// Client speaks HTTP with who listens at path, whatever host a request names, and
// connects with the first request. Without a listener the error is absent; where the
// socket is root's and this process is not, it says so.
func Client(path string, absent error) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
			return nil, absent
		case errors.Is(err, fs.ErrPermission):
			return nil, fmt.Errorf("%s is root's alone: run this as root", path)
		}
		return conn, err
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial}}
}
