package raven

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// balancers makes of each KuryrLoadBalancer load balancers in the SDN, with the Service's
// endpoints for members, and a floating IP, and takes them away with it. A family has a
// load balancer of its own, as a Service can get and lose one, and clients of one family
// have endpoints of that family alone. The SDN is asked where what it is to have has
// changed, at the start, and at each audit, which finds what was deleted there.
type balancers struct{ *Raven }

// balancing is the work at one.
type balancing struct {
	*Raven
	lb     *v1.KuryrLoadBalancer
	before v1.KuryrLoadBalancerStatus
	known  *appliedOne
	look   bool // the SDN is asked whatever is known
	// suspected is that the SDN has of it what neither the spec nor the status tells of:
	// the object was lost, or is one from before.
	suspected bool
	notes     []string    // for the Service's owner
	refusals  []string    // for the Service's owner: what the namespace is not granted
	grants    core.Grants // of the namespace
}

// pendingPause is when a load balancer that the SDN is at work on is looked at again,
// where the SDN does not say.
const pendingPause = 2 * time.Second

// anewPause is when one is made anew that has just been deleted.
const anewPause = 200 * time.Millisecond

// Reconcile looks at one KuryrLoadBalancer.
func (r balancers) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var cached v1.KuryrLoadBalancer
	if err := r.Client.Get(ctx, req.NamespacedName, &cached); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.applied.forget(req.NamespacedName)
			r.metrics.balancer(req.String(), "")
		}
		return core.Result(0, client.IgnoreNotFound(err))
	}
	known := r.applied.entry(&cached)
	lb := r.applied.newest(&cached, r.Now())
	w := &balancing{Raven: r.Raven, lb: lb, before: *lb.Status.DeepCopy(), known: known, suspected: r.applied.suspected(lb)}
	if !lb.DeletionTimestamp.IsZero() {
		return w.end(ctx)
	}
	if !r.cfg.Services {
		return core.Result(0, nil) // the other reconciler has it go
	}
	if acts, err := r.acts(ctx, lb); err != nil || !acts {
		return core.Result(0, err)
	}
	var err error
	if w.grants, err = r.GrantsOf(ctx, lb.Namespace); err != nil {
		return core.Result(0, err)
	}
	if w.suspected {
		current, err := w.current(ctx)
		if err != nil {
			return core.Result(0, err)
		}
		w.suspected = current // else it comes again with what its Service says
	}
	w.look = w.known.looked.IsZero() || r.cfg.Audit > 0 && r.Now().Sub(w.known.looked) >= r.cfg.Audit
	again, programmed := w.program(ctx)
	step := again
	floated := w.float(ctx)
	if programmed == nil && floated == nil {
		w.known.cleaned = lb.Generation
		if w.suspected {
			r.applied.suspect(lb, false)
		}
	}
	if programmed == nil && floated == nil && w.look {
		w.known.looked = r.Now()
	}
	if r.cfg.Audit > 0 && !w.known.looked.IsZero() {
		again = core.Sooner(again, max(w.known.looked.Add(r.cfg.Audit).Sub(r.Now()), time.Second))
	}
	for _, err := range []error{programmed, floated} {
		if core.HasFailure(err) {
			r.Warn(serviceOf(lb), core.EventFailed, "LoadBalancer", "%s", core.Message(err))
		}
	}
	w.tellRefusals(errors.Join(programmed, floated))
	later, err := w.writeStatus(ctx, programmed, floated)
	if step > 0 && programmed != nil && len(core.Failures(programmed)) == 0 {
		floated = nil // the pause before that is tried again is not to hold up the next step
	}
	return core.Result(core.Sooner(again, later), errors.Join(programmed, floated, err))
}

// current tells whether the object says what its Service does. One that comes from a
// backup may not: what only that one does not want is not to go.
func (w *balancing) current(ctx context.Context) (bool, error) {
	var service corev1.Service
	if err := w.Client.Get(ctx, client.ObjectKeyFromObject(w.lb), &service); err != nil || service.UID != w.lb.Spec.ServiceUID || !balanced(&service) {
		return true, client.IgnoreNotFound(err) // the other reconciler has it go
	}
	can, err := w.canBalance(ctx)
	if err != nil {
		return false, err
	}
	spec, _, err := w.specOf(ctx, &service, w.lb, can)
	return equality.Semantic.DeepEqual(spec, w.lb.Spec), err
}

// end removes all of it from the SDN, and then the finalizer. It stays while other Services share a VIP
// of its Service's own. One that names another's Service has nothing in the SDN.
func (w *balancing) end(ctx context.Context) (ctrl.Result, error) {
	if forged, err := w.forged(ctx, w.lb); err != nil {
		return core.Result(0, err)
	} else if forged {
		w.Log.WarnContext(ctx, "forged KuryrLoadBalancer deleted", "namespace", w.lb.Namespace,
			"name", w.lb.Name, "service_uid", w.lb.Spec.ServiceUID)
		controllerutil.RemoveFinalizer(w.lb, v1.Finalizer)
		return core.Result(0, client.IgnoreNotFound(w.Client.Update(ctx, w.lb)))
	}
	var err error
	if w.grants, err = w.GrantsOf(ctx, w.lb.Namespace); err != nil {
		return core.Result(0, err)
	}
	// What a load balancer that others share fails at holds up none of the Service's own,
	// whose ClusterIP may be another's at once.
	again, left := w.leaveAll(ctx)
	then, keys, kept := w.keepShared(ctx, w.keys())
	dropped := w.dropBalancers(ctx, keys)
	if dropped == nil {
		w.deleted(keys)
	}
	err = errors.Join(left, kept, dropped)
	again = core.Sooner(again, then)
	if err == nil {
		w.keeping.forget(w.lb.Spec.ServiceUID)
		controllerutil.RemoveFinalizer(w.lb, v1.Finalizer)
		err := w.Client.Update(ctx, w.lb)
		failpoint.Here("raven.balancer.released")
		return core.Result(0, client.IgnoreNotFound(err))
	}
	if core.HasFailure(err) && !sdn.IsPending(err) {
		w.Warn(serviceOf(w.lb), core.EventFailed, "LoadBalancer", "%s", core.Message(err))
	}
	later, failed := w.writeStatus(ctx, err, nil)
	return core.Result(core.Sooner(again, later), errors.Join(err, client.IgnoreNotFound(failed)))
}

// deleted removes from the status the load balancers that had these Keys.
func (w *balancing) deleted(keys []sdn.Key) {
	w.lb.Status.LoadBalancers = slices.DeleteFunc(w.lb.Status.LoadBalancers, func(of v1.LoadBalancerOfVIP) bool {
		six := isFamily(of.VIP, true)
		key := w.Key(v1.KeyKindLoadBalancer, v1.LoadBalancerKey(w.lb.Spec.ServiceUID, six))
		if of.Own {
			key = w.ownKey(six)
		}
		return slices.Contains(keys, key)
	})
	if len(keys) > 0 {
		w.lb.Status.Members = 0
	}
}

// program has each VIP's load balancer be what it is to be, and those of families that
// the Service has no more go. What one VIP fails at holds up no other.
func (w *balancing) program(ctx context.Context) (again time.Duration, err error) {
	can, err := w.canBalance(ctx)
	if err != nil {
		return 0, err
	}
	if !hasLoadBalancers(can) {
		w.note(errNoBalancers.Error())
		w.tellNotes()
		return w.cfg.Audit, errNoBalancers // a cloud may come to have them
	}
	can.LoadBalancer = can.LoadBalancerOf(w.lb.Spec.Options.Provider)
	if err := w.certified(ctx); err != nil {
		return 0, err
	}
	var all discoveryv1.EndpointSliceList
	if err := w.Client.List(ctx, &all, client.InNamespace(w.lb.Namespace), client.MatchingFields{core.ByService: w.lb.Namespace + "/" + w.lb.Name}); err != nil {
		return 0, err
	}
	subnet, err := w.subnetsOfPods(ctx)
	if err != nil {
		return 0, err
	}
	errs := []error{w.retire(ctx)}
	members := map[netip.Addr]bool{}
	barred, missing := w.barred(ctx)
	of := balancerOf{
		spec: &w.lb.Spec, can: can.LoadBalancer, cluster: w.clusterRanges(), subnet: subnet, barred: barred,
	}
	endpoints := func(six bool) map[portName][]endpoint {
		return endpointsOf(w.lb.Spec.Ports, all.Items, six)
	}
	for _, text := range w.lb.Spec.VIPs {
		vip, err := netip.ParseAddr(text)
		if err != nil {
			errs = append(errs, sdn.Invalid("load balancer", "spec.vips", "%q is no address", text))
			continue
		}
		of.vip, of.six = sdn.VIP{Addr: vip}, vip.Is6()
		of.leaves, of.floats = w.ground.HasWayOut[of.six], !w.lb.Spec.OwnVIPs && w.floats(of.six)
		of.base = w.Base(v1.KeyKindLoadBalancer, v1.LoadBalancerKey(w.lb.Spec.ServiceUID, vip.Is6()), w.lb.Namespace+"/"+w.lb.Name, w.cfg.Project)
		of.endpoints = endpoints(of.six)
		then, err := w.apply(ctx, of, members)
		again = core.Sooner(again, then)
		errs = append(errs, err)
	}
	then, failed := w.programOwn(ctx, of, endpoints, members)
	again, errs = core.Sooner(again, then), append(errs, failed...)
	then, failed = w.share(ctx, of, endpoints, members)
	again, errs = core.Sooner(again, then), append(errs, failed...)
	w.lb.Status.Members = len(members)
	w.tellNotes()
	then, err = missing()
	return core.Sooner(again, then), errors.Join(append(errs, err)...)
}

// errNoBalancers is of an SDN without load balancers, such as Neutron without Octavia.
var errNoBalancers = unserving("the SDN has no load balancers (Neutron has them by Octavia): with controller.load_balancers: node each node's kernel serves ClusterIPs")

// unserving is what no retry helps with.
type unserving string

func (u unserving) Error() string { return string(u) }

// Unwrap makes it an error that waits.
func (u unserving) Unwrap() error { return core.Waiting(u) }

// apply has the SDN have one VIP's load balancer, if it has not. A step may leave it at
// work; then again tells when the next is due.
func (w *balancing) apply(ctx context.Context, of balancerOf, members map[netip.Addr]bool) (again time.Duration, err error) {
	vip := of.name()
	if of.own {
		of.vip.Subnet, err = w.lbSubnetOf(ctx, w.lb.Namespace, of.six)
	} else {
		of.vip.Subnet, err = w.vipSubnetOf(ctx, of.vip.Addr)
	}
	if errors.As(err, new(refused)) {
		w.note(err.Error())
	}
	if errors.As(err, new(underway)) {
		return pendingPause, err
	}
	if err != nil {
		return 0, err
	}
	of.vips = w.vipsOf()
	spec, has, notes := of.loadBalancer()
	w.notes = append(w.notes, notes...)
	for a := range has {
		members[a] = true
	}
	var made *sdn.LoadBalancer
	if err = w.madeWith(of); err == nil {
		made, again, err = w.step(ctx, vip, spec, w.told(of))
	}
	if of.own && isImmutable(err) {
		held := w.mayRecreate(ctx, of.six)
		if held != nil && !errors.As(held, new(unserving)) {
			return 0, held
		}
		if held != nil { // all else that is asked of it comes to be
			of.spec = w.asMade(of)
			spec.Flavor, spec.Zone = of.spec.Options.Flavor, of.spec.Options.Zone
			if made, again, err = w.step(ctx, vip, spec, w.told(of)); isImmutable(err) {
				err = nil // held tells of it
			}
			err = errors.Join(held, err)
		}
	}
	if made != nil {
		w.saw(of, *made)
		if of.own {
			err = errors.Join(err, w.addUsers(ctx, *made))
		}
	}
	if isImmutable(err) {
		w.Warn(serviceOf(w.lb), core.EventMade, "LoadBalancer", "the SDN cannot change this of a load balancer, which is made anew: %s", core.Message(err))
		if err := w.dropBalancers(ctx, []sdn.Key{spec.Key}); err != nil {
			return 0, err
		}
		w.dropped(of)
		failpoint.Here("raven.balancer.anew")
		return anewPause, core.Waiting("the load balancer is being made anew")
	}
	return again, err
}

// step has the SDN have this of a load balancer, if it has not been told so before; then made is nil.
func (w *balancing) step(ctx context.Context, name string, spec sdn.LoadBalancerSpec, told bool) (made *sdn.LoadBalancer, again time.Duration, err error) {
	sum, err := digest(spec)
	if err != nil {
		return nil, 0, err
	}
	if w.known.digests[name] == sum && !w.look && told {
		return nil, 0, nil
	}
	delete(w.known.digests, name)
	var has sdn.LoadBalancer
	apply := func(ctx context.Context) (err error) { has, err = w.SDN.ApplyLoadBalancer(ctx, spec); return err }
	err = w.Call(ctx, apply)
	failpoint.Here("raven.balancer.applied")
	w.metrics.balanced(err)
	if taken := err; sdn.IsConflict(taken) && sdn.ReasonOf(taken) == sdn.Exists && len(spec.Listeners) > 1 { // a port that another has holds up no other
		if spec, err = w.beside(ctx, spec); err == nil {
			err = w.Call(ctx, apply)
		}
		return nil, 0, errors.Join(taken, err)
	}
	if err != nil {
		return nil, 0, err
	}
	if !has.Status.Ready {
		after := has.Status.RetryAfter
		if after <= 0 {
			after = pendingPause
		}
		what := has.Status.Message
		if what == "" {
			what = "the SDN is at work on the load balancer"
		}
		return &has, after, core.Waiting(name + ": " + what)
	}
	if has.Status.Message != "" {
		w.Note(serviceOf(w.lb), core.EventMade, "LoadBalancer", "%s: %s", name, has.Status.Message)
	}
	w.known.digests[name] = sum
	return &has, 0, nil
}

// madeWith is an error where a VIP's load balancer was made with what the Service asked
// for then and does not any more, and cannot be taken from it. What the SDN has chosen
// itself stays; so does its provider, since which one it would be without a wish the SDN
// alone knows.
func (w *balancing) madeWith(vip balancerOf) error {
	wish := vip.spec.Options
	for _, of := range w.lb.Status.LoadBalancers {
		switch {
		case !vip.shown(of):
		case of.Flavor != "" && wish.Flavor == "":
			return sdn.Conflict(sdn.Immutable, "load balancer", "flavor", "is %s and cannot become none", of.Flavor)
		case of.Zone != "" && wish.Zone == "":
			return sdn.Conflict(sdn.Immutable, "load balancer", "zone", "is %s and cannot become none", of.Zone)
		}
	}
	return nil
}

func isImmutable(err error) bool { return sdn.IsConflict(err) && sdn.ReasonOf(err) == sdn.Immutable }

// asMade is what is wanted of a VIP's load balancer, but for what it was made with and
// cannot be taken from it.
func (w *balancing) asMade(vip balancerOf) *v1.KuryrLoadBalancerSpec {
	spec := *vip.spec
	for _, of := range w.lb.Status.LoadBalancers {
		if vip.shown(of) {
			spec.Options.Flavor, spec.Options.Zone = of.Flavor, of.Zone
		}
	}
	return &spec
}

// dropped notes that a VIP's load balancer has gone, to be made anew: by what it was made
// with goes the next one no more.
func (w *balancing) dropped(vip balancerOf) {
	delete(w.known.digests, vip.name())
	for i, of := range w.lb.Status.LoadBalancers {
		if vip.shown(of) {
			w.lb.Status.LoadBalancers[i].Flavor, w.lb.Status.LoadBalancers[i].Zone = "", ""
		}
	}
}

// vipsOf are the Service's VIPs, those that it has of its own too.
func (w *balancing) vipsOf() (all []netip.Addr) {
	texts := slices.Clone(w.lb.Spec.VIPs)
	for _, of := range w.lb.Status.LoadBalancers {
		texts = append(texts, of.VIP)
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// told reports whether the status says of a VIP's load balancer what the SDN has answered. It may
// not have been written, or another client may have written it.
func (w *balancing) told(vip balancerOf) bool {
	seen, known := w.known.seen[vip.name()]
	return known && slices.ContainsFunc(w.lb.Status.LoadBalancers, func(of v1.LoadBalancerOfVIP) bool {
		return vip.shown(of) && of == seen
	})
}

// saw notes the SDN's load balancer of a VIP.
func (w *balancing) saw(vip balancerOf, made sdn.LoadBalancer) {
	wish := vip.spec.Options
	is := v1.LoadBalancerOfVIP{VIP: vip.vip.Addr.String(), ID: string(made.ID), Own: vip.own, Flavor: wish.Flavor, Zone: wish.Zone}
	for _, v := range made.VIPs {
		if vip.own || v.Addr == vip.vip.Addr {
			is.VIP, is.Port = v.Addr.String(), string(v.Port)
		}
	}
	if vip.own && len(made.VIPs) == 0 {
		return // the SDN has not chosen it yet
	}
	w.known.seen[vip.name()] = is
	for i, of := range w.lb.Status.LoadBalancers {
		if vip.shown(of) {
			w.lb.Status.LoadBalancers[i] = is
			return
		}
	}
	w.lb.Status.LoadBalancers = append(w.lb.Status.LoadBalancers, is)
}

// changed tells whether the spec has changed since all of it was seen to: what it said
// before may be in the SDN, and not in the status.
func (w *balancing) changed() bool {
	return w.suspected || w.lb.Generation > 1 && w.lb.Status.ObservedGeneration != w.lb.Generation && w.known.cleaned != w.lb.Generation
}

// retire deletes the load balancer of a family that the Service has no more.
func (w *balancing) retire(ctx context.Context) error {
	var stale []sdn.Key
	for _, six := range []bool{false, true} {
		shown := slices.ContainsFunc(w.lb.Status.LoadBalancers, func(of v1.LoadBalancerOfVIP) bool { return !of.Own && isFamily(of.VIP, six) })
		if !hasFamily(w.lb.Spec.VIPs, six) && (shown || w.changed()) {
			stale = append(stale, w.Key(v1.KeyKindLoadBalancer, v1.LoadBalancerKey(w.lb.Spec.ServiceUID, six)))
		}
	}
	if len(stale) > 0 {
		if err := w.dropBalancers(ctx, stale); err != nil {
			return err
		}
		failpoint.Here("raven.balancer.retired")
	}
	gone := func(of v1.LoadBalancerOfVIP) bool {
		return !of.Own && !slices.Contains(w.lb.Spec.VIPs, of.VIP) // the one of another address is made anew by apply, and retireOwn has the Service's own
	}
	w.lb.Status.LoadBalancers = slices.DeleteFunc(w.lb.Status.LoadBalancers, gone)
	maps.DeleteFunc(w.known.seen, func(_ string, of v1.LoadBalancerOfVIP) bool { return gone(of) })
	return nil
}

// balancersWith are those with this Key. An SDN that has none at all has none with it.
func (r *Raven) balancersWith(ctx context.Context, key sdn.Key) (found []sdn.LoadBalancer, err error) {
	err = r.Call(ctx, func(ctx context.Context) (err error) {
		found, err = sdn.All(r.SDN.FindLoadBalancers(ctx, sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{key}}, Outline: true}))
		return err
	})
	if sdn.IsUnsupported(err) {
		return nil, nil
	}
	return found, err
}

// dropBalancers deletes load balancers, found by their Keys: one by one, since Octavia can be asked
// for one, and would otherwise tell all that it has. One of another project is not Raven's,
// whatever Key it carries.
func (w *balancing) dropBalancers(ctx context.Context, keys []sdn.Key) error {
	var found []sdn.LoadBalancer
	for _, key := range keys {
		some, err := w.balancersWith(ctx, key)
		if err != nil {
			return err
		}
		found = append(found, some...)
	}
	var errs []error
	for _, lb := range found {
		if !w.owns(lb.Meta) {
			continue
		}
		err := w.Call(ctx, func(ctx context.Context) error { return w.SDN.DeleteLoadBalancer(ctx, lb.ID) })
		failpoint.Here("raven.balancer.deleted")
		if !sdn.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// keys are those that the Service's load balancers may have.
func (w *balancing) keys() (keys []sdn.Key) {
	for _, six := range []bool{false, true} {
		keys = append(keys, w.Key(v1.KeyKindLoadBalancer, v1.LoadBalancerKey(w.lb.Spec.ServiceUID, six)))
		if w.lb.Spec.OwnVIPs || w.lb.Generation > 1 || w.suspected || ownVIP(w.lb, six) != nil { // else it has never had one
			keys = append(keys, w.ownKey(six))
		}
	}
	return keys
}

// note has the Service's owner be told something by tellNotes.
func (w *balancing) note(text string) { w.notes = append(w.notes, text) }

// tellNotes tells the Service's owner each note once, for as long as there is that note.
func (w *balancing) tellNotes() {
	var fresh []string
	fresh, w.known.noted = news(w.known.noted, w.notes)
	for _, text := range fresh {
		w.Warn(serviceOf(w.lb), core.EventUnserved, "LoadBalancer", "%s", text)
	}
}

// refuse has the Service's owner told of something that the namespace is not granted.
func (w *balancing) refuse(text string) { w.refusals = append(w.refusals, text) }

// tellRefusals tells the Service's owner what the namespace is not granted, each once.
func (w *balancing) tellRefusals(err error) {
	for _, e := range core.Errors(err) {
		if errors.As(e, new(core.Denied)) {
			w.refuse(e.Error())
		}
	}
	var fresh []string
	fresh, w.known.refused = news(w.known.refused, w.refusals)
	for _, text := range fresh {
		w.Warn(serviceOf(w.lb), core.EventRefused, "LoadBalancer", "%s", text)
	}
}

// certified returns an error if the Service asks to end TLS with a certificate that its namespace
// is not granted. One that the SDN has of the Service already stays.
func (w *balancing) certified(ctx context.Context) error {
	ref := w.lb.Spec.Options.Certificate
	if ref == "" || w.grants.Certificate(ref) {
		return nil
	}
	if w.known.certificate != ref {
		w.known.certificate = ""
	}
	has := w.known.certificate != ""
	for _, key := range w.keys() {
		if has {
			break
		}
		var found []sdn.LoadBalancer
		err := w.Call(ctx, func(ctx context.Context) (err error) {
			query := sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}
			found, err = sdn.All(w.SDN.FindLoadBalancers(ctx, query))
			return err
		})
		if err != nil {
			return err
		}
		for _, lb := range found {
			has = has || w.owns(lb.Meta) && slices.ContainsFunc(lb.Listeners, func(l sdn.Listener) bool {
				return l.Certificate == ref
			})
		}
	}
	const what = "annotation " + balancerPrefix +
		"default-tls-container-ref: the namespace is not granted this certificate (" + v1.AnnotationAllowCertificates + ")"
	if has {
		w.known.certificate = ref
		w.refuse(what + "; it stays, as the load balancer has it already")
		return nil
	}
	return core.Denied(what)
}

// subnetsOfPods finds the subnets of the namespace's pods' addresses.
func (w *balancing) subnetsOfPods(ctx context.Context) (func(netip.Addr) sdn.ID, error) {
	n, err := w.NetworkOf(ctx, w.lb.Namespace)
	if err != nil || n == nil {
		return func(netip.Addr) sdn.ID { return "" }, err
	}
	type subnet struct {
		id   sdn.ID
		cidr netip.Prefix
	}
	var all []subnet
	for _, s := range n.Status.Subnets {
		if p, err := netip.ParsePrefix(s.CIDR); err == nil {
			all = append(all, subnet{sdn.ID(s.ID), p})
		}
	}
	return func(a netip.Addr) sdn.ID {
		for _, s := range all {
			if s.cidr.Contains(a) {
				return s.id
			}
		}
		return ""
	}, nil
}

// clusterRanges are whose addresses may connect to each Service: pods, and nodes as far
// as they are known beforehand.
func (r *Raven) clusterRanges() (all []netip.Prefix) {
	all = append(append(all, r.ground.Nodes.Reach...), r.cfg.NodeNetworks...)
	for _, p := range r.cfg.Ranges {
		all = append(all, p.Prefix)
	}
	return append(all, r.ground.NodeRanges...)
}

// writeStatus writes what has changed. Where only the number of members has, and it was
// written just before, later tells when it is time.
func (w *balancing) writeStatus(ctx context.Context, programmed, floated error) (later time.Duration, _ error) {
	s := &w.lb.Status
	w.condition(v1.ConditionProgrammed, programmed)
	if w.lb.Spec.FloatingIP != nil {
		w.condition(v1.ConditionFloatingIP, floated)
	} else {
		meta.RemoveStatusCondition(&s.Conditions, v1.ConditionFloatingIP)
	}
	w.condition(v1.ConditionReady, errors.Join(programmed, floated))
	if programmed == nil && floated == nil {
		s.ObservedGeneration = w.lb.Generation
	}
	w.metrics.balancer(client.ObjectKeyFromObject(w.lb).String(), stateOfBalancer(s.Conditions))
	if equality.Semantic.DeepEqual(w.before, *s) {
		return 0, nil
	}
	quiet := *s.DeepCopy()
	quiet.Members = w.before.Members
	if since := w.Now().Sub(w.known.written); equality.Semantic.DeepEqual(w.before, quiet) && since < core.CountsInterval {
		return core.CountsInterval - since, nil
	}
	err := w.tellNow(ctx)
	failpoint.Here("raven.balancer.told")
	return 0, err
}

// tellNow writes the status, in the midst of the work too.
func (w *balancing) tellNow(ctx context.Context) error {
	if err := w.Client.Status().Update(ctx, w.lb); err != nil {
		clear(w.known.digests) // what was made or found may be told of nowhere, and so is asked for once more
		w.known.floated = ""
		return err
	}
	w.before, w.known.written = *w.lb.Status.DeepCopy(), w.Now()
	w.applied.wrote(w.lb.DeepCopy())
	return nil
}

func (w *balancing) condition(kind string, err error) {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: v1.ReasonReady, ObservedGeneration: w.lb.Generation}
	if err != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, balancerReason(err), core.Message(err)
	}
	if !w.lb.DeletionTimestamp.IsZero() && err != nil {
		c.Reason = v1.ReasonDeleting
		if errors.As(err, new(inUse)) && len(core.Failures(err)) == 0 {
			c.Reason = v1.ReasonInUse
		}
	}
	meta.SetStatusCondition(&w.lb.Status.Conditions, c)
}

// balancerReason is that of a condition.
func balancerReason(err error) string {
	for _, e := range core.Errors(err) {
		switch {
		case sdn.IsUnsupported(e), errors.As(e, new(unserving)):
			return v1.ReasonUnserved
		case sdn.IsConflict(e) && sdn.ReasonOf(e) == sdn.AddressInUse:
			return v1.ReasonTaken
		case errors.As(e, new(refused)):
			return v1.ReasonInvalid
		case errors.As(e, new(core.Denied)):
			return v1.ReasonRefused
		}
	}
	return core.ReasonOf(err)
}
