package raven

import (
	"context"
	"maps"
	"slices"
	"strings"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Only Raven may write KuryrLoadBalancers: an admission policy sees to that. Raven does not rely
// on it. A KuryrLoadBalancer acts for the Service of its own namespace and name as the API server
// has it, and an id in its status counts only if the SDN's object carries the Key of that Service
// and is in the project of Raven.

// project returns the project that Raven makes its objects in; known is false before the SDN has
// said which that is.
func (r *Raven) project() (id string, known bool) {
	if r.cfg.Project != "" {
		return r.cfg.Project, true
	}
	if r.ground.OwnsRouter {
		return r.ground.Project, true
	}
	return r.vips.ownProject()
}

// nameProjects tells the SDN in which projects Raven has made objects before: those that cluster
// administrators have put namespaces into. A Key counts only in a project that a caller has named,
// as members of others can write descriptions there.
func (r *Raven) nameProjects(ctx context.Context) error {
	var networks v1.KuryrNetworkList
	if err := r.Client.List(ctx, &networks); err != nil {
		return err
	}
	var pools v1.KuryrPortPoolList
	if err := r.Client.List(ctx, &pools); err != nil {
		return err
	}
	all := map[string]bool{}
	for i := range networks.Items {
		all[networks.Items[i].Spec.ProjectID] = true
	}
	for i := range pools.Items {
		all[pools.Items[i].Spec.ProjectID] = true
	}
	delete(all, "")
	if len(all) == 0 {
		return nil
	}
	match := sdn.Match{Owner: r.SDN.Installation(), Kind: v1.KeyKindNetwork, Projects: slices.Sorted(maps.Keys(all))}
	return r.Call(ctx, func(ctx context.Context) error {
		_, _, err := sdn.First(r.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: match}))
		return err
	})
}

// owns reports whether an object of the SDN was made by this installation, in Raven's project.
func (r *Raven) owns(m sdn.Meta) bool {
	project, known := r.project()
	return !m.Foreign && !m.Key.IsZero() && (!known || m.Project == project)
}

// usable reports whether a namespace's Services may use an object of the SDN that Raven has not
// made: it is in Raven's project, or in the namespace's own.
func (r *Raven) usable(m sdn.Meta, g core.Grants) bool {
	project, known := r.project()
	return known && m.Project == project || g.Project() != "" && m.Project == g.Project()
}

// serviceWithUID returns the Service with a UID, in whatever namespace it is; nil is none.
func (r *Raven) serviceWithUID(ctx context.Context, uid types.UID) (*corev1.Service, error) {
	var all corev1.ServiceList
	var by []client.ListOption
	if r.cfg.Services { // only then does the cache have the index
		by = append(by, client.MatchingFields{core.ByUID: string(uid)})
	}
	if err := r.Client.List(ctx, &all, by...); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all.Items, func(s corev1.Service) bool { return s.UID == uid })
	if i < 0 {
		return nil, nil
	}
	return &all.Items[i], nil
}

// forged reports whether a KuryrLoadBalancer names the Service of another namespace or name.
// Raven makes none such.
func (r *Raven) forged(ctx context.Context, lb *v1.KuryrLoadBalancer) (bool, error) {
	s, err := r.serviceWithUID(ctx, lb.Spec.ServiceUID)
	return s != nil && client.ObjectKeyFromObject(s) != client.ObjectKeyFromObject(lb), err
}

// acts reports whether a KuryrLoadBalancer says of its Service what that says itself, as far as
// it concerns others: who it is, its ClusterIPs, and whether it is reached from outside. If not,
// its Service has gone or has changed, or another client has written it. The other reconciler
// deletes it then, or corrects it.
func (r *Raven) acts(ctx context.Context, lb *v1.KuryrLoadBalancer) (bool, error) {
	var s corev1.Service
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(lb), &s); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	outside := lb.Spec.FloatingIP != nil || lb.Spec.OwnVIPs || lb.Spec.SharedID != ""
	if s.UID != lb.Spec.ServiceUID || outside && !exposed(&s) {
		return false, nil
	}
	return !slices.ContainsFunc(lb.Spec.VIPs, func(vip string) bool {
		return vip != s.Spec.ClusterIP && !slices.Contains(s.Spec.ClusterIPs, vip)
	}), nil
}

// ownsVIPOf reports whether a load balancer of the SDN is that of an own VIP of this
// KuryrLoadBalancer's Service.
func (w *balancing) ownsVIPOf(there sdn.LoadBalancer) bool {
	return w.owns(there.Meta) && isOwnKey(there.Key, w.lb.Spec.ServiceUID)
}

// isOwnKey reports whether a Key is that of the load balancer of a Service's own VIP.
func isOwnKey(key sdn.Key, uid types.UID) bool {
	return key.Name == v1.OwnLoadBalancerKey(uid, false) || key.Name == v1.OwnLoadBalancerKey(uid, true)
}

// namedIn reports whether an object of the SDN has the name that Raven gives those of a
// namespace's Services. Of a Service that has gone its Key tells a UID alone.
func namedIn(name, namespace string) bool { return strings.HasPrefix(name, namespace+"/") }
