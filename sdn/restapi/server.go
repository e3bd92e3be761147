package restapi

import (
	"context"
	"iter"
	"log/slog"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// NewHandler serves p below /v2.0/. Requests end with their context. Failures that the answer does not explain are logged.
func NewHandler(p sdn.Provider, log *slog.Logger) http.Handler {
	s := &server{mux: http.NewServeMux(), log: log}
	serve(s, Networks, p.Network, func(ctx context.Context, f *filter) iter.Seq2[sdn.Network, error] {
		return p.FindNetworks(ctx, networkQuery(f))
	}, EncodeNetwork)
	serve(s, Subnets, p.Subnet, func(ctx context.Context, f *filter) iter.Seq2[sdn.Subnet, error] {
		return p.FindSubnets(ctx, subnetQuery(f))
	}, EncodeSubnet)
	serve(s, SubnetPools, p.SubnetPool, func(ctx context.Context, f *filter) iter.Seq2[sdn.SubnetPool, error] {
		return p.FindSubnetPools(ctx, subnetPoolQuery(f))
	}, EncodeSubnetPool)
	serve(s, Ports, p.Port, func(ctx context.Context, f *filter) iter.Seq2[sdn.Port, error] {
		return p.FindPorts(ctx, portQuery(f))
	}, EncodePort)
	serve(s, Routers, p.Router, func(ctx context.Context, f *filter) iter.Seq2[sdn.Router, error] {
		return p.FindRouters(ctx, routerQuery(f))
	}, EncodeRouter)
	serve(s, FloatingIPs, p.FloatingIP, func(ctx context.Context, f *filter) iter.Seq2[sdn.FloatingIP, error] {
		return p.FindFloatingIPs(ctx, floatingIPQuery(f))
	}, EncodeFloatingIP)
	s.get("/v2.0/floatingips/{id}/port_forwardings", func(w http.ResponseWriter, r *http.Request) error {
		f := newFilter(r.URL.Query())
		if err := f.done(); err != nil {
			return err
		}
		id := sdn.ID(r.PathValue("id"))
		if _, err := p.FloatingIP(r.Context(), id); err != nil {
			return err
		}
		return writeAll(w, "port_forwardings", p.FindForwards(r.Context(), sdn.ForwardQuery{FloatingIPs: []sdn.ID{id}}), EncodePortForwarding)
	})
	s.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, &Error{Status: http.StatusNotFound, Type: "HTTPNotFound", Message: "The resource could not be found."})
	})
	return s.mux
}

// Resource is a noun's two words in paths and bodies.
type Resource[E any] struct{ Member, Collection string }

// The nouns that are served.
var (
	Networks    = Resource[Network]{"network", "networks"}
	Subnets     = Resource[Subnet]{"subnet", "subnets"}
	SubnetPools = Resource[SubnetPool]{"subnetpool", "subnetpools"}
	Ports       = Resource[Port]{"port", "ports"}
	Routers     = Resource[Router]{"router", "routers"}
	FloatingIPs = Resource[FloatingIP]{"floatingip", "floatingips"}
)

type server struct {
	mux *http.ServeMux
	log *slog.Logger
}

// serve adds the list and the single objects of a noun.
func serve[T, E any](s *server, noun Resource[E], get func(context.Context, sdn.ID) (T, error),
	find func(context.Context, *filter) iter.Seq2[T, error], encode func(T) E) {
	s.get("/v2.0/"+noun.Collection, func(w http.ResponseWriter, r *http.Request) error {
		f := newFilter(r.URL.Query())
		found := find(r.Context(), f)
		if err := f.done(); err != nil {
			return err
		}
		return writeAll(w, noun.Collection, found, encode)
	})
	s.get("/v2.0/"+noun.Collection+"/{id}", func(w http.ResponseWriter, r *http.Request) error {
		object, err := get(r.Context(), sdn.ID(r.PathValue("id")))
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, map[string]E{noun.Member: encode(object)})
		return nil
	})
}

// get serves reading of a path, and refuses other methods.
func (s *server) get(path string, handle func(http.ResponseWriter, *http.Request) error) {
	s.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			writeError(w, &Error{Status: http.StatusMethodNotAllowed, Type: "HTTPMethodNotAllowed", Message: "The method " + r.Method + " is not allowed for this resource."})
			return
		}
		if err := handle(w, r); err != nil {
			answer := encodeError(err)
			if answer.Status >= http.StatusInternalServerError {
				s.log.WarnContext(r.Context(), "API request failed", "path", r.URL.Path, "error", err)
			}
			writeError(w, answer)
		}
	})
}

// writeAll answers with a list. It is collected first, so that a failure on the way has a status of its own.
func writeAll[T, E any](w http.ResponseWriter, collection string, found iter.Seq2[T, error], encode func(T) E) error {
	all := []E{}
	for object, err := range found {
		if err != nil {
			return err
		}
		all = append(all, encode(object))
	}
	writeJSON(w, http.StatusOK, map[string][]E{collection: all})
	return nil
}
