package admin

import (
	"context"
	"net/http"
	"time"
)

// Pods are the pods of a cluster's node with their ports, and the pools that they come
// from, as the node's daemon knows them.
type Pods struct {
	Node     string    `json:"node"`
	Conflist string    `json:"conflist"` // by which container runtimes find the network
	Waiting  int       `json:"waiting"`  // pods that wait for a port
	Ports    []PodPort `json:"ports"`
	Pools    []PodPool `json:"pools"`
}

// PodPort is a port of the node's. Those that no pod has are without Pod.
type PodPort struct {
	ID        string    `json:"id"`
	Pool      string    `json:"pool"`
	Status    string    `json:"status"` // of its KuryrPort: available, bound, …; "" where that is not there
	Addresses []string  `json:"addresses"`
	MAC       string    `json:"mac"`
	Network   string    `json:"network,omitempty"`  // its id in the SDN
	Ranges    []string  `json:"ranges,omitempty"`   // of the network's subnets that it has addresses on
	Gateways  []string  `json:"gateways,omitempty"` // theirs
	Groups    []string  `json:"groups,omitempty"`   // ids of its security groups
	VIF       string    `json:"vif,omitempty"`      // how it is plugged, by the SDN's word
	Pod       string    `json:"pod,omitempty"`      // namespace/name
	UID       string    `json:"uid,omitempty"`
	Container string    `json:"container,omitempty"` // its sandbox
	Interface string    `json:"interface,omitempty"`
	HostPorts []string  `json:"host_ports,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Link      string    `json:"link,omitempty"`  // how its interface stands: absent, loose, whole
	Wrong     string    `json:"wrong,omitempty"` // in what journal, API server and kernel do not agree
}

// PodPool is how full a pool is.
type PodPool struct {
	Name    string `json:"name"`
	Network string `json:"network"`
	Ports   int    `json:"ports"`
	Free    int    `json:"free"`
	Waiting int    `json:"waiting"`
	Minimum int    `json:"minimum"`
	Maximum int    `json:"maximum"` // 0: none
	Why     string `json:"why,omitempty"`
}

// Pods asks the daemon of a cluster's node for its pods.
func (c *Client) Pods(ctx context.Context) (out Pods, err error) {
	return out, c.call(ctx, http.MethodGet, "/admin/pods", nil, &out)
}

// podding serves Pods, where there are any.
func podding(mux *http.ServeMux, s server, pods func(context.Context) (Pods, error)) {
	if pods != nil {
		mux.HandleFunc("GET /admin/pods", answer(
			s, askTimeout, func(ctx context.Context, _ *http.Request) (Pods, error) { return pods(ctx) },
		))
	}
}
