package dockerapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"
)

// maxEvent is how long a line of the engine's events may be, in bytes.
const maxEvent = 1 << 20

// Event is something that happened to a network or a container.
type Event struct {
	Type, Action string
	Actor        struct {
		ID         string
		Attributes map[string]string
	}
}

// eventFilter keeps what happens to networks, and what takes containers from them.
const eventFilter = `{"type":["network","container"],"event":["create","destroy","disconnect","die"]}`

// The pause before the engine is tried again, which grows while it is away.
const (
	firstPause = 500 * time.Millisecond
	lastPause  = 30 * time.Second
)

// Watch calls connected whenever the stream of the engine's events begins, and event for each, until ctx ends. An engine that is away
// is nothing unusual: it is tried again and again.
func (c *Client) Watch(ctx context.Context, connected func(), event func(Event)) {
	pause := firstPause
	for {
		began := time.Now()
		_ = c.events(ctx, connected, func(e Event) { pause = firstPause; event(e) })
		if time.Since(began) > lastPause {
			pause = firstPause // it was not one of those that end as soon as they begin
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, lastPause)
	}
}

// events reads one stream to its end.
func (c *Client) events(ctx context.Context, connected func(), event func(Event)) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/events?filters="+url.QueryEscape(eventFilter), nil)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return &statusError{"/events", response.StatusCode}
	}
	connected()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("the engine's events: %w", err)
		}
		event(e)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}

// statusError is an answer that is none.
type statusError struct {
	path string
	code int
}

func (e *statusError) Error() string {
	return fmt.Sprintf("ask the Docker engine: %s answers %d %s", e.path, e.code, http.StatusText(e.code))
}

func isStatus(err error, code int) bool {
	var e *statusError
	return errors.As(err, &e) && e.code == code
}
