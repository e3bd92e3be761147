package docker

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/kuryr/kuryr/internal/logging"
)

const contentType = "application/vnd.docker.plugins.v1.2+json"

// nothing is the answer of a call that has none to give: {}.
type nothing struct{}

// route is one method of the protocol.
type route struct {
	// run decodes the body and does the work. What it answers becomes the JSON of the response.
	run func(d *Driver, ctx context.Context, body []byte) (any, error)
	// tidy marks calls that clean up. The engine never repeats them, so they go on when it hangs up, and are owed while the SDN is away.
	tidy bool
	// gives marks calls that give what such a call that is owed may be about.
	gives bool
}

// request is a decoded body.
type request interface{ check() error }

// with makes a route of a method that has arguments.
func with[T any, P interface {
	*T
	request
}](do func(d *Driver, ctx context.Context, r *T) (any, error)) route {
	return route{run: func(d *Driver, ctx context.Context, body []byte) (any, error) {
		r := new(T)
		if err := decode(body, P(r)); err != nil {
			return nil, err
		}
		return do(d, ctx, r)
	}}
}

// bare makes a route of a method without arguments: whatever body comes is not looked at.
func bare(do func(d *Driver) any) route {
	return route{run: func(d *Driver, _ context.Context, _ []byte) (any, error) { return do(d), nil }}
}

// tidy makes a route of a method that cleans up.
func tidy(r route) route {
	r.tidy = true
	return r
}

// giving makes a route of a method that gives what others clean up.
func giving(r route) route {
	r.gives = true
	return r
}

var routes = map[string]route{
	"/Plugin.Activate": bare(activate),

	"/NetworkDriver.GetCapabilities":             bare(networkCapabilities),
	"/NetworkDriver.GwAllocCheck":                with((*Driver).gwAllocCheck),
	"/NetworkDriver.AllocateNetwork":             giving(with((*Driver).allocateNetwork)),
	"/NetworkDriver.FreeNetwork":                 with((*Driver).freeNetwork),
	"/NetworkDriver.CreateNetwork":               giving(with((*Driver).createNetwork)),
	"/NetworkDriver.DeleteNetwork":               tidy(with((*Driver).deleteNetwork)),
	"/NetworkDriver.CreateEndpoint":              giving(with((*Driver).createEndpoint)),
	"/NetworkDriver.EndpointOperInfo":            with((*Driver).endpointOperInfo),
	"/NetworkDriver.DeleteEndpoint":              tidy(with((*Driver).deleteEndpoint)),
	"/NetworkDriver.Join":                        giving(with((*Driver).join)),
	"/NetworkDriver.Leave":                       tidy(with((*Driver).leave)),
	"/NetworkDriver.ProgramExternalConnectivity": giving(with((*Driver).program)),
	"/NetworkDriver.RevokeExternalConnectivity":  tidy(with((*Driver).revokeExternal)),
	"/NetworkDriver.DiscoverNew":                 with((*Driver).discover),
	"/NetworkDriver.DiscoverDelete":              with((*Driver).discover),

	"/IpamDriver.GetCapabilities":         bare(ipamCapabilities),
	"/IpamDriver.GetDefaultAddressSpaces": bare(addressSpaces),
	// As the design document of kuryr-libnetwork spells it.
	"/IpamDriver.GetDefaultAddressSpcaces": bare(addressSpaces),
	"/IpamDriver.RequestPool":              giving(with((*Driver).requestPool)),
	"/IpamDriver.ReleasePool":              tidy(with((*Driver).releasePool)),
	"/IpamDriver.RequestAddress":           giving(with((*Driver).requestAddress)),
	"/IpamDriver.ReleaseAddress":           tidy(with((*Driver).releaseAddress)),
}

// serveHTTP answers one call.
func (d *Driver) serveHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	ctx, id := logging.WithRequest(r.Context(), "")
	after := &afterwards{}
	ctx = context.WithValue(ctx, answering{}, after)
	method := "unknown"
	rt, known := routes[r.URL.Path]
	if known {
		method = r.URL.Path[1:]
	}
	status, answer, err := http.StatusOK, any(nil), error(nil)
	switch {
	case !known:
		err = &httpError{http.StatusNotFound, "no such method: " + clip(r.URL.Path, 100)}
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		err = &httpError{http.StatusMethodNotAllowed, "only POST is answered"}
	default:
		answer, err = d.call(ctx, method, rt, w, r)
	}
	outcome, level := outcomeOK, slog.LevelDebug
	if err != nil {
		outcome, level = outcomeFailed, slog.LevelWarn
		if refused := (*httpError)(nil); errors.As(err, &refused) {
			outcome, status = outcomeInvalid, refused.status
		}
		text := say(err, id)
		answer = map[string]string{"Err": text, "Error": text}
	}
	body, encodeErr := json.Marshal(answer)
	if encodeErr != nil {
		status, outcome, level, err = http.StatusInternalServerError, outcomeInvalid, slog.LevelError, encodeErr
		body = []byte(`{"Err":"the answer could not be encoded","Error":"the answer could not be encoded"}`)
	}
	delivered := deliver(w, r, status, body)
	after.answered(err == nil && delivered)
	took := time.Since(start)
	d.metrics.observe(method, outcome, took)
	attrs := []slog.Attr{slog.String("method", method), slog.Int("status", status), slog.Duration("took", took)}
	if err != nil {
		attrs = append(attrs, slog.Any("err", err))
	}
	d.log.LogAttrs(ctx, level, "docker call", attrs...)
}

// deliver answers, and tells whether that may have reached the caller: one that has gone away is told nothing.
func deliver(w http.ResponseWriter, r *http.Request, status int, body []byte) bool {
	listens := r.Context().Err() == nil
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		return false
	}
	err := http.NewResponseController(w).Flush()
	return listens && (err == nil || errors.Is(err, http.ErrNotSupported))
}

// call reads the body, waits for its turn and runs the method within its time.
func (d *Driver) call(ctx context.Context, method string, rt route, w http.ResponseWriter, r *http.Request) (answer any, err error) {
	body, done, err := d.readBody(w, r)
	if err != nil {
		return nil, err
	}
	defer done()
	if rt.tidy {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return nil, &httpError{http.StatusServiceUnavailable, "too many calls at once"}
	}
	defer func() {
		if p := recover(); p != nil {
			d.log.ErrorContext(ctx, "panic in a docker call", "panic", p, "stack", string(debug.Stack()))
			answer, err = nil, errors.New("internal error")
		}
	}()
	if rt.gives {
		if err := d.settleBefore(ctx, method, body); err != nil {
			return nil, err
		}
	}
	answer, err = rt.run(d, ctx, body)
	switch {
	case rt.tidy && owable(method, err) && d.owe(ctx, method, body, err):
		return nothing{}, nil
	case rt.gives && err == nil:
		kick(d.owed.back)
	}
	return answer, err
}
