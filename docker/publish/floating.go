package publish

import (
	"context"
	"net/netip"
	"strings"
	"sync"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/sdn"
)

// AtFloatingIP publishes ports of an endpoint by forwardings of a floating IP, which may forward to
// other endpoints too.
func (h *Publisher) AtFloatingIP(
	ctx context.Context, endpoint string, f sdn.FloatingIP, target sdn.Target, ports []Port,
) error {
	for i, p := range ports {
		if p.Host.IsValid() && !p.Host.IsUnspecified() && p.Host != f.Address {
			return api.Refuse("port %v cannot be published on %s: the endpoint's floating IP is %s", p, p.Host, f.Address)
		}
		ports[i].Host = f.Address
	}
	w := &atFloatingIP{sdn: h.SDN, floatingIP: f, target: target}
	w.there = sync.OnceValues(func() ([]sdn.Forward, error) {
		return sdn.All(h.SDN.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}}))
	})
	return h.run(ctx, w, endpoint, ports)
}

// atFloatingIP is the way by a floating IP. It keeps no port of the host.
type atFloatingIP struct {
	sdn        sdn.Provider
	floatingIP sdn.FloatingIP
	target     sdn.Target
	there      func() ([]sdn.Forward, error)
}

func (w *atFloatingIP) addresses(Port) []netip.Addr { return []netip.Addr{w.floatingIP.Address} }

func (w *atFloatingIP) before(_ context.Context, c choice, free func(uint16) bool) (uint16, error) {
	there, err := w.there()
	if err != nil {
		return 0, err
	}
	for _, f := range there {
		if f.Protocol == c.Protocol && f.Target.Port == w.target.Port && f.Internal.First == c.Port.Port &&
			free(f.External.First) {
			return f.External.First, nil
		}
	}
	return 0, nil
}

// reserve fails for what another endpoint is known to have. That saves a call of the SDN for each.
func (w *atFloatingIP) reserve(_ context.Context, c choice) error {
	there, err := w.there()
	if err != nil {
		return err
	}
	for _, f := range there {
		inRange := f.External.First <= c.host && c.host <= f.External.Last
		if inRange && f.Protocol == c.Protocol && f.Target.Port != w.target.Port {
			return &notFree{w.floatingIP.Address, hostports.ErrHeld}
		}
	}
	return nil
}

func (w *atFloatingIP) release(choice) {}

func (w *atFloatingIP) publish(ctx context.Context, choices []choice) error {
	var forwards []sdn.Forward
	for _, c := range choices {
		forwards = append(forwards, sdn.Forward{
			Protocol: c.Protocol, External: sdn.PortRange{First: c.host, Last: c.host},
			Target: w.target, Internal: sdn.PortRange{First: c.Port.Port, Last: c.Port.Port},
		})
	}
	_, err := w.sdn.EnsureForwards(ctx, w.floatingIP.ID, forwards)
	if err == nil {
		return nil
	}
	field := sdn.FieldOf(err)
	at, ok := position(field)
	if ok && sdn.ReasonOf(err) == sdn.Exists && strings.HasSuffix(field, ".external") && at < len(choices) {
		return &taken{choice: at, at: w.floatingIP.Address, err: err}
	}
	return err
}
