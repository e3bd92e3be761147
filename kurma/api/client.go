//go:build linux

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/kurma/pod"
)

// base is the address in requests; the socket is what is connected to whatever it says.
const base = "http://kurma"

// maxAnswer bounds what is read of an answer.
const maxAnswer = 64 << 20

// Client asks a running daemon. Its errors are *pod.Error where the daemon said them, with their reasons.
type Client struct{ http *http.Client }

// NewClient asks at the socket. It connects with the first request.
func NewClient(socket string) *Client {
	return &Client{rootsock.Client(socket, fmt.Errorf("kuryr kurma is not running: nothing answers at %s", socket))}
}

// Add attaches a pod.
func (c *Client) Add(ctx context.Context, r PodRequest) (p Pod, err error) {
	return p, c.call(ctx, http.MethodPost, "/v1/pods", r, &p)
}

// Del detaches a pod; force forgets what fails. One that is not there is no error.
func (c *Client) Del(ctx context.Context, uuid string, force bool) error {
	path := "/v1/pods/" + url.PathEscape(uuid)
	if force {
		path += "?force=true"
	}
	return c.call(ctx, http.MethodDelete, path, nil, nil)
}

// Pods lists them.
func (c *Client) Pods(ctx context.Context) (list []Pod, err error) {
	return list, c.call(ctx, http.MethodGet, "/v1/pods", nil, &list)
}

// Pod gives one.
func (c *Client) Pod(ctx context.Context, uuid string) (p Pod, err error) {
	return p, c.call(ctx, http.MethodGet, "/v1/pods/"+url.PathEscape(uuid), nil, &p)
}

// Networks lists them.
func (c *Client) Networks(ctx context.Context) (list []Network, err error) {
	return list, c.call(ctx, http.MethodGet, "/v1/networks", nil, &list)
}

// Network gives one with its entry and its output: its generations, the configuration's first.
func (c *Client) Network(ctx context.Context, name string) (list []Network, err error) {
	return list, c.call(ctx, http.MethodGet, "/v1/networks/"+url.PathEscape(name), nil, &list)
}

// Images lists them.
func (c *Client) Images(ctx context.Context) (list []Image, err error) {
	return list, c.call(ctx, http.MethodGet, "/v1/images", nil, &list)
}

// RemoveImage removes one.
func (c *Client) RemoveImage(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/images/"+url.PathEscape(id), nil, nil)
}

// Fetch gets an image into the store, and tells how that goes.
func (c *Client) Fetch(ctx context.Context, r ImageRequest, progress func(Progress)) (Image, error) {
	response, err := c.do(ctx, http.MethodPost, "/v1/images", r)
	if err != nil {
		return Image{}, err
	}
	defer response.Body.Close()
	for lines := json.NewDecoder(response.Body); ; {
		var p Progress
		if err := lines.Decode(&p); err != nil {
			return Image{}, fmt.Errorf("kuryr kurma ended before the image was here: %w", err)
		}
		switch {
		case p.Error != "":
			return Image{}, &pod.Error{Reason: p.Reason, Err: errors.New(p.Error)}
		case p.Image != nil:
			return *p.Image, nil
		}
		progress(p)
	}
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	response, err := c.do(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if out == nil || response.StatusCode == http.StatusNoContent {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(out); err != nil {
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
	if response.StatusCode < 300 {
		return response, nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxBody))
	var f Failure
	if json.Unmarshal(text, &f) != nil || f.Error == "" {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, bytes.TrimSpace(text))
	}
	return nil, &pod.Error{Reason: f.Reason, Err: errors.New(f.Error)}
}
