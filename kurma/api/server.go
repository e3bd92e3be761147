//go:build linux

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/httpserve"
	"github.com/kuryr/kuryr/kurma/pod"
)

// Limits of the server. How long a call takes is bounded by its networks.
const (
	headerTimeout = 10 * time.Second
	bodyTimeout   = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
	maxBody       = 64 << 10
	lineTimeout   = 10 * time.Second // for a line of a stream to be taken
)

// Pods are what pod.Manager does.
type Pods interface {
	Add(ctx context.Context, r pod.Request) (pod.Pod, error)
	Del(ctx context.Context, uuid string, force bool) error
	DelContainer(ctx context.Context, container string) error
	Get(uuid string) (pod.Pod, error)
	List() []pod.Pod
}

// Images are those of the store. An error of pod's kind tells its reason; any other is of this machine.
type Images interface {
	List(ctx context.Context) ([]Image, error)
	Get(ctx context.Context, r ImageRequest, progress func(Progress)) (Image, error)
	// Remove removes the image of this id or name. The error says if it is in use, or if there is none.
	Remove(ctx context.Context, id string) error
}

// Config is what a handler serves.
type Config struct {
	Pods     Pods
	Networks func() []Network // with Output and Config
	Images   Images
	Metrics  http.Handler
	Unready  func() []string // reasons why pods cannot be added as the configuration has it; none: ready
	Logger   *slog.Logger    // nil: slog.Default
}

// Handler serves the API. It is for a socket that is root's alone (internal/rootsock).
func Handler(c Config) http.Handler {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	s := server{c}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/pods", s.addPod)
	mux.HandleFunc("GET /v1/pods", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, c.Pods.List()) })
	mux.HandleFunc("GET /v1/pods/{uuid}", func(w http.ResponseWriter, r *http.Request) {
		p, err := c.Pods.Get(r.PathValue("uuid"))
		s.reply(w, r, p, err)
	})
	mux.HandleFunc("DELETE /v1/pods/{uuid}", s.delPod)
	mux.HandleFunc("DELETE /v1/containers/{id}", func(w http.ResponseWriter, r *http.Request) {
		s.done(w, r, c.Pods.DelContainer(r.Context(), r.PathValue("id")))
	})
	mux.HandleFunc("GET /v1/networks", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, s.networks()) })
	mux.HandleFunc("GET /v1/networks/{name}", s.network)
	mux.HandleFunc("GET /v1/images", func(w http.ResponseWriter, r *http.Request) {
		list, err := c.Images.List(r.Context())
		if list == nil {
			list = []Image{}
		}
		s.reply(w, r, list, err)
	})
	mux.HandleFunc("POST /v1/images", s.fetch)
	mux.HandleFunc("DELETE /v1/images/{id...}", func(w http.ResponseWriter, r *http.Request) {
		s.done(w, r, c.Images.Remove(r.Context(), r.PathValue("id")))
	})
	mux.Handle("GET /metrics", c.Metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if reasons := c.Unready(); len(reasons) > 0 {
			http.Error(w, strings.Join(reasons, "\n"), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, Failure{fmt.Sprintf("%s %s is not of this API", r.Method, r.URL.Path), pod.NotFound})
	})
	return mux
}

// Serve answers on l until ctx ends, lets requests in progress finish for a short while, and returns nil. It closes l. What is cut off is undone: its
// request's context ends.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	return httpserve.Run(ctx, &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader}, l)
}

type server struct{ Config }

func (s server) addPod(w http.ResponseWriter, r *http.Request) {
	var in PodRequest
	if !read(w, r, &in) {
		return
	}
	ask := pod.Request{UUID: in.UUID, Path: in.Namespace, PID: in.PID, Container: in.Container, User: in.User}
	if in.Networks != nil {
		ask.Networks = append([]string{}, *in.Networks...)
	}
	p, err := s.Pods.Add(r.Context(), ask)
	if in.Container != "" && len(ask.Networks) == 0 && pod.LookedAfter(err) {
		w.WriteHeader(http.StatusNoContent) // a container in the host's namespace, or in another's
		return
	}
	s.reply(w, r, p, err)
}

func (s server) delPod(w http.ResponseWriter, r *http.Request) {
	force := false
	switch text := r.URL.Query().Get("force"); text {
	case "", "false":
	case "true":
		force = true
	default:
		fail(w, http.StatusBadRequest, Failure{fmt.Sprintf("force: %q is neither true nor false", text), pod.Invalid})
		return
	}
	s.done(w, r, s.Pods.Del(r.Context(), r.PathValue("uuid"), force))
}

// networks are all of them without what is long.
func (s server) networks() []Network {
	list := append([]Network{}, s.Networks()...)
	for i := range list {
		list[i].Output, list[i].Config = "", nil
	}
	return list
}

func (s server) network(w http.ResponseWriter, r *http.Request) {
	list := []Network{} // a name has several generations while pods are on older ones
	for _, n := range s.Networks() {
		if n.Name == r.PathValue("name") {
			list = append(list, n)
		}
	}
	if len(list) == 0 {
		fail(w, http.StatusNotFound, Failure{fmt.Sprintf("network %q is not in the configuration", r.PathValue("name")), pod.NotFound})
		return
	}
	answer(w, http.StatusOK, list)
}

// fetch streams how an image comes, a line of JSON at a time.
func (s server) fetch(w http.ResponseWriter, r *http.Request) {
	var in ImageRequest
	if !read(w, r, &in) {
		return
	}
	if in.Reference == "" {
		fail(w, http.StatusBadRequest, Failure{"reference: an image must be named", pod.Invalid})
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines := &stream{to: json.NewEncoder(w), control: http.NewResponseController(w), patience: lineTimeout}
	defer lines.end()
	image, err := s.Images.Get(r.Context(), in, lines.write)
	if err != nil {
		s.Logger.WarnContext(r.Context(), "an image did not come", "image", in.Reference, "error", err)
		lines.write(Progress{Failure: Failure{err.Error(), pod.ReasonOf(err)}})
		return
	}
	lines.write(Progress{Image: &image})
}

func (s server) reply(w http.ResponseWriter, r *http.Request, out any, err error) {
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	answer(w, http.StatusOK, out)
}

func (s server) done(w http.ResponseWriter, r *http.Request, err error) {
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// statuses are HTTP's words for reasons.
var statuses = map[pod.Reason]int{
	pod.Invalid: http.StatusBadRequest, pod.Denied: http.StatusForbidden, pod.NotFound: http.StatusNotFound,
	pod.Conflict: http.StatusConflict, pod.Failed: http.StatusBadGateway, pod.Internal: http.StatusInternalServerError,
}

func (s server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	reason := pod.ReasonOf(err)
	s.Logger.WarnContext(r.Context(), "call failed", "method", r.Method, "path", r.URL.Path, "reason", reason, "error", err)
	fail(w, statuses[reason], Failure{err.Error(), reason})
}

func fail(w http.ResponseWriter, status int, f Failure) { answer(w, status, f) }

func answer(w http.ResponseWriter, status int, out any) {
	data, err := json.Marshal(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
}

// read reads a request's body: soon, not much, one JSON object, and nothing that it does not know.
func read(w http.ResponseWriter, r *http.Request, in any) bool {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // a test's recorder has none
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = control.SetReadDeadline(time.Time{})
	if tooBig := (*http.MaxBytesError)(nil); errors.As(err, &tooBig) {
		fail(w, http.StatusRequestEntityTooLarge, Failure{fmt.Sprintf("the body is longer than %d bytes", maxBody), pod.Invalid})
		return false
	}
	if err == nil {
		err = decode(body, in)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, Failure{"body: " + err.Error(), pod.Invalid})
		return false
	}
	return true
}
