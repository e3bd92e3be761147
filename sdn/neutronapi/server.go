package neutronapi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// The bounds of a request where Options do not say.
const (
	DefaultMaxBody = 1 << 20 // bytes
	DefaultMaxPage = 1000    // objects of one list
)

// Options say how a provider is served. The zero Options are good.
type Options struct {
	Logger  *slog.Logger // of failures that the answer does not explain; nil: nowhere
	MaxBody int64        // bytes of a request's body; 0 is DefaultMaxBody
	MaxPage int          // objects in one answer, whatever is asked for; 0 is DefaultMaxPage
	// Audit is told of each request that would change something, after it was answered, refused ones among them and those that ended in a panic. nil:
	// nobody is.
	Audit func(context.Context, Change)
}

// Change is a request that changed something, or would have.
type Change struct {
	Caller Caller
	Agent  string // what the client calls itself (User-Agent); it may say what it likes
	Method string
	Path   string   // without the query
	IDs    []string // of what was made; empty where the path says it, or nothing was
	Status int
	Error  string // the type of the refusal, such as "PortNotFound"; "" where there was none
}

// NewHandler serves p below /v2.0/, and at / which versions there are. Who asks must be in the request's context, see WithCaller. Requests end with
// their context.
func NewHandler(p sdn.Provider, o Options) http.Handler {
	s := &server{p: p, locks: &locks{}, mux: http.NewServeMux(), mounts: []string{""}, nouns: "/v2.0/", log: o.Logger, audit: o.Audit, maxBody: cmp.Or(o.MaxBody, DefaultMaxBody), maxPage: cmp.Or(o.MaxPage, DefaultMaxPage)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.serve(s.networks().resource())
	s.serve(s.subnets().resource())
	s.serve(s.subnetPools().resource())
	s.serve(s.ports().resource())
	s.serve(s.routers().resource())
	s.serve(s.floatingIPs().resource())
	s.serveParts()
	s.serveQuotas()
	balancing := s.octavia()
	s.read("/v2.0/extensions", s.listExtensions)
	s.read("/v2.0/extensions/{alias}", s.showExtension)
	s.read("/v2.0", resources)
	s.read("/v2.0/{$}", resources)
	s.mux.HandleFunc("/{$}", func(w http.ResponseWriter, r *http.Request) { _ = versions(w, &call{Request: r, server: s}) })
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, noPath) })
	s.balancing = balancing
	return s
}

type server struct {
	p       sdn.Provider
	locks   *locks
	mux     *http.ServeMux
	mounts  []string // what paths begin with
	nouns   string   // what those of nouns begin with, behind that
	faults  bool     // refusals are told in Octavia's words
	log     *slog.Logger
	audit   func(context.Context, Change)
	maxBody int64
	maxPage int

	balancing *server // the API of load balancers; nil in that itself
}

func noPath(http.ResponseWriter, *call) error {
	return refuse(http.StatusNotFound, "HTTPNotFound", "The resource could not be found.")
}

// ServeHTTP answers a request. A path may end in .json, as older clients have it.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if path, ok := strings.CutSuffix(r.URL.Path, ".json"); ok && !strings.Contains(path, "/tags/") {
		url := *r.URL
		url.Path, url.RawPath = path, strings.TrimSuffix(url.RawPath, ".json")
		r = r.Clone(r.Context())
		r.URL = &url
	}
	if s.balancing != nil && ofOctavia(r.URL.Path) {
		s = s.balancing
	}
	s.mux.ServeHTTP(w, r)
}

// handler answers one call. An error that it returns is answered; it must not have written then.
type handler func(http.ResponseWriter, *call) error

// read serves reading of a path, and refuses other methods.
func (s *server) read(path string, get handler) {
	s.handle(path, map[string]handler{http.MethodGet: get})
}

// handle serves a path by method, and refuses those that are not there. Who can GET can HEAD.
func (s *server) handle(path string, methods map[string]handler) {
	allowed := slices.Sorted(maps.Keys(methods))
	if methods[http.MethodGet] != nil {
		allowed = append(allowed, http.MethodHead)
	}
	for _, mount := range s.mounts {
		s.mux.HandleFunc(mount+path, func(w http.ResponseWriter, r *http.Request) {
			method := r.Method
			if method == http.MethodHead {
				method = http.MethodGet
			}
			do := methods[method]
			if do == nil {
				w.Header().Set("Allow", strings.Join(allowed, ", "))
				s.writeError(w, &Error{Status: http.StatusMethodNotAllowed, Type: "HTTPMethodNotAllowed", Message: "The method " + r.Method + " is not allowed for this resource."})
				return
			}
			s.answer(w, r, do)
		})
	}
}

// answer has a call handled and its failure told. A handler that panics may have made its change before, so it is audited too.
func (s *server) answer(w http.ResponseWriter, r *http.Request, do handler) {
	c := &call{Request: r, server: s}
	seen := &watched{ResponseWriter: w, status: http.StatusInternalServerError}
	refusal := &Error{Type: "HTTPInternalServerError"} // what is told where it panics
	defer func() {
		if s.audit != nil && !c.reads() {
			s.audit(r.Context(), Change{Caller: c.caller, Agent: r.UserAgent(), Method: r.Method, Path: r.URL.Path, IDs: c.made, Status: seen.status, Error: refusal.Type})
		}
	}()
	err := c.admit(w)
	if err == nil {
		err = do(seen, c)
	}
	refusal = &Error{}
	if err != nil {
		refusal = c.told(err)
		// What the SDN cannot do is the client's to know, and so is that it has gone.
		if refusal.Status >= http.StatusInternalServerError && refusal.Status != http.StatusNotImplemented && !errors.Is(err, context.Canceled) {
			s.log.WarnContext(r.Context(), "API request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		}
		s.writeError(seen, refusal)
	}
}

// watched remembers the status of an answer.
type watched struct {
	http.ResponseWriter
	status int
}

// WriteHeader notes the status and writes it.
func (w *watched) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}
