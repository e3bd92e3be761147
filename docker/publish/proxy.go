package publish

import (
	"context"
	"errors"
	"net/netip"

	"github.com/kuryr/kuryr/docker/publish/portproxy"
)

// ByProxy publishes ports of an endpoint by the proxy, which dials from the container's namespace, on
// an SDN whose floating IPs cannot stand for the host's addresses. The container sees its own address
// as the client's. had is what the endpoint published before. After an error the caller stops what is
// left.
func (h *Publisher) ByProxy(
	ctx context.Context, e Endpoint, namespace string, had []portproxy.Forward, ports []Port,
) error {
	return h.run(ctx, &byProxy{h.Proxy, e, namespace, had}, e.ID, ports)
}

// byProxy is the way by the proxy. Reserving a port publishes it.
type byProxy struct {
	*portproxy.Proxy
	e         Endpoint
	namespace string
	had       []portproxy.Forward
}

func (w *byProxy) addresses(p Port) []netip.Addr {
	switch {
	case len(w.e.Port.Addresses) == 0:
		return nil
	case p.Host.IsValid():
		return []netip.Addr{p.Host}
	case w.e.Binding.IsValid():
		return []netip.Addr{w.e.Binding}
	}
	return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
}

func (w *byProxy) before(_ context.Context, c choice, free func(uint16) bool) (uint16, error) {
	for _, f := range w.had {
		host := f.Listen.Port()
		if f.Protocol == c.Protocol && f.Target.Port() == c.Port.Port && free(host) {
			return host, nil
		}
	}
	return 0, nil
}

// reserve starts the proxy. If all addresses of the host are meant, a host without IPv6, or
// without IPv4, is no failure.
func (w *byProxy) reserve(_ context.Context, c choice) error {
	started := 0
	var without error
	for n, a := range c.on {
		err := w.Start(w.e.ID, w.forward(c, a))
		switch {
		case err == nil:
			started++
		case errors.Is(err, portproxy.ErrNoFamily) && len(c.on) > 1:
			without = err
		default:
			w.release(choice{Port: c.Port, host: c.host, on: c.on[:n]})
			return &notFree{a, err}
		}
	}
	if started == 0 {
		return &notFree{c.on[0], without}
	}
	return nil
}

func (w *byProxy) release(c choice) {
	for _, a := range c.on {
		w.Stop(w.e.ID, w.forward(c, a))
	}
}

func (w *byProxy) publish(context.Context, []choice) error { return nil }

func (w *byProxy) forward(c choice, a netip.Addr) portproxy.Forward {
	return portproxy.Forward{
		Protocol: c.Protocol, Listen: netip.AddrPortFrom(a, c.host), Namespace: w.namespace,
		Target: netip.AddrPortFrom(w.target(a), c.Port.Port),
	}
}

// target is the endpoint's address that is dialled for an address of the host: of the same family
// if it has one.
func (w *byProxy) target(host netip.Addr) netip.Addr {
	for _, a := range w.e.Port.Addresses {
		if a.Addr.Is6() == host.Is6() {
			return a.Addr
		}
	}
	return w.e.Port.Addresses[0].Addr
}
