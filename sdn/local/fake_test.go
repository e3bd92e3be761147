package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/internal/failpoint"
)

// fakeKernel is a Datapath without a kernel: it adds up what it is told, as strictly as the kernel: an element for a domain that is not
// there is an error, and so is a port with a security group that the domain was not told of. A port's network need not be there. What filters and limits ports does not come along
// with a network that is fetched.
type fakeKernel struct {
	mu    sync.Mutex
	state map[string]*fakeDomain
	calls int
	told  []string // ports that were told of, once for each call
	// frontends counts those that were told of, without those of domains that were told all.
	frontends int
	can       router.Support
	// fail, if set, is asked before each changing call.
	fail func(call, domain string) error
	// refuse, if set, tells ports by their MACs that are not added.
	refuse func(mac string) bool
	// broken is a domain that Reconcile cannot change.
	broken string
	// alone has the host reach a range by one domain only, the first that wants it.
	alone  bool
	holder map[netip.Prefix]string
}

type fakeDomain struct {
	shape    router.Shape
	ports    map[string]router.Port
	forwards map[forwardID]router.Forward
	vips     map[netip.Addr]router.VIP
	balanced map[lb.Key]lb.Frontend
	asked    bool // it was told all that it balances
	groups   map[string]securitygroup.Group
	sets     map[string]securitygroup.Set
	left     map[string]bool // filtered and limited ports that went with their networks, and that the filter does not forget by itself
}

func newFakeDomain(d router.Shape) *fakeDomain {
	return &fakeDomain{shape: d, ports: map[string]router.Port{}, forwards: map[forwardID]router.Forward{}, vips: map[netip.Addr]router.VIP{},
		balanced: map[lb.Key]lb.Frontend{}, groups: map[string]securitygroup.Group{}, sets: map[string]securitygroup.Set{},
		left: map[string]bool{}}
}

// forget forgets the groups that no port has and the address groups that no rule of the others names.
func (d *fakeDomain) forget() {
	had, named := map[string]bool{}, map[string]bool{}
	for _, p := range d.ports {
		for _, g := range p.Groups {
			had[g] = true
			for _, r := range d.groups[g].Rules {
				named[r.RemoteSet] = true
			}
		}
	}
	maps.DeleteFunc(d.groups, func(id string, _ securitygroup.Group) bool { return !had[id] })
	maps.DeleteFunc(d.sets, func(id string, _ securitygroup.Set) bool { return !named[id] })
}

func newFake() *fakeKernel {
	return &fakeKernel{can: router.Support{Support: securitygroup.Support{Groups: true, Limits: true}, VLANs: true, SCTP: true}, state: map[string]*fakeDomain{}, holder: map[netip.Prefix]string{}}
}

func (f *fakeKernel) begin(ctx context.Context, call, domain string) error {
	f.calls++
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.fail != nil {
		return f.fail(call, domain)
	}
	return nil
}

// Set does what the kernel does in one step kind by kind: "shape", "groups", "forwards", "ports",
// "frontends" and "vips" are calls of their own.
func (f *fakeKernel) Set(ctx context.Context, c router.Change) (result router.Result, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Shape != nil {
		if err := f.begin(ctx, "shape", c.Router); err != nil {
			return result, err
		}
		result = f.shape(*c.Shape)
	}
	for _, step := range []struct {
		call  string
		empty bool
		do    func(*fakeDomain, router.Change) error
	}{
		{"groups", len(c.Groups)+len(c.Sets) == 0, f.define}, {"forwards", c.Forwards.IsEmpty(), f.forward},
		{"ports", c.Ports.IsEmpty(), f.ports}, {"frontends", c.Frontends.IsEmpty(), f.balance},
		{"vips", c.VIPs.IsEmpty(), f.answer},
	} {
		if step.empty {
			continue
		}
		if err := f.begin(ctx, step.call, c.Router); err != nil {
			return result, err
		}
		d := f.state[c.Router]
		if d == nil {
			return result, fmt.Errorf("no domain %s", c.Router)
		}
		if err := step.do(d, c); err != nil {
			return result, err
		}
	}
	return result, nil
}

func (f *fakeKernel) define(d *fakeDomain, c router.Change) error {
	for _, s := range c.Sets {
		if s.Revision == 0 || d.sets[s.ID].Revision > s.Revision {
			return fmt.Errorf("address group %s at revision %d after %d", s.ID, s.Revision, d.sets[s.ID].Revision)
		}
		d.sets[s.ID] = s
	}
	for _, g := range c.Groups {
		if g.Revision == 0 || d.groups[g.ID].Revision > g.Revision {
			return fmt.Errorf("security group %s at revision %d after %d", g.ID, g.Revision, d.groups[g.ID].Revision)
		}
		d.groups[g.ID] = g
		for _, r := range g.Rules {
			if _, known := d.sets[r.RemoteSet]; r.RemoteSet != "" && !known {
				return fmt.Errorf("no address group %s in domain %s", r.RemoteSet, c.Router)
			}
		}
	}
	failpoint.Here("router.groups.told")
	return nil
}

func (f *fakeKernel) Supports() router.Support { return f.can }

func (f *fakeKernel) shape(d router.Shape) (result router.Result) {
	had := f.state[d.ID]
	if had == nil {
		had = newFakeDomain(d)
		f.state[d.ID] = had
	}
	had.shape = d
	// Networks that lie elsewhere are fetched with their ports. Ports of networks that went stay until then.
	has := func(network string) bool {
		return slices.ContainsFunc(d.Bridges, func(b router.Bridge) bool { return b.Network == network })
	}
	for id, other := range f.state {
		for port, p := range other.ports {
			if id != d.ID && has(p.Network) {
				if p.Filtered() || p.Limits != (securitygroup.Limits{}) {
					other.left[port] = true
				}
				p.Groups, p.Limits = nil, securitygroup.Limits{}
				had.ports[port] = p
				delete(other.ports, port)
			}
		}
		other.forget()
		if id != d.ID {
			other.shape.Bridges = slices.DeleteFunc(slices.Clone(other.shape.Bridges), func(b router.Bridge) bool { return has(b.Network) })
		}
	}
	maps.DeleteFunc(f.holder, func(p netip.Prefix, id string) bool {
		return id == d.ID && (d.Uplink == nil || !slices.Contains(d.Uplink.Reach, p))
	})
	if d.Uplink != nil {
		for _, p := range d.Uplink.Reach {
			if p.Addr().Is4() && p.Addr().As4()[0] == 172 {
				result.Unreached = append(result.Unreached, router.Unreached{Prefix: p, Reason: "the test says so"})
			}
			if f.alone && f.holder[p] == "" {
				f.holder[p] = d.ID
			}
			if f.alone && f.holder[p] != d.ID {
				result.Unreached = append(result.Unreached, router.Unreached{Prefix: p, Reason: "another router has it"})
			}
		}
	}
	return result
}

func (f *fakeKernel) Delete(ctx context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(ctx, "delete", id); err != nil {
		return err
	}
	delete(f.state, id)
	maps.DeleteFunc(f.holder, func(_ netip.Prefix, holder string) bool { return holder == id })
	return nil
}

func (f *fakeKernel) ports(d *fakeDomain, c router.Change) error {
	remove, add := c.Ports.Remove, c.Ports.Add
	for _, p := range add {
		if f.refuse != nil && f.refuse(p.MAC.String()) {
			return errInjected
		}
	}
	seen := map[string]bool{}
	for _, p := range slices.Concat(remove, add) {
		if !seen[p.ID] {
			f.told = append(f.told, p.ID)
		}
		seen[p.ID] = true
	}
	for _, p := range remove {
		delete(d.ports, p.ID)
		delete(d.left, p.ID)
	}
	for _, p := range add {
		delete(d.left, p.ID)
		for _, g := range p.Groups {
			if _, known := d.groups[g]; !known {
				return fmt.Errorf("security group %s in domain %s: %w", g, c.Router, os.ErrNotExist)
			}
		}
		d.ports[p.ID] = p
	}
	d.forget()
	return nil
}

func (f *fakeKernel) forward(d *fakeDomain, c router.Change) error {
	for _, w := range c.Forwards.Remove {
		delete(d.forwards, identify(w))
	}
	for _, w := range c.Forwards.Add {
		d.forwards[identify(w)] = w
	}
	return nil
}

func (f *fakeKernel) answer(d *fakeDomain, c router.Change) error {
	for _, v := range c.VIPs.Remove {
		delete(d.vips, v.Addr)
	}
	for _, v := range c.VIPs.Add {
		d.vips[v.Addr] = v
	}
	return nil
}

func (f *fakeKernel) balance(d *fakeDomain, c router.Change) error {
	if !d.asked {
		whole, err := c.Frontends.All()
		if err != nil {
			return err
		}
		d.asked, d.balanced = true, map[lb.Key]lb.Frontend{}
		for _, v := range whole {
			d.balanced[v.Key] = v
		}
		return nil
	}
	f.frontends += len(c.Frontends.Set) + len(c.Frontends.Remove)
	for _, k := range c.Frontends.Remove {
		delete(d.balanced, k)
	}
	for _, v := range c.Frontends.Set {
		d.balanced[v.Key] = v
	}
	return nil
}

func (f *fakeKernel) Location(domain, network string) (string, string) {
	return "/fake/" + domain, "br-" + network[:11]
}

func (f *fakeKernel) Reconcile(ctx context.Context, s router.State) (router.Report, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.begin(ctx, "Reconcile", ""); err != nil {
		return router.Report{}, err
	}
	state, report := spread(s), router.Report{Whole: map[string]bool{}}
	var err error
	for id := range state {
		if report.Whole[id] = id != f.broken; id == f.broken {
			err = errInjected
			if state[id] = f.state[id]; state[id] == nil {
				delete(state, id)
			}
		}
	}
	f.state = state
	return report, err
}

// spread turns a state into what adding it up must come to.
func spread(s router.State) map[string]*fakeDomain {
	state := map[string]*fakeDomain{}
	for _, d := range s.Shapes {
		state[d.ID] = newFakeDomain(d)
	}
	for domain, ports := range s.Ports {
		for _, p := range ports {
			state[domain].ports[p.ID] = p
		}
	}
	for domain, forwards := range s.Forwards {
		for _, w := range forwards {
			state[domain].forwards[identify(w)] = w
		}
	}
	for domain, list := range s.VIPs {
		for _, v := range list {
			state[domain].vips[v.Addr] = v
		}
	}
	for domain, list := range s.Frontends {
		for _, v := range list {
			state[domain].balanced[v.Key] = v
		}
	}
	for _, d := range state {
		for _, g := range s.Groups {
			d.groups[g.ID] = g
		}
		for _, set := range s.Sets {
			d.sets[set.ID] = set
		}
		d.forget()
	}
	return state
}

func (f *fakeKernel) Diff(ctx context.Context, s router.State) ([]router.Difference, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []router.Difference
	want := spread(s)
	for id, d := range want {
		if f.state[id] != nil {
			f.state[id].forget() // what a failed change told without its ports is no difference
			d.asked = f.state[id].asked
		}
		if have := f.state[id]; !reflect.DeepEqual(have, d) {
			out = append(out, router.Difference{Router: id, Want: fmt.Sprintf("%+v", d), Have: fmt.Sprintf("%+v", have)})
		}
	}
	for id, d := range f.state {
		if want[id] == nil {
			out = append(out, router.Difference{Router: id, Have: fmt.Sprintf("%+v", d)})
		}
	}
	return out, nil
}

func (f *fakeKernel) Down(context.Context) error             { return nil }
func (f *fakeKernel) UplinkMTU(context.Context) (int, error) { return 1450, nil }

var errInjected = errors.New("injected")
