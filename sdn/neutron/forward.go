package neutron

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/portforwarding"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sync/errgroup"
)

// forwardWire is a port forwarding. It carries no Key: a protocol and an outer port of a floating IP
// are one forwarding's. Lists are our own: gophercloud's pages break if a marker is deleted between two.
type forwardWire struct {
	portforwarding.PortForwarding
}

func (w *forwardWire) common() *meta { return &meta{ID: w.ID} }

// forwardsOf are the forwardings of one floating IP.
func forwardsOf(floatingIP sdn.ID) collection[*forwardWire] {
	return collection[*forwardWire]{
		title: "port forwarding", item: "port_forwarding", items: "port_forwardings", path: floatingIPs.at(floatingIP, "port_forwardings"),
	}
}

var forwardProtocols = map[sdn.Protocol]string{sdn.TCP: "tcp", sdn.UDP: "udp", sdn.SCTP: "sctp"}

func (w *forwardWire) decode() sdn.Forward {
	f := sdn.Forward{
		ID:       sdn.ID(w.ID),
		External: decodeRange(w.ExternalPortRange, w.ExternalPort),
		Internal: decodeRange(w.InternalPortRange, w.InternalPort),
		Target:   sdn.Target{Port: sdn.ID(w.InternalPortID)}, Description: w.Description,
	}
	for number, name := range forwardProtocols {
		if name == w.Protocol {
			f.Protocol = number
		}
	}
	f.Target.Addr, _ = netip.ParseAddr(w.InternalIPAddress) // Neutron has one with the port
	return f
}

func decodeRange(ports string, port int) sdn.PortRange {
	from, to, _ := strings.Cut(ports, ":")
	first, errFirst := strconv.ParseUint(from, 10, 16)
	last, errLast := strconv.ParseUint(to, 10, 16)
	if errFirst != nil || errLast != nil {
		return sdn.PortRange{First: uint16(port), Last: uint16(port)}
	}
	return sdn.PortRange{First: uint16(first), Last: uint16(last)}
}

// createForward makes a forwarding that normalForward has returned.
func (p *Provider) createForward(
	ctx context.Context, floatingIP sdn.ID, f sdn.Forward,
) (*forwardWire, error) {
	opts := portforwarding.CreateOpts{
		Protocol: forwardProtocols[f.Protocol], Description: f.Description,
		InternalPortID: string(f.Target.Port), InternalIPAddress: f.Target.Addr.String(),
	}
	if f.External.First == f.External.Last {
		opts.ExternalPort, opts.InternalPort = int(f.External.First), int(f.Internal.First)
	} else {
		opts.ExternalPortRange = fmt.Sprintf("%d:%d", f.External.First, f.External.Last)
		opts.InternalPortRange = fmt.Sprintf("%d:%d", f.Internal.First, f.Internal.Last)
	}
	id := url.PathEscape(string(floatingIP))
	made, err := portforwarding.Create(ctx, p.client.api(), id, opts).Extract()
	if err != nil {
		return nil, p.client.typed(err)
	}
	return &forwardWire{*made}, nil
}

// normalForward checks a forwarding and completes it, but for the target's address.
func (p *Provider) normalForward(f sdn.Forward, field string) (sdn.Forward, error) {
	f.External.Last, f.Internal.Last = max(f.External.First, f.External.Last), lastPort(f.Internal)
	_, known := forwardProtocols[f.Protocol]
	bad := func(part, detail string, args ...any) (sdn.Forward, error) {
		return f, sdn.Invalid("port forwarding", field+"."+part, detail, args...)
	}
	switch {
	case !known:
		return bad("protocol", "%d has no ports; it must be TCP, UDP or SCTP", f.Protocol)
	case f.External.First == 0:
		return bad("external", "is missing")
	case f.Internal.First == 0 || f.Internal.Last < f.Internal.First:
		return bad("internal", "%d-%d is no range of ports", f.Internal.First, f.Internal.Last)
	case f.Internal.First != f.Internal.Last && f.Internal.Last-f.Internal.First != f.External.Last-f.External.First:
		return bad("internal", "must be one port or as many as outside")
	case f.External.First != f.External.Last && !p.extensions.has("floating-ip-port-forwarding-port-ranges"):
		return f, sdn.Unsupported("port forwarding", "this Neutron forwards single ports only: it lacks the extension floating-ip-port-forwarding-port-ranges")
	case f.Description != "" && !p.extensions.has("floating-ip-port-forwarding-description"):
		return f, sdn.Unsupported("port forwarding", "this Neutron's have no descriptions: it lacks the extension floating-ip-port-forwarding-description")
	}
	return f, valid.Text("port forwarding", field+".description", f.Description)
}

func lastPort(r sdn.PortRange) uint16 {
	if r.Last == 0 {
		return r.First
	}
	return r.Last
}

// needForwards refuses if Neutron has no port forwardings.
func (p *Provider) needForwards(ctx context.Context) error {
	const alias = "floating-ip-port-forwarding"
	return p.needExtension(ctx, alias, "port forwarding",
		"this Neutron has none: it lacks the extension "+alias)
}

// EnsureForwards adds forwardings to a floating IP. After a lost answer or a refusal it
// reads the list.
func (p *Provider) EnsureForwards(ctx context.Context, floatingIP sdn.ID, wanted []sdn.Forward) ([]sdn.Forward, error) {
	if err := p.needForwards(ctx); err != nil {
		return nil, err
	}
	if floatingIP == "" {
		return nil, sdn.NotFound("floating IP", floatingIP)
	}
	full := make([]sdn.Forward, len(wanted))
	for i, f := range wanted {
		var err error
		if full[i], err = p.normalForward(f, fmt.Sprintf("forwards[%d]", i)); err != nil {
			return nil, err
		}
	}
	unlock, err := p.locks.lock(ctx, "forwards of "+string(floatingIP))
	if err != nil {
		return nil, err
	}
	defer unlock()
	var have []sdn.Forward
	group, both := errgroup.WithContext(ctx)
	group.Go(func() (err error) { have, err = p.forwards(both, floatingIP, nil); return err })
	group.Go(func() error { return p.resolve(both, full) })
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return p.addForwards(ctx, floatingIP, have, full)
}

// resolve sets the address of targets without one to the first IPv4 address of their port. It refuses
// addresses that the port does not have, and those of IPv6.
func (p *Provider) resolve(ctx context.Context, wanted []sdn.Forward) error {
	q := url.Values{"fields": {"id", "fixed_ips"}}
	for _, f := range wanted {
		if port := string(f.Target.Port); !slices.Contains(q["id"], port) {
			q.Add("id", port)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	ports := map[sdn.ID]*portPart{}
	for w, err := range portParts.find(ctx, p, q) {
		if err != nil {
			return err
		}
		ports[sdn.ID(w.ID)] = w
	}
	for i := range wanted {
		target := &wanted[i].Target
		port := ports[target.Port]
		if port == nil {
			return sdn.NotFound("port", target.Port)
		}
		if !target.Addr.IsValid() {
			target.Addr = firstV4(port)
		}
		has := func(a sdn.Address) bool { return a.Addr == target.Addr }
		if !slices.ContainsFunc(decodeAddresses(port.Addresses), has) || !target.Addr.Is4() {
			return sdn.Invalid("port forwarding", "target.addr",
				"%v is no IPv4 address of the port %s", target.Addr, target.Port)
		}
	}
	return nil
}

// forwardsAtOnce bounds the requests for forwardings of one floating IP: Neutron makes and deletes
// them one by one.
const forwardsAtOnce = 8

// addForwards makes those of wanted that are not among have. If one is refused, it
// deletes those that it has made.
func (p *Provider) addForwards(ctx context.Context, floatingIP sdn.ID, have, wanted []sdn.Forward) ([]sdn.Forward, error) {
	out := make([]sdn.Forward, len(wanted))
	var missing []int
	for i, f := range wanted {
		there, err := among(have, f, i)
		if err != nil {
			return nil, err
		}
		if out[i] = there; there.Protocol == 0 {
			missing = append(missing, i)
			have = append(have, f) // two of this call may be in each other's way, or alike
		}
	}
	made, err := p.makeForwards(ctx, floatingIP, wanted, out, missing)
	if err != nil {
		if errBack := p.DeleteForwards(context.WithoutCancel(ctx), floatingIP, made); errBack != nil {
			p.log.Warn("port forwardings that were made could not be taken back", "floating_ip", floatingIP, "err", errBack)
		}
		return nil, err
	}
	for i, f := range wanted {
		if out[i].ID == "" { // like another of this call
			if out[i], err = among(out, f, i); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// makeForwards makes the missing of the wanted into out, and returns what it made, also with an
// error. The first of a protocol is made alone: it chooses the router of the floating IP, and with
// OVN two of Neutron's processes would each make the load balancer of that protocol, of which one
// stays permanently. After a failure no request is begun, and those in flight end.
func (p *Provider) makeForwards(
	ctx context.Context, floatingIP sdn.ID, wanted, out []sdn.Forward, missing []int,
) (made []sdn.ID, err error) {
	var mu sync.Mutex
	failed := false
	create := func(i int) error {
		mu.Lock()
		skip := failed
		mu.Unlock()
		if skip {
			return nil
		}
		w, err := p.createForward(ctx, floatingIP, wanted[i])
		if err == nil {
			out[i] = w.decode()
		} else {
			out[i], err = p.forwardAfter(ctx, floatingIP, wanted[i], i, err)
		}
		mu.Lock()
		defer mu.Unlock()
		failed = failed || err != nil
		if err == nil && w != nil {
			made = append(made, out[i].ID)
		}
		return err
	}
	first, others := oneOfEach(missing, func(i int) sdn.Protocol { return wanted[i].Protocol })
	for _, i := range first {
		if err := create(i); err != nil {
			return made, err
		}
	}
	var group errgroup.Group
	group.SetLimit(forwardsAtOnce)
	for _, i := range others {
		group.Go(func() error { return create(i) })
	}
	err = group.Wait()
	return made, err
}

// oneOfEach divides items: one of each protocol, and the others.
func oneOfEach[T any](items []T, protocol func(T) sdn.Protocol) (one, others []T) {
	seen := map[sdn.Protocol]bool{}
	for _, item := range items {
		if seen[protocol(item)] {
			others = append(others, item)
		} else {
			seen[protocol(item)] = true
			one = append(one, item)
		}
	}
	return one, others
}

// among returns the forwarding that is like f, the zero one if there is none, or the
// conflict with one at its outer ports.
func among(have []sdn.Forward, f sdn.Forward, position int) (sdn.Forward, error) {
	for _, h := range have {
		same := h
		same.ID, same.Description = f.ID, f.Description
		if same == f {
			return h, nil
		}
		if h.Protocol == f.Protocol && h.External.First <= f.External.Last && f.External.First <= h.External.Last {
			return sdn.Forward{}, sdn.Conflict(sdn.Exists, "port forwarding", fmt.Sprintf("forwards[%d].external", position),
				"%s %d-%d is another's", forwardProtocols[f.Protocol], h.External.First, h.External.Last)
		}
	}
	return sdn.Forward{}, nil
}

// forwardAfter returns the forwarding that exists in spite of the refusal: the answer was
// lost, or another call made the same. Otherwise it returns the meaning of the refusal,
// for which Neutron has only 400.
func (p *Provider) forwardAfter(ctx context.Context, floatingIP sdn.ID, f sdn.Forward, position int, refusal error) (sdn.Forward, error) {
	have, err := p.forwards(context.WithoutCancel(ctx), floatingIP, nil)
	if err != nil {
		return sdn.Forward{}, refusal
	}
	there, err := among(have, f, position)
	if err != nil || there.ID != "" {
		return there, err
	}
	field := fmt.Sprintf("forwards[%d].", position)
	fail := func(kind sdn.Kind, reason sdn.Reason, field, detail string) (sdn.Forward, error) {
		return sdn.Forward{}, &sdn.Error{Kind: kind, Reason: reason, Noun: "port forwarding", Field: field, Detail: detail, Err: refusal}
	}
	switch message := refusal.Error(); {
	case sdn.ReasonOf(refusal) == sdn.Exists && sdn.FieldOf(refusal) == "target":
		return fail(sdn.KindConflict, sdn.InUse, "", "the floating IP is associated with a port")
	case !sdn.IsInvalid(refusal):
		return sdn.Forward{}, refusal
	case strings.Contains(message, "collision"):
		return fail(sdn.KindConflict, sdn.Exists, field+"internal", "Neutron leads to a port of an address once only")
	case strings.Contains(message, "is not reachable from"):
		return fail(sdn.KindNotFound, "", field+"target", "no router connects it with the external network")
	case strings.Contains(message, "can not reach it"):
		return fail(sdn.KindConflict, sdn.InUse, field+"target", "the floating IP's other forwardings go through another router")
	}
	return sdn.Forward{}, inField(refusal, field+"target")
}

// forwards lists those of a floating IP; with ports, those to one of the ports.
func (p *Provider) forwards(ctx context.Context, floatingIP sdn.ID, ports []sdn.ID) ([]sdn.Forward, error) {
	var out []sdn.Forward
	q := url.Values{}
	addIDs(q, "internal_port_id", ports)
	for w, err := range forwardsOf(floatingIP).find(ctx, p, q) {
		if err != nil {
			return nil, err
		}
		out = append(out, w.decode())
	}
	return out, nil
}

// FindForwards streams port forwardings. Neutron lists them by floating IP only: for
// ports alone, the project's floating IPs are read first. With the extension
// expose-port-forwarding-in-fip they tell what they forward to.
func (p *Provider) FindForwards(ctx context.Context, q sdn.ForwardQuery) iter.Seq2[sdn.Forward, error] {
	return func(yield func(sdn.Forward, error) bool) {
		if err := p.needForwards(ctx); err != nil {
			yield(sdn.Forward{}, err)
			return
		}
		ids, err := q.FloatingIPs, error(nil)
		if len(ids) == 0 {
			if ids, err = p.forwarding(ctx, q.Ports); err != nil {
				yield(sdn.Forward{}, err)
				return
			}
		}
		for _, id := range ids {
			found, err := p.forwards(ctx, id, q.Ports)
			if sdn.IsNotFound(err) {
				continue // a floating IP that is not there has none
			}
			if err != nil {
				yield(sdn.Forward{}, err)
				return
			}
			for _, f := range found {
				if !yield(f, nil) {
					return
				}
			}
		}
	}
}

// forwarding returns the floating IPs that may forward to one of the ports: those without
// a port that have a router.
func (p *Provider) forwarding(ctx context.Context, ports []sdn.ID) ([]sdn.ID, error) {
	exposed := p.extensions.has("expose-port-forwarding-in-fip")
	wanted := map[string]bool{}
	for _, id := range ports {
		wanted[string(id)] = true
	}
	var ids []sdn.ID
	for w, err := range floatingIPs.find(ctx, p, url.Values{}) {
		if err != nil {
			return nil, err
		}
		may := !exposed && text(w.Port) == "" && text(w.Router) != ""
		for _, f := range w.Forwards {
			may = may || len(ports) == 0 || wanted[f.InternalPortID]
		}
		if may {
			ids = append(ids, sdn.ID(w.ID))
		}
	}
	return ids, nil
}

// DeleteForwards deletes forwardings of a floating IP. A Neutron that has no such thing has none of
// them. The last of a protocol is deleted alone: with OVN, two of Neutron's processes that delete
// the last two leave the load balancer of that protocol permanently, as each still sees the other's.
func (p *Provider) DeleteForwards(ctx context.Context, floatingIP sdn.ID, ids []sdn.ID) error {
	if floatingIP == "" {
		return nil
	}
	var last []sdn.ID
	if len(ids) > 1 {
		have, err := p.forwards(ctx, floatingIP, nil)
		if sdn.IsNotFound(err) || sdn.IsUnsupported(err) {
			return nil
		}
		if err != nil {
			return err
		}
		protocols := map[sdn.ID]sdn.Protocol{}
		for _, f := range have {
			protocols[f.ID] = f.Protocol
		}
		ids = slices.DeleteFunc(slices.Clone(ids), func(id sdn.ID) bool {
			_, there := protocols[id]
			return !there
		})
		last, ids = oneOfEach(ids, func(id sdn.ID) sdn.Protocol { return protocols[id] })
	}
	for _, ids := range [][]sdn.ID{ids, last} {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(forwardsAtOnce)
		for _, id := range ids {
			group.Go(func() error {
				err := forwardsOf(floatingIP).erase(ctx, p, id, 0)
				if sdn.IsUnsupported(err) {
					return nil
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}
