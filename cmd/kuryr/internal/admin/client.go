package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/internal/rootsock"
)

// base is the address in requests; the socket is what is connected to whatever it says.
const base = "http://kuryr"

// Client asks a running Kuryr.
type Client struct{ http *http.Client }

// NotRunningError says that nothing answers on the socket.
type NotRunningError struct{ Socket string }

func (e *NotRunningError) Error() string {
	return "kuryr is not running: nothing answers at " + e.Socket + "; start it with `kuryr up`"
}

// IsNotRunning reports whether err says that nothing answers on the socket.
func IsNotRunning(err error) bool {
	var e *NotRunningError
	return errors.As(err, &e)
}

// NewClient asks at the socket. It connects with the first request.
func NewClient(socket string) *Client {
	return &Client{rootsock.Client(socket, &NotRunningError{socket})}
}

// SDN gives a client of the SDN's API.
func (c *Client) SDN() *api.Client { return &api.Client{HTTP: c.http, Base: base} }

// Status asks how Kuryr is.
func (c *Client) Status(ctx context.Context) (out Status, err error) {
	return out, c.call(ctx, http.MethodGet, "/admin/status", nil, &out)
}

// Reconcile makes the kernel follow the store.
func (c *Client) Reconcile(ctx context.Context) (out Reconcile, err error) {
	return out, c.call(ctx, http.MethodPost, "/admin/reconcile", nil, &out)
}

// Check asks what differs.
func (c *Client) Check(ctx context.Context) (out Check, err error) {
	return out, c.call(ctx, http.MethodGet, "/admin/check", nil, &out)
}

// Down takes everything out of the kernel and ends the process.
func (c *Client) Down(ctx context.Context, o DownOptions) (out DownReport, err error) {
	return out, c.call(ctx, http.MethodPost, "/admin/down", o, &out)
}

// Stop ends the process.
func (c *Client) Stop(ctx context.Context) error {
	var out struct{}
	return c.call(ctx, http.MethodPost, "/admin/stop", nil, &out)
}

// Intents returns the rows of the daemon's database, by kind and key.
func (c *Client) Intents(ctx context.Context) (out map[string]json.RawMessage, err error) {
	return out, c.call(ctx, http.MethodGet, "/admin/intents", nil, &out)
}

// Metrics copies what /metrics says to w.
func (c *Client) Metrics(ctx context.Context, w io.Writer) error {
	response, err := c.do(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(w, response.Body)
	return err
}

// Backup copies the store to w. An error says that what was written is not whole.
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	response, err := c.do(ctx, http.MethodGet, "/admin/backup", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(w, response.Body); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	switch how := response.Trailer.Get(errorTrailer); how {
	case backupWhole:
		return nil
	case "":
		return errors.New("backup: kuryr ended before it was whole")
	default:
		return errors.New(how)
	}
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	response, err := c.do(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(out); err != nil {
		return fmt.Errorf("answer to %s %s: %w", method, path, err)
	}
	return nil
}

func (c *Client) do(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, base+path, &body)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxBody))
		return nil, errors.New(strings.TrimSpace(string(text)))
	}
	return response, nil
}
