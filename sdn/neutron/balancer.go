package neutron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// The pause before the next look at a load balancer that Octavia works on is half of the
// time that Octavia has worked, within firstLook and lastLook. After stuckAfter the
// message names Octavia's operator, who alone can help.
const (
	firstLook  = 300 * time.Millisecond
	lastLook   = 15 * time.Second
	stuckAfter = 10 * time.Minute
)

// ApplyLoadBalancer reads the load balancer by one request, and what is below it if that
// has changed since it was read last. Then it sends the one request that is next. It
// finds the load balancer by its Key each time, so a lost answer loses nothing. Of
// several with one Key the younger ones are deleted.
func (p *Provider) ApplyLoadBalancer(ctx context.Context, spec sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	none := sdn.LoadBalancer{}
	if err := checkBalancer(spec); err != nil {
		return none, err
	}
	p.owner.note(spec.Project)
	if err := p.needOctavia(ctx); err != nil {
		return none, err
	}
	unlock, err := p.locks.lock(ctx, balancers.path+" "+nameOf(spec))
	if err != nil {
		return none, err
	}
	defer unlock()
	return p.stepBalancer(ctx, spec)
}

// nameOf names the load balancer of a spec among those of this process.
func nameOf(spec sdn.LoadBalancerSpec) string {
	return cmp.Or(string(spec.ID), spec.Key.String())
}

// stepBalancer sends the one request that is next. The caller has the lock.
func (p *Provider) stepBalancer(ctx context.Context, spec sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	none := sdn.LoadBalancer{}
	w, said, err := p.findBalancer(ctx, spec)
	switch {
	case err != nil:
		return none, err
	case w == nil:
		return p.makeBalancer(ctx, spec)
	case said != "":
		since, _ := p.octavia.memory.see(w)
		return p.pending(w, said, lookAfter(p.octavia.memory.now().Sub(since))), nil
	}
	maker := balancerMaker{can: p.octavia.capabilities(w.Provider), spec: spec, owner: spec.Key, isOVN: w.Provider == ovn, isAmphora: isAmphora(w.Provider), subnet: w.VIPSubnet, usual: &p.octavia.usual}
	if maker.owner.IsZero() {
		maker.owner = w.decode(nil).Key
	}
	if err := unchangeable(w, spec); err != nil {
		return none, err
	}
	if err := lacking(w.Provider, maker.can, spec); err != nil {
		return none, err
	}
	if err := valid.FamilyOfMembers(spec, w.vips()); err != nil {
		return none, err
	}
	since, _ := p.octavia.memory.see(w)
	switch {
	case strings.HasPrefix(w.Provisioning, pendingPrefix):
		return p.busy(w, since), nil
	case w.Provisioning == stateError && spec.Shared:
		return none, sdn.Unavailable(nil, "load balancer "+w.ID, "Octavia holds it in ERROR; its owner must create it again")
	case w.Provisioning == stateError:
		return p.makeAnew(ctx, w, spec)
	}
	below, err := p.below(ctx, w)
	if err != nil {
		return none, err
	}
	key := nameOf(spec)
	quiet := p.octavia.memory.now().Sub(since)
	forgotten, wait := p.nextForgotten(maker.forgotten(below, quiet), key)
	todo := forgotten
	if forgotten != nil && wait == 0 {
		p.octavia.memory.anew(key, todo.part)
	} else if todo, err = maker.next(w, below); err != nil {
		return none, err
	}
	b := p.balancer(w, below)
	if todo == nil && forgotten != nil {
		b.Status = sdn.LoadBalancerStatus{RetryAfter: wait, Message: forgotten.what + " later"}
		return b, nil
	}
	if todo == nil {
		p.octavia.memory.well(key)
		b.Status.Ready = true
		return b, nil
	}
	if todo.repair != "" {
		if wait, times := p.octavia.memory.mayAnew(key, ""); wait > 0 {
			b.Status = sdn.LoadBalancerStatus{RetryAfter: wait, Message: fmt.Sprintf(
				"%s is in ERROR after %d repairs, the next one follows: %s", todo.repair, times, todo.what)}
			return b, nil
		}
		p.octavia.memory.anew(key, "")
	}
	err = todo.do(ctx, p)
	switch {
	case sdn.IsPending(err): // another was faster, or Octavia has lost a status: see forgotten
		b.Status = sdn.LoadBalancerStatus{
			RetryAfter: lookAfter(quiet), Message: fmt.Sprintf("%s: %v", todo.what, err),
		}
		return b, nil
	case sdn.IsNotFound(err): // another was faster: the next step sees what there is
	case err != nil:
		return none, err
	}
	b.Status = sdn.LoadBalancerStatus{RetryAfter: firstLook, Message: todo.what}
	return b, nil
}

// pending returns a load balancer that is not ready.
func (p *Provider) pending(w *balancerWire, message string, after time.Duration) sdn.LoadBalancer {
	b := p.balancer(w, p.octavia.memory.last(sdn.ID(w.ID)))
	b.Status = sdn.LoadBalancerStatus{RetryAfter: after, Message: message}
	return b
}

// busy returns a load balancer that Octavia works on.
func (p *Provider) busy(w *balancerWire, since time.Time) sdn.LoadBalancer {
	age := p.octavia.memory.now().Sub(since)
	message := "Octavia is at work on it: " + w.Provisioning
	if age >= stuckAfter {
		message += fmt.Sprintf(" for %v now; only Octavia's operator can end that (openstack loadbalancer status show %s)", age.Round(time.Minute), w.ID)
	}
	return p.pending(w, message, lookAfter(age))
}

// lookAfter returns the pause for a load balancer that has been in one state for the time
// age.
func lookAfter(age time.Duration) time.Duration { return min(max(age/2, firstLook), lastLook) }

// findBalancer returns the load balancer of a spec, nil if there is none. Of several with
// the Key it is the oldest, and one of the younger is deleted: said is the message while
// that is not done.
func (p *Provider) findBalancer(ctx context.Context, spec sdn.LoadBalancerSpec) (w *balancerWire, said string, err error) {
	if spec.ID != "" {
		w, err = p.readBalancer(ctx, spec.ID)
		return w, "", err
	}
	if spec.Key.IsZero() {
		return nil, "", nil
	}
	found, err := p.balancersOf(ctx, spec.Base)
	if err != nil {
		return nil, "", err
	}
	going := slices.IndexFunc(found, func(w *balancerWire) bool { return w.Provisioning == stateDeleting })
	staying := slices.DeleteFunc(slices.Clone(found), func(w *balancerWire) bool { return w.Provisioning == stateDeleting })
	switch {
	case len(staying) == 0 && going >= 0:
		return found[going], "the one before, which has the Key and the VIP, is being deleted", nil
	case len(staying) == 0:
		return nil, "", nil
	case len(staying) > 1:
		p.log.Warn("several load balancers have one key", "key", spec.Key.String(), "number", len(staying))
		for _, twin := range staying[1:] {
			if !strings.HasPrefix(twin.Provisioning, pendingPrefix) {
				if err := p.dropBalancer(ctx, sdn.ID(twin.ID)); err != nil && !sdn.IsPending(err) {
					return nil, "", err
				}
			}
		}
		return staying[0], "it was made twice, and the younger is being deleted", nil
	}
	return staying[0], "", nil
}

// balancersOf returns those with the base's Key in its project, the oldest first.
func (p *Provider) balancersOf(ctx context.Context, b sdn.Base) ([]*balancerWire, error) {
	found, err := balancers.byKey(ctx, p, b)
	return slices.DeleteFunc(found, func(w *balancerWire) bool {
		return w.Provisioning == stateDeleted
	}), err
}

// makeBalancer makes the whole load balancer by one request. If the answer is lost, or
// the VIP is taken, it looks for what that request may have made.
func (p *Provider) makeBalancer(ctx context.Context, spec sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	none := sdn.LoadBalancer{}
	backend, err := p.octavia.backend(spec.Backend)
	if err != nil {
		return none, err
	}
	can := p.octavia.capabilities(backend)
	if err := lacking(backend, can, spec); err != nil {
		return none, err
	}
	if len(spec.VIPs) == 0 {
		return none, sdn.Invalid("load balancer", "vips", "must be one, or one of each family, of a new load balancer")
	}
	if err := p.checkVIPs(ctx, spec); err != nil {
		return none, err
	}
	tags, providers := p.octavia.has(sinceTags), p.octavia.has(sinceProviders)
	base := spec.Base
	base.Tags = nil // Octavia has them in the creating request
	maker := balancerMaker{can: can, spec: spec, owner: spec.Key, isOVN: backend == ovn, subnet: spec.VIPs[0].Subnet}
	w, err := balancers.create(ctx, p, maker.balancer(p.body(base), backend, tags, providers))
	if err == nil {
		p.octavia.usual.learnFrom(w.Made, spec.Listeners)
	}
	if !spec.Key.IsZero() && (sdn.IsUnavailable(err) || sdn.IsConflict(err)) {
		if found, errLook := p.balancersOf(ctx, spec.Base); errLook == nil && len(found) > 0 {
			w, err = found[0], nil
		}
	}
	if err != nil {
		return none, err
	}
	p.octavia.memory.see(w)
	return p.pending(w, "it is being made", firstLook), nil
}

// checkVIPs refuses VIPs of subnets that do not exist and members of other families: the
// messages of Octavia's providers about them do not tell what is wrong.
func (p *Provider) checkVIPs(ctx context.Context, spec sdn.LoadBalancerSpec) error {
	vips := slices.Clone(spec.VIPs)
	for i, v := range vips {
		field := fmt.Sprintf("vips[%d]", i)
		if v.Subnet == "" {
			return sdn.Invalid("load balancer", field+".subnet", "is missing: a new load balancer's VIP needs one")
		}
		subnet, err := p.Subnet(ctx, v.Subnet)
		if err != nil {
			return err
		}
		if v.Addr.IsValid() && !subnet.CIDR.Contains(v.Addr) {
			return sdn.Invalid("load balancer", field+".addr", "%v is not of subnet %v", v.Addr, subnet.CIDR)
		}
		vips[i].Addr = subnet.CIDR.Addr()
	}
	return valid.FamilyOfMembers(spec, vips)
}

// makeAnew deletes a load balancer that Octavia holds in ERROR, so that the next step
// makes another. The pauses grow.
func (p *Provider) makeAnew(ctx context.Context, w *balancerWire, spec sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	key := nameOf(spec)
	if wait, times := p.octavia.memory.mayAnew(key, ""); wait > 0 {
		return p.pending(w, fmt.Sprintf("Octavia holds it in ERROR, though it was made anew (%d times); it is made anew again later", times), wait), nil
	}
	if spec.ID != "" {
		return sdn.LoadBalancer{}, sdn.Unavailable(nil, "load balancer "+w.ID, "Octavia holds it in ERROR: delete it, and make another")
	}
	if err := p.dropBalancer(ctx, sdn.ID(w.ID)); err != nil && !sdn.IsPending(err) {
		return sdn.LoadBalancer{}, err
	}
	p.octavia.memory.anew(key, "")
	p.log.Warn("Octavia holds a load balancer in ERROR: it is made anew", "load_balancer", w.ID, "key", spec.Key.String())
	return p.pending(w, "Octavia held load balancer "+w.ID+" in ERROR; it is being made anew", firstLook), nil
}

// unchangeable refuses what differs and cannot be changed. Of a shared load balancer a
// spec has only listeners.
func unchangeable(w *balancerWire, spec sdn.LoadBalancerSpec) error {
	if spec.Shared {
		return nil
	}
	const noun = "load balancer"
	switch {
	case spec.Backend != "" && spec.Backend != w.Provider && (spec.Backend != amphoraToo || w.Provider != amphora):
		return immutable(noun, w.ID, "backend", w.Provider, spec.Backend)
	case spec.Flavor != "" && spec.Flavor != w.Flavor:
		return immutable(noun, w.ID, "flavor", w.Flavor, spec.Flavor)
	case spec.Zone != "" && spec.Zone != w.Zone:
		return immutable(noun, w.ID, "zone", w.Zone, spec.Zone)
	case spec.Project != "" && spec.Project != w.Project:
		return immutable(noun, w.ID, "project", w.Project, spec.Project)
	}
	if key := w.decode(nil).Key; spec.ID != "" && !spec.Key.IsZero() && !key.IsZero() && key != spec.Key {
		return immutable(noun, w.ID, "key", key, spec.Key)
	}
	have := w.vips()
	if len(spec.VIPs) > 0 && len(spec.VIPs) != len(have) {
		return immutable(noun, w.ID, "vips", fmt.Sprintf("%d addresses", len(have)), len(spec.VIPs))
	}
	for i, v := range spec.VIPs {
		switch {
		case v.Addr.IsValid() && !slices.ContainsFunc(have, func(h sdn.VIP) bool { return v.Addr == h.Addr }):
			return immutable(noun, w.ID, fmt.Sprintf("vips[%d].addr", i), have[min(i, len(have)-1)].Addr, v.Addr)
		case v.Subnet != "" && !slices.ContainsFunc(have, func(h sdn.VIP) bool {
			return v.Subnet == h.Subnet && (!v.Addr.IsValid() || v.Addr == h.Addr)
		}):
			return immutable(noun, w.ID, fmt.Sprintf("vips[%d].subnet", i), have[min(i, len(have)-1)].Subnet, v.Subnet)
		}
	}
	return nil
}

// LoadBalancer reads a load balancer and what is below it.
func (p *Provider) LoadBalancer(ctx context.Context, id sdn.ID) (sdn.LoadBalancer, error) {
	if err := p.needOctavia(ctx); err != nil {
		return sdn.LoadBalancer{}, err
	}
	w, err := p.readBalancer(ctx, id)
	if err != nil {
		return sdn.LoadBalancer{}, err
	}
	return p.whole(ctx, w)
}

// readBalancer reads a load balancer. One that Octavia has deleted is not found.
func (p *Provider) readBalancer(ctx context.Context, id sdn.ID) (*balancerWire, error) {
	w, err := balancers.read(ctx, p, id)
	if err == nil && w.Provisioning == stateDeleted {
		err = sdn.NotFound(balancers.title, id)
	}
	if sdn.IsNotFound(err) {
		p.forgetBalancer(id)
	}
	return w, err
}

// whole returns a load balancer with what is below it. It is ready as far as Octavia
// tells.
func (p *Provider) whole(ctx context.Context, w *balancerWire) (sdn.LoadBalancer, error) {
	since, _ := p.octavia.memory.see(w)
	below, err := p.below(ctx, w)
	if err != nil {
		return sdn.LoadBalancer{}, err
	}
	b := p.balancer(w, below)
	switch {
	case strings.HasPrefix(w.Provisioning, pendingPrefix):
		b.Status = p.busy(w, since).Status
	case w.Provisioning == stateError:
		b.Status = sdn.LoadBalancerStatus{RetryAfter: firstLook, Message: "Octavia holds it in ERROR"}
	default:
		b.Status.Ready = true
	}
	return b, nil
}

// FindLoadBalancers streams the load balancers that match. Octavia filters by one value
// of an attribute; the rest is compared here.
func (p *Provider) FindLoadBalancers(ctx context.Context, q sdn.LoadBalancerQuery) iter.Seq2[sdn.LoadBalancer, error] {
	return func(yield func(sdn.LoadBalancer, error) bool) {
		if err := p.needOctavia(ctx); err != nil {
			yield(sdn.LoadBalancer{}, err)
			return
		}
		filter := url.Values{}
		for name, values := range p.query(q.Match) {
			if len(values) == 1 {
				filter[name] = values
			}
		}
		if len(q.Addresses) == 1 {
			filter.Set("vip_address", q.Addresses[0].String())
		}
		if filter.Has("tags") && !p.octavia.has(sinceTags) {
			return
		}
		plain := sdn.LoadBalancerQuery{Match: q.Match, Subnets: q.Subnets, Addresses: q.Addresses, Ports: q.Ports}
		for w, err := range balancers.find(ctx, p, filter) {
			if err != nil {
				yield(sdn.LoadBalancer{}, err)
				return
			}
			if w.Provisioning == stateDeleted || !plain.Matches(p.balancer(w, nil)) {
				continue
			}
			if q.Outline && len(q.Parts) == 0 {
				p.octavia.memory.see(w)
				if !yield(p.balancer(w, nil), nil) {
					return
				}
				continue
			}
			b, err := p.whole(ctx, w)
			if sdn.IsNotFound(err) || err == nil && !q.Matches(b) {
				continue
			}
			if !yield(b, err) || err != nil {
				return
			}
		}
	}
}

// DeleteLoadBalancer deletes the whole tree by one request, and looks if it is gone.
func (p *Provider) DeleteLoadBalancer(ctx context.Context, id sdn.ID) error {
	if id == "" {
		return nil
	}
	if err := p.needOctavia(ctx); err != nil {
		return err
	}
	p.octavia.memory.unwanted(id)
	return p.dropBalancer(ctx, id)
}

func (p *Provider) dropBalancer(ctx context.Context, id sdn.ID) error {
	c, whole := p.octavia.client, loadbalancers.DeleteOpts{Cascade: true}
	err := c.typed(loadbalancers.Delete(ctx, c.api(), url.PathEscape(string(id)), whole).Err)
	if err == nil {
		var w *balancerWire
		if w, err = p.readBalancer(ctx, id); err == nil {
			p.octavia.memory.see(w)
			err = &sdn.Error{
				Kind: sdn.KindPending, Noun: balancers.title, ID: string(id),
				Detail: "Octavia is deleting it",
			}
		}
	}
	if sdn.IsNotFound(err) {
		p.forgetBalancer(id)
		return nil
	}
	return p.waitFor(id, err)
}

// forgetBalancer drops what is known of a load balancer that is gone, and its VIPs'
// ports, which are gone with it.
func (p *Provider) forgetBalancer(id sdn.ID) {
	p.cache.ports.drop(p.octavia.memory.forget(id)...)
}

// waitFor puts into an error that IsPending when to ask again.
func (p *Provider) waitFor(id sdn.ID, err error) error {
	var e *sdn.Error
	if errors.As(err, &e) && e.Kind == sdn.KindPending && e.RetryAfter == 0 {
		again := *e
		again.RetryAfter = lookAfter(p.octavia.memory.age(id))
		return &again
	}
	return err
}
