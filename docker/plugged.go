package docker

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/portproxy"
	"github.com/kuryr/kuryr/sdn"
)

// plugged is what this host remembers of an endpoint of its own, so that it can be joined and taken away without asking the SDN, and also
// while that is away. The SDN is the truth: where there is no record, it is asked.
type plugged struct {
	Network  string   // the engine's id
	Port     sdn.Port // as it was when the record was written
	MTU      int
	Internal bool // its containers are to have no gateway
	// Subnets are those of the port's addresses, known from the first Join on.
	Subnets []sdn.Subnet `json:",omitempty"`
	// Sandbox is the path of the container's network namespace, from Join to Leave.
	Sandbox string `json:",omitempty"`
	// Started is when a successful CreateEndpoint began, from then until Leave.
	Started time.Time `json:",omitzero"`
	// Proxied is what the proxy of this host publishes.
	Proxied []portproxy.Forward `json:",omitempty"`
	// Floating says that floating IPs forward to the endpoint, or may: it is written before the first is made.
	Floating bool `json:",omitempty"`
	// Unpublished says that nothing is published at the host's addresses. It is cleared before
	// anything is. Records of earlier versions do not say so.
	Unpublished bool `json:",omitempty"`
	// Forwarder is the floating IP that does so where it is not Kuryr's own.
	Forwarder sdn.ID `json:",omitempty"`
	// Exposed says the same of a security group for its exposed ports.
	Exposed bool `json:",omitempty"`
}

// pluggedRecords are the records of all endpoints of this host, in memory and in a folder that goes with the interfaces at the latest.
type pluggedRecords struct {
	folder *jsonstore.Store
	log    *slog.Logger

	mu  sync.Mutex
	all map[string]plugged // by the engine's id of the endpoint
}

// openPlugged reads what an earlier process wrote down. Where that cannot be, the SDN is asked, and where nothing can be written it is remembered in
// memory alone.
func openPlugged(dir string, log *slog.Logger) *pluggedRecords {
	folder, err := jsonstore.OpenVolatile(dir)
	if err != nil {
		log.Warn("endpoints are not written down: should Kuryr restart while the SDN is away, they cannot be taken away then", "err", err)
	}
	all, err := jsonstore.Load[plugged](folder)
	if err != nil {
		log.Warn("what was written down of endpoints cannot all be read; the SDN is asked instead", "err", err)
	}
	return &pluggedRecords{folder: folder, log: log, all: all}
}

// get is the record of an endpoint, and whether there is one.
func (p *pluggedRecords) get(endpoint string) (plugged, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.all[endpoint]
	return r, ok
}

// put writes a record. The caller holds the endpoint's lock. What cannot be written is remembered in memory nevertheless.
func (p *pluggedRecords) put(ctx context.Context, endpoint string, r plugged) {
	r.Port.Status = "" // of no use later
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[endpoint] = r
	if err := p.folder.Put(endpoint, r); err != nil {
		p.log.WarnContext(ctx, "an endpoint is not written down: should Kuryr restart while the SDN is away, it cannot be taken away then", "endpoint", endpoint, "err", err)
	}
}

// endStarts records that no endpoint is being started any more. It does not wait for the locks
// of endpoints, which calls in progress hold.
func (p *pluggedRecords) endStarts() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for endpoint, r := range p.all {
		if !r.isStarting() {
			continue
		}
		r.Started = time.Time{}
		p.all[endpoint] = r
		if err := p.folder.Put(endpoint, r); err != nil {
			p.log.Warn("write endpoint record", "endpoint", endpoint, "err", err)
		}
	}
}

// drop forgets an endpoint that is gone. The caller holds its lock.
func (p *pluggedRecords) drop(ctx context.Context, endpoint string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.all[endpoint]; !known {
		return
	}
	delete(p.all, endpoint)
	if err := p.folder.Delete(endpoint); err != nil {
		p.log.WarnContext(ctx, "what was written down of an endpoint that is gone stays", "endpoint", endpoint, "err", err)
	}
}

// endpoints are those that have records, in order.
func (p *pluggedRecords) endpoints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.all))
}

// notePlugged writes down the port that an endpoint has got. What an earlier record of it knows to be published stays known.
func (d *Driver) notePlugged(ctx context.Context, endpoint, network string, n sdn.Network, port sdn.Port) {
	r, known := d.plugged.get(endpoint)
	r.Unpublished = r.Unpublished || !known
	r.Network, r.Port, r.MTU, r.Internal, r.Subnets = network, port, n.MTU, gatewayless(n), nil
	r.Started = d.startingSince(endpoint)
	d.plugged.put(ctx, endpoint, r)
}

// plugOf is the record of an endpoint of a network, or what the SDN says where there is none.
func (d *Driver) plugOf(ctx context.Context, endpoint, network string) (plugged, error) {
	if r, known := d.plugged.get(endpoint); known && r.Network == network {
		return r, nil
	}
	port, found, err := d.port(ctx, endpoint)
	if err == nil && !found {
		err = refuse("there is no endpoint %s", endpoint)
	}
	if err != nil {
		return plugged{}, err
	}
	n, err := d.network(ctx, network)
	if err != nil {
		return plugged{}, err
	}
	switch {
	case n.ID != port.Network:
		return plugged{}, refuse("endpoint %s is not of network %s", endpoint, network)
	case port.Host != d.host:
		return plugged{}, refuse("endpoint %s is bound to host %q", endpoint, api.Clip(port.Host, 100))
	}
	r := plugged{Network: network, Port: port, MTU: n.MTU, Internal: gatewayless(n), Floating: true, Exposed: true}
	r.Forwarder, err = d.lender(ctx, port)
	return r, err
}

// portOf is the port of an endpoint as its record has it, or as the SDN says where there is none.
func (d *Driver) portOf(ctx context.Context, endpoint string) (sdn.Port, bool, error) {
	if r, known := d.plugged.get(endpoint); known {
		return r.Port, true, nil
	}
	return d.port(ctx, endpoint)
}

// unplugKnown takes away the interface of an endpoint that has a record, and what the proxy publishes of it: what is of this host alone needs no
// SDN. It tells whether there was a record.
func (d *Driver) unplugKnown(ctx context.Context, endpoint string) (bool, error) {
	d.stopProxied(ctx, endpoint)
	r, known := d.plugged.get(endpoint)
	if !known {
		return false, nil
	}
	if r.Sandbox != "" || !r.Started.IsZero() {
		r.Sandbox, r.Started = "", time.Time{}
		d.plugged.put(ctx, endpoint, r)
	}
	return true, d.unplug(ctx, r.Port)
}

// prunePlugged forgets endpoints whose ports are gone from the SDN: they were taken away while this process was not there.
func (d *Driver) prunePlugged(ctx context.Context) error {
	ports := map[string]sdn.ID{}
	var ids []sdn.ID
	for _, endpoint := range d.plugged.endpoints() {
		if r, ok := d.plugged.get(endpoint); ok {
			ports[endpoint] = r.Port.ID
			ids = append(ids, r.Port.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	there := map[sdn.ID]string{}
	for p, err := range d.sdn.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{IDs: ids}}) {
		if err != nil {
			return err
		}
		there[p.ID] = p.DeviceID
	}
	for endpoint, id := range ports {
		if there[id] == endpoint {
			continue
		}
		if err := d.pruneOne(ctx, endpoint, id); err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) pruneOne(ctx context.Context, endpoint string, id sdn.ID) error {
	unlock, err := d.locks.lock(ctx, "endpoint/"+endpoint)
	if err != nil {
		return err
	}
	defer unlock()
	r, ok := d.plugged.get(endpoint)
	if !ok || r.Port.ID != id {
		return nil // it has another by now
	}
	if _, found, err := d.port(ctx, endpoint); err != nil || found {
		return err
	}
	// Whoever took the port away, or has given Kuryr credentials that do not see it: a container that runs is not cut off.
	if err := d.unconnected(ctx, r.Port); errors.As(err, &stayed{}) {
		d.log.WarnContext(ctx, "the SDN does not have the port of an endpoint that a container has", "endpoint", endpoint, "port", id)
		return nil
	} else if err != nil {
		return err
	}
	if _, err := d.unplugKnown(ctx, endpoint); err != nil {
		return err
	}
	if err := d.unpublish(ctx, endpoint); err != nil {
		return err
	}
	d.plugged.drop(ctx, endpoint)
	return nil
}

// gatewayless tells whether a network's containers are to have no gateway, whatever its subnets have.
func gatewayless(n sdn.Network) bool {
	return slices.Contains(n.Tags, identity.TagInternal) || slices.Contains(n.Tags, identity.TagNoGateway)
}
