package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/url"
	"time"

	"github.com/kuryr/kuryr/internal/backoff"
)

// maxEvent bounds a line of the engine's events, in bytes.
const maxEvent = 1 << 20

// The bounds of the wait before the stream is opened again.
const (
	minBackoff = 500 * time.Millisecond
	maxBackoff = 30 * time.Second
)

// eventFilter keeps changes of networks, and what takes containers from them.
const eventFilter = `{"type":["network","container"],"event":["create","destroy","disconnect","die"]}`

// Event is a change of a network or a container.
type Event struct {
	Type   string // "network" or "container"
	Action string // "create", "destroy", "disconnect" or "die"
	ID     string // of the network or the container
	Ours   bool   // the driver of the network is this plugin
}

// Watch calls event for each event (GET /events) until ctx ends. It calls connected whenever
// the stream begins: events before that are lost, and a List begun then has their results.
// Without an engine it tries again, with backoff.
func (c *Client) Watch(ctx context.Context, connected func(), event func(Event)) {
	wait := backoff.Backoff{Min: minBackoff, Max: maxBackoff}
	for {
		began := time.Now()
		_ = c.stream(ctx, connected, func(e Event) { wait.Reset(); event(e) })
		if time.Since(began) > maxBackoff {
			wait.Reset() // the stream did not end as soon as it began
		}
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// stream reads one stream of events to its end, which is an error.
func (c *Client) stream(ctx context.Context, connected func(), event func(Event)) error {
	path := "/events?filters=" + url.QueryEscape(eventFilter)
	body, err := c.open(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	connected()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		var e struct {
			Type, Action string
			Actor        struct {
				ID         string
				Attributes struct{ Type string }
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return askError("/events", err)
		}
		event(Event{
			Type: e.Type, Action: e.Action, ID: e.Actor.ID,
			Ours: e.Type == "network" && c.ours(e.Actor.Attributes.Type),
		})
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}
