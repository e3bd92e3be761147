package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kuryr/kuryr/docker/api"
	endpoints "github.com/kuryr/kuryr/docker/endpoint"
	"github.com/kuryr/kuryr/internal/httpserve"
	"github.com/kuryr/kuryr/internal/logging"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Limits of the HTTP server. An engine's requests are a few kB. Those of a container with 70,000
// published ports, each of about 110 bytes, fit in maxBody.
const (
	maxBody       = 8 << 20
	maxHeader     = 16 << 10
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second
	idleTimeout   = 5 * time.Minute
)

// Serve answers on l until ctx ends, then lets calls in progress finish and returns nil. Who may connect is l's affair
// (internal/rootsock makes listeners that only root can talk to). It closes l.
func (d *Driver) Serve(ctx context.Context, l net.Listener) error {
	return httpserve.Run(ctx, &http.Server{
		Handler:           d.Handler(),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      readTimeout + d.config.CallTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
	}, l)
}

type handler func(ctx context.Context, body []byte) (any, error)

type route struct {
	run handler
	// tidy marks a method that cleans up. Docker never repeats it: it continues when Docker closes
	// the connection.
	tidy bool
	// gives marks a method that succeeds only if the SDN is available.
	gives bool
}

// newRoutes returns the methods by their paths. The services exist.
func (d *Driver) newRoutes() map[string]route {
	ranges := d.ranges()
	return map[string]route{
		"/Plugin.Activate": {run: bare(d.activate)},

		"/NetworkDriver.GetCapabilities":             {run: bare(d.networkCapabilities)},
		"/NetworkDriver.GwAllocCheck":                {run: with(d.networks.GwAllocCheck)},
		"/NetworkDriver.AllocateNetwork":             {run: with(d.allocateNetwork), gives: true},
		"/NetworkDriver.FreeNetwork":                 {run: with(d.freeNetwork)},
		"/NetworkDriver.CreateNetwork":               {run: with(d.createNetwork), gives: true},
		"/NetworkDriver.DeleteNetwork":               {run: with(d.deleteNetwork), tidy: true},
		"/NetworkDriver.CreateEndpoint":              {run: with(d.endpoints.Create), gives: true},
		"/NetworkDriver.EndpointOperInfo":            {run: with(d.endpoints.OperInfo)},
		"/NetworkDriver.DeleteEndpoint":              {run: ending(d.endpoints.Delete), tidy: true},
		"/NetworkDriver.Join":                        {run: with(d.endpoints.Join), gives: true},
		"/NetworkDriver.Leave":                       {run: ending(d.endpoints.Leave), tidy: true},
		"/NetworkDriver.ProgramExternalConnectivity": {run: with(d.endpoints.Program), gives: true},
		"/NetworkDriver.RevokeExternalConnectivity":  {run: ending(d.endpoints.Revoke), tidy: true},
		"/NetworkDriver.DiscoverNew":                 {run: with(discover)},
		"/NetworkDriver.DiscoverDelete":              {run: with(discover)},

		"/IpamDriver.GetCapabilities":         {run: bare(ipamCapabilities)},
		"/IpamDriver.GetDefaultAddressSpaces": {run: bare(addressSpaces)},
		// As the design document of kuryr-libnetwork spells it.
		"/IpamDriver.GetDefaultAddressSpcaces": {run: bare(addressSpaces)},
		"/IpamDriver.RequestPool":              {run: with(d.requestPool), gives: true},
		"/IpamDriver.ReleasePool":              {run: with(ranges.ReleasePool), tidy: true},
		"/IpamDriver.RequestAddress":           {run: with(ranges.RequestAddress), gives: true},
		"/IpamDriver.ReleaseAddress":           {run: with(ranges.ReleaseAddress), tidy: true},
	}
}

// activate answers the handshake, which each engine process sends once.
func (d *Driver) activate() any {
	d.endpoints.EngineStarted(context.Background())
	return api.ActivateResponse{Implements: []string{"NetworkDriver", "IpamDriver"}}
}

func (d *Driver) createNetwork(ctx context.Context, r *api.CreateNetworkRequest) (api.Empty, error) {
	create := d.networks.Create
	if d.swarm != nil {
		create = d.swarm.CreateNetwork
	}
	ifUnheard(ctx, func() { d.networks.NoteUnheard(r.NetworkID) })
	return api.Empty{}, create(ctx, r)
}

func (d *Driver) deleteNetwork(ctx context.Context, r *api.NetworkRequest) (api.Empty, error) {
	if d.swarm != nil {
		return api.Empty{}, d.swarm.DeleteNetwork(ctx, r.NetworkID)
	}
	return api.Empty{}, d.networks.Delete(ctx, r.NetworkID)
}

// allocateNetwork answers a swarm's manager. In the local scope the options that it has are those
// of the nodes.
func (d *Driver) allocateNetwork(
	ctx context.Context, r *api.AllocateNetworkRequest,
) (api.AllocateNetworkResponse, error) {
	if d.swarm == nil {
		return api.AllocateNetworkResponse{Options: r.UserOptions}, nil
	}
	return d.swarm.AllocateNetwork(ctx, r)
}

func (d *Driver) freeNetwork(ctx context.Context, r *api.NetworkRequest) (api.Empty, error) {
	if d.swarm == nil {
		return api.Empty{}, nil
	}
	return api.Empty{}, d.swarm.FreeNetwork(ctx, r)
}

// discover ignores the nodes of a swarm: the SDN has its own.
func discover(context.Context, *api.DiscoverRequest) (api.Empty, error) { return api.Empty{}, nil }

// rangeServer serves the ranges and addresses of an engine.
type rangeServer interface {
	RequestPool(ctx context.Context, r *api.RequestPoolRequest) (api.RequestPoolResponse, error)
	ReleasePool(ctx context.Context, r *api.ReleasePoolRequest) (api.Empty, error)
	RequestAddress(ctx context.Context, r *api.RequestAddressRequest) (api.RequestAddressResponse, error)
	ReleaseAddress(ctx context.Context, r *api.ReleaseAddressRequest) (api.Empty, error)
}

func (d *Driver) ranges() rangeServer {
	if d.swarm != nil {
		return d.swarm
	}
	return d.ipam
}

func (d *Driver) requestPool(ctx context.Context, r *api.RequestPoolRequest) (api.RequestPoolResponse, error) {
	answer, err := d.ranges().RequestPool(ctx, r)
	ifUnheard(ctx, func() { d.ipam.NoteUnheard(sdn.ID(answer.PoolID)) })
	return answer, err
}

// with returns the handler of a method that has a request.
func with[T, R any, P interface {
	*T
	api.Request
}](do func(ctx context.Context, r P) (R, error)) handler {
	return func(ctx context.Context, body []byte) (any, error) {
		r := P(new(T))
		if err := api.Decode(body, r); err != nil {
			return nil, err
		}
		return do(ctx, r)
	}
}

// ending returns the handler of a method that ends something of an endpoint.
func ending(do func(ctx context.Context, endpoint string) error) handler {
	return with(func(ctx context.Context, r *api.EndpointRequest) (api.Empty, error) {
		return api.Empty{}, do(ctx, r.EndpointID)
	})
}

// bare returns the handler of a method without a request. It ignores the body.
func bare(do func() any) handler {
	return func(context.Context, []byte) (any, error) { return do(), nil }
}

func (d *Driver) networkCapabilities() any {
	return api.NetworkCapabilitiesResponse{
		Scope: string(d.config.Scope), ConnectivityScope: string(d.config.ConnectivityScope), GwAllocChecker: true,
	}
}

func ipamCapabilities() any { return api.IPAMCapabilitiesResponse{RequiresMACAddress: true} }

func addressSpaces() any { return api.AddressSpaces }

func (d *Driver) serveHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	ctx, id := logging.WithRequest(r.Context(), "")
	var unheard []func()
	ctx = context.WithValue(ctx, unheardKey{}, &unheard)
	method := "unknown"
	rt, known := d.routes[r.URL.Path]
	if known {
		method = r.URL.Path[1:]
	}
	status, answer, err := http.StatusOK, any(nil), error(nil)
	switch {
	case !known:
		err = &api.Error{Status: http.StatusNotFound, Text: "no such method: " + api.Clip(r.URL.Path, 100)}
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		err = &api.Error{Status: http.StatusMethodNotAllowed, Text: "the method must be POST"}
	default:
		answer, err = d.call(ctx, method, rt, w, r)
	}
	outcome, level := outcomeOK, slog.LevelDebug
	if err != nil {
		outcome, level = outcomeFailed, slog.LevelWarn
		if refused := (*api.Error)(nil); errors.As(err, &refused) {
			outcome, status = outcomeInvalid, refused.Status
		}
		text := say(err, id)
		answer = api.ErrorResponse{Err: text, Error: text}
	}
	body, encodeErr := json.Marshal(answer)
	if encodeErr != nil {
		status, outcome, level, err = http.StatusInternalServerError, outcomeInvalid, slog.LevelError, encodeErr
		body = []byte(`{"Err":"encoding the answer failed","Error":"encoding the answer failed"}`)
	}
	delivered := deliver(w, r, status, body)
	if rt.gives && !delivered { // Docker may not have what was made
		for _, note := range unheard {
			note()
		}
		d.Compare()
	}
	took := time.Since(start)
	d.metrics.observe(method, outcome, took)
	attrs := []slog.Attr{slog.String("method", method), slog.Int("status", status), slog.Duration("took", took)}
	if err != nil {
		attrs = append(attrs, slog.Any("err", err))
	}
	d.log.LogAttrs(ctx, level, "docker call", attrs...)
}

// unheardKey is the key of the functions of ifUnheard in the context of a call.
type unheardKey struct{}

// ifUnheard calls a function if the answer of a call does not reach Docker.
func ifUnheard(ctx context.Context, note func()) {
	if list, ok := ctx.Value(unheardKey{}).(*[]func()); ok {
		*list = append(*list, note)
	}
}

// deliver writes the answer and reports whether it may have reached the caller.
func deliver(w http.ResponseWriter, r *http.Request, status int, body []byte) bool {
	listens := r.Context().Err() == nil
	w.Header().Set("Content-Type", api.ContentType)
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
	ctx, cancel := context.WithTimeout(ctx, d.config.CallTimeout)
	defer cancel()
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return nil, &api.Error{Status: http.StatusServiceUnavailable, Text: "too many concurrent calls"}
	}
	defer func() {
		if p := recover(); p != nil {
			d.log.ErrorContext(ctx, "panic in a docker call", "panic", p, "stack", string(debug.Stack()))
			answer, err = nil, errors.New("internal error")
		}
	}()
	answer, err = rt.run(ctx, body)
	if rt.gives && err == nil {
		d.database.RetryFailed()
	}
	return answer, err
}

// say returns the text of an error for Docker, which shows it to its user. The text of an unexpected
// error is replaced by the request id, by which the log has the error.
func say(err error, request string) string {
	var (
		call    *api.Error
		refused *api.Refusal
		plug    *endpoints.PlugError
		fromSDN *sdn.Error
	)
	switch {
	case errors.As(err, &call):
		return api.Line(call.Text)
	case errors.As(err, &refused):
		return api.Line(refused.Text)
	case errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &fromSDN):
		return "kuryr: not done in time; see its log, request " + request
	case errors.As(err, &fromSDN):
		shown := *fromSDN
		if shown.Kind == sdn.KindUnavailable && !sdn.IsOfHost(shown.Err) {
			shown.Err = nil // transport errors name endpoints
		}
		return api.Line(shown.Error())
	case errors.As(err, &plug):
		return api.Line(plug.Error())
	case errors.Is(err, reconcile.ErrNotWritten):
		return api.Line("kuryr: " + err.Error())
	case errors.Is(err, reconcile.ErrFull):
		return "kuryr: no space left in state_dir for a new intent"
	}
	return "kuryr: internal error; see its log, request " + request
}

// Bounds of what bodies cost from when they are read until they are answered: as many small
// ones as internal/httpserve lets connections in, and largeBodies bytes of larger ones.
const (
	smallBody   = 64 << 10
	largeBodies = 2 * maxBody
)

// largeTime is how long a large body may take to arrive once it has room. Engines have the
// whole body in memory before they send it.
const largeTime = 3 * time.Second

// readBody reads the body of a request. The caller calls done when it no longer needs it.
// A large body waits for room once its first smallBody bytes have arrived, so that a
// slow caller takes room from others for largeTime at most.
func (d *Driver) readBody(
	w http.ResponseWriter, r *http.Request,
) (body []byte, done func(), err error) {
	limited := http.MaxBytesReader(w, r.Body, maxBody)
	head, err := io.ReadAll(io.LimitReader(limited, smallBody+1))
	if err != nil {
		return nil, nil, bodyError(err)
	}
	if len(head) <= smallBody {
		return head, func() {}, nil
	}
	room := r.ContentLength
	if room < 0 || room > maxBody {
		room = maxBody
	}
	waiting, cancel := context.WithTimeout(r.Context(), d.config.CallTimeout)
	defer cancel()
	if err := d.large.Acquire(waiting, room); err != nil {
		return nil, nil, &api.Error{Status: http.StatusServiceUnavailable, Text: "too many concurrent large calls"}
	}
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(largeTime))
	body, err = io.ReadAll(io.MultiReader(bytes.NewReader(head), limited))
	if err != nil {
		d.large.Release(room)
		return nil, nil, bodyError(err)
	}
	_ = connection.SetReadDeadline(time.Time{}) // otherwise its end cancels the call
	size := int64(len(body))
	d.large.Release(room - size)
	return body, func() { d.large.Release(size) }, nil
}

// bodyError is the answer to a body that could not be read.
func bodyError(err error) error {
	tooBig := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &tooBig):
		text := fmt.Sprintf("the body is longer than %d bytes", maxBody)
		return &api.Error{Status: http.StatusRequestEntityTooLarge, Text: text}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &api.Error{Status: http.StatusRequestTimeout, Text: "the body did not arrive in time"}
	default:
		return &api.Error{Status: http.StatusBadRequest, Text: "reading the body failed"}
	}
}

// metrics count calls. A nil *metrics counts nothing.
type metrics struct {
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// The outcomes of a call.
const (
	outcomeOK      = "ok"      // answered
	outcomeFailed  = "failed"  // answered 200 with an error
	outcomeInvalid = "invalid" // answered 4xx or 5xx
)

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	if r == nil {
		return nil, nil
	}
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_docker_calls_total", Help: "Calls of the Docker engine, by method and outcome (ok, failed, invalid).",
		}, []string{"method", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kuryr_docker_call_duration_seconds", Help: "How long calls of the Docker engine took.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30},
		}, []string{"method"}),
	}
	for _, c := range []prometheus.Collector{m.calls, m.duration} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("docker: metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) observe(method, outcome string, took time.Duration) {
	if m == nil {
		return
	}
	m.calls.WithLabelValues(method, outcome).Inc()
	m.duration.WithLabelValues(method).Observe(took.Seconds())
}
