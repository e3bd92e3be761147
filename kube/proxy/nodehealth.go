package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/httpserve"
)

// toBeDeleted is the taint by which the cluster autoscaler says that a node is about to go (k8s.io/autoscaler, utils/taints).
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// healthPatience is how long the kernel may be behind before the node as a whole is not to have connections, as with kube-proxy's defaults.
const healthPatience = time.Minute

// nodeHealth is what load balancers of Services with externalTrafficPolicy Cluster want to know of the node.
type nodeHealth struct {
	eligible bool      // it is not about to go
	updated  time.Time // the kernel had all; zero is never
	behind   time.Time // since then the kernel could not be told; zero is that it could
}

// eligible tells whether a node is to have connections. One that is about to go is given no new ones.
func eligible(n *corev1.Node) bool {
	return n.DeletionTimestamp.IsZero() && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == toBeDeleted })
}

// brought notes whether the kernel could be told what it was to be told at a time. What it does not take of single Services counts for those alone.
func (h *nodeHealth) brought(ok bool, at time.Time) {
	switch {
	case ok:
		h.updated, h.behind = at, time.Time{}
	case h.behind.IsZero():
		h.behind = at
	}
}

// nodeAnswer is in kube-proxy's form.
type nodeAnswer struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"`
}

// nodeHandler answers as kube-proxy does: /healthz, whether the node is to have connections, and /livez, whether Services are kept, whatever becomes of the node. 200 is yes, 503 no.
func (c *Controller) nodeHandler() http.Handler {
	mux := http.NewServeMux()
	for path, ofNode := range map[string]bool{"/healthz": true, "/livez": false} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			c.mu.Lock()
			h := c.node
			c.mu.Unlock()
			a := nodeAnswer{LastUpdated: h.updated, CurrentTime: time.Now()}
			ok := h.behind.IsZero() || a.CurrentTime.Sub(h.behind) < healthPatience
			if ofNode {
				a.NodeEligible, ok = &h.eligible, ok && h.eligible && !h.updated.IsZero()
			}
			if ok { // as with kube-proxy, which once told so how it is
				a.LastUpdated = a.CurrentTime
			}
			body, err := json.Marshal(a)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			if !ok {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_, _ = w.Write(body)
		})
	}
	return mux
}

// serveNode serves the node's health until ctx ends. Where another has the address, as a kube-proxy that is yet to go, it is tried again: that one answers meanwhile.
func (c *Controller) serveNode(ctx context.Context) {
	if c.HealthListen == "" {
		return
	}
	wait := backoff.Backoff{Min: c.retry, Max: lastRetry}
	for said := false; ; {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", c.HealthListen)
		if err == nil {
			wait.Reset()
			said, err = false, c.serveNodeAt(ctx, l)
		}
		if ctx.Err() != nil {
			return
		}
		if !said {
			c.Log.WarnContext(ctx, "the node's health is not served; it is tried again", "listen", c.HealthListen, "err", err)
			said = true
		}
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

func (c *Controller) serveNodeAt(ctx context.Context, l net.Listener) error {
	server := healthServer(c.nodeHandler(), c.Log)
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // a slow client does not hold up the end
	if err := httpserve.RunPublic(ctx, server, l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("node's health at %s: %w", l.Addr(), err)
	}
	return nil
}
