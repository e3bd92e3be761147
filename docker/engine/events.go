package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/url"
	"time"
)

// maxEvent bounds a line of the engine's events, in bytes.
const maxEvent = 1 << 20

// The pause before the stream is opened again: half to one and a half times a value that
// doubles from minBackoff to maxBackoff.
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
	backoff := minBackoff
	for {
		began := time.Now()
		_ = c.stream(ctx, connected, func(e Event) { backoff = minBackoff; event(e) })
		if time.Since(began) > maxBackoff {
			backoff = minBackoff // the stream did not end as soon as it began
		}
		timer := time.NewTimer(backoff/2 + rand.N(backoff))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		backoff = min(2*backoff, maxBackoff)
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
