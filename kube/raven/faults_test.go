package raven

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"sync"

	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// faults count what Raven asks of the SDN and writes into Kubernetes, and fail it.
type faults struct {
	mu      sync.Mutex
	writes  int            // so far, of both
	kill    int            // the write at which Raven is killed; 0 is never
	lost    bool           // that write happens nevertheless, and nobody hears of it
	dead    bool           // it has been killed: nothing that it does has any effect
	away    bool           // the SDN does not answer
	calls   map[string]int // of the API server, by verb and kind
	asked   map[string]int // of the SDN, by method
	problem func(method string) error
	trouble trouble
}

// trouble is what befalls some requests of one side, the SDN or the API server; of the latter changes alone, since reads come from the cache.
type trouble struct {
	api   bool // which side
	from  int  // the first request that it befalls, counted from 1; 0 is none
	times int
	lost  bool             // what is asked happens nevertheless
	err   func(kind) error // what is heard; nil is that this request is spared
	seen  int              // requests of that side so far
}

// kind is what a request does and with what, as "delete KuryrPort" or "EnsurePorts".
type kind string

var errKilled = errors.New("killed")

// befalls counts a request, and tells what befalls it.
func (f *faults) befalls(api bool, what kind) (lost bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := &f.trouble; t.from > 0 && t.api == api {
		if t.seen++; t.seen >= t.from && t.seen < t.from+t.times {
			return t.lost, t.err(what)
		}
	}
	return false, nil
}

// write is one change. It tells whether it is to happen, and what is heard of it.
func (f *faults) write(api bool, what kind, do func() error) error {
	happens, problem := f.befalls(api, what)
	if problem != nil && !happens {
		return problem
	}
	f.mu.Lock()
	if f.dead {
		f.mu.Unlock()
		return errKilled
	}
	f.writes++
	killed := f.writes == f.kill
	f.dead = killed
	f.mu.Unlock()
	if killed && !f.lost {
		return errKilled
	}
	err := do()
	if killed {
		return errKilled
	}
	if problem != nil {
		return problem
	}
	return err
}

func (f *faults) count(in *map[string]int, what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if *in == nil {
		*in = map[string]int{}
	}
	(*in)[what]++
}

// faultyAPI is the API server, by way of a cache, as Raven has it.
func (c *cluster) faultyAPI() client.WithWatch {
	f := &c.faults
	of := func(verb string, o client.Object) kind {
		_, name, _ := strings.Cut(fmt.Sprintf("%T", o), ".")
		return kind(verb + name)
	}
	count := func(what kind) kind {
		f.count(&f.calls, string(what))
		return what
	}
	return interceptor.NewClient(c.api, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			return c.caches.get(ctx, w, key, o)
		},
		List: func(ctx context.Context, w client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			return c.readList(ctx, w, l, opts...)
		},
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			o.SetUID(c.uid())
			o.SetCreationTimestamp(metav1.NewTime(c.now))
			return f.write(true, count(of("create ", o)), func() error { return w.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return f.write(true, count(of("delete ", o)), func() error { return c.delete(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return f.write(true, count(of("update ", o)), func() error { return w.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, w client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return f.write(true, count(of("patch ", o)), func() error { return w.Patch(ctx, o, p, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, w client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return f.write(true, count(of("status ", o)), func() error { return w.SubResource(sub).Update(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, w client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return f.write(true, count(of("status ", o)), func() error {
				if _, ok := o.(*corev1.Pod); ok {
					return w.Patch(ctx, o, p) // the API server takes annotations by the status, and the fake does not
				}
				return w.SubResource(sub).Patch(ctx, o, p, opts...)
			})
		},
	})
}

// delete does what the fake client does not: it keeps preconditions, and deletes nothing a second time.
func (c *cluster) delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	var options client.DeleteOptions
	options.ApplyOptions(opts)
	is := o.DeepCopyObject().(client.Object)
	if err := c.api.Get(ctx, client.ObjectKeyFromObject(o), is); err != nil {
		return err
	}
	if p := options.Preconditions; p != nil && (p.UID != nil && *p.UID != is.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != is.GetResourceVersion()) {
		return conflict(is.GetName())
	}
	if !is.GetDeletionTimestamp().IsZero() {
		return nil
	}
	return c.api.Delete(ctx, is)
}

func conflict(name string) error {
	return apierrors.NewConflict(corev1.Resource("tests"), name, errors.New("it is another one, or has changed"))
}

// faulty is the SDN as Raven has it.
type faulty struct {
	sdn.Provider
	f *faults
}

var errAway = sdn.Unavailable(errors.New("connection refused"), "sdn", "it is away")

// fails tells what there is in the way of a call.
func (p faulty) fails(method string) error {
	p.f.count(&p.f.asked, method)
	p.f.mu.Lock()
	away, problem := p.f.away, p.f.problem
	p.f.mu.Unlock()
	if away {
		return errAway
	}
	if problem != nil {
		return problem(method)
	}
	return nil
}

func (p faulty) change(method string, do func() error) error {
	if err := p.fails(method); err != nil {
		return err
	}
	return p.f.write(false, kind(method), do)
}

func (p faulty) look(method string) error {
	if err := p.fails(method); err != nil {
		return err
	}
	_, err := p.f.befalls(false, kind(method))
	return err
}

func find[T any](p faulty, method string, found iter.Seq2[T, error]) iter.Seq2[T, error] {
	if err := p.look(method); err != nil {
		return func(yield func(T, error) bool) {
			var none T
			yield(none, err)
		}
	}
	return found
}

func (p faulty) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) (out []sdn.Port, err error) {
	err = p.change("EnsurePorts", func() (err error) { out, err = p.Provider.EnsurePorts(ctx, specs); return err })
	return out, err
}

func (p faulty) UpdatePort(ctx context.Context, id sdn.ID, patch sdn.PortPatch) (out sdn.Port, err error) {
	err = p.change("UpdatePort", func() error { out, err = p.Provider.UpdatePort(ctx, id, patch); return err })
	return out, err
}

func (p faulty) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	return p.change("DeletePorts", func() error { return p.Provider.DeletePorts(ctx, ids) })
}

func (p faulty) EnsureNetwork(ctx context.Context, spec sdn.NetworkSpec) (out sdn.Network, err error) {
	err = p.change("EnsureNetwork", func() (err error) { out, err = p.Provider.EnsureNetwork(ctx, spec); return err })
	return out, err
}

func (p faulty) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	return p.change("DeleteNetwork", func() error { return p.Provider.DeleteNetwork(ctx, id) })
}

func (p faulty) AttachSubnet(ctx context.Context, router, subnet sdn.ID, a netip.Addr) error {
	return p.change("AttachSubnet", func() error { return p.Provider.AttachSubnet(ctx, router, subnet, a) })
}

func (p faulty) DetachSubnet(ctx context.Context, router, subnet sdn.ID) error {
	return p.change("DetachSubnet", func() error { return p.Provider.DetachSubnet(ctx, router, subnet) })
}

func (p faulty) EnsureRouter(ctx context.Context, spec sdn.RouterSpec) (out sdn.Router, err error) {
	err = p.change("EnsureRouter", func() (err error) { out, err = p.Provider.EnsureRouter(ctx, spec); return err })
	return out, err
}

func (p faulty) UpdateRouter(ctx context.Context, id sdn.ID, patch sdn.RouterPatch) (out sdn.Router, err error) {
	err = p.change("UpdateRouter", func() (err error) { out, err = p.Provider.UpdateRouter(ctx, id, patch); return err })
	return out, err
}

func (p faulty) Router(ctx context.Context, id sdn.ID) (sdn.Router, error) {
	if err := p.look("Router"); err != nil {
		return sdn.Router{}, err
	}
	return p.Provider.Router(ctx, id)
}

func (p faulty) EnsureFloatingIP(ctx context.Context, spec sdn.FloatingIPSpec) (out sdn.FloatingIP, err error) {
	err = p.change("EnsureFloatingIP", func() (err error) { out, err = p.Provider.EnsureFloatingIP(ctx, spec); return err })
	return out, err
}

func (p faulty) DeleteFloatingIP(ctx context.Context, id sdn.ID) error {
	return p.change("DeleteFloatingIP", func() error { return p.Provider.DeleteFloatingIP(ctx, id) })
}

func (p faulty) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	if err := p.look("Port"); err != nil {
		return sdn.Port{}, err
	}
	return p.Provider.Port(ctx, id)
}

func (p faulty) Network(ctx context.Context, id sdn.ID) (sdn.Network, error) {
	if err := p.look("Network"); err != nil {
		return sdn.Network{}, err
	}
	return p.Provider.Network(ctx, id)
}

func (p faulty) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return find(p, "FindPorts", p.Provider.FindPorts(ctx, q))
}

func (p faulty) FindNetworks(ctx context.Context, q sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	return find(p, "FindNetworks", p.Provider.FindNetworks(ctx, q))
}

func (p faulty) FindSubnets(ctx context.Context, q sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	return find(p, "FindSubnets", p.Provider.FindSubnets(ctx, q))
}

func (p faulty) FindRouters(ctx context.Context, q sdn.RouterQuery) iter.Seq2[sdn.Router, error] {
	return find(p, "FindRouters", p.Provider.FindRouters(ctx, q))
}

func (p faulty) FindFloatingIPs(ctx context.Context, q sdn.FloatingIPQuery) iter.Seq2[sdn.FloatingIP, error] {
	return find(p, "FindFloatingIPs", p.Provider.FindFloatingIPs(ctx, q))
}

func (p faulty) UpdateFloatingIP(ctx context.Context, id sdn.ID, patch sdn.FloatingIPPatch) (out sdn.FloatingIP, err error) {
	err = p.change("UpdateFloatingIP", func() (err error) { out, err = p.Provider.UpdateFloatingIP(ctx, id, patch); return err })
	return out, err
}

func (p faulty) EnsureSubnet(ctx context.Context, spec sdn.SubnetSpec) (out sdn.Subnet, err error) {
	err = p.change("EnsureSubnet", func() (err error) { out, err = p.Provider.EnsureSubnet(ctx, spec); return err })
	return out, err
}

func (p faulty) UpdateSubnet(ctx context.Context, id sdn.ID, patch sdn.SubnetPatch) (out sdn.Subnet, err error) {
	err = p.change("UpdateSubnet", func() (err error) { out, err = p.Provider.UpdateSubnet(ctx, id, patch); return err })
	return out, err
}

func (p faulty) DeleteSubnet(ctx context.Context, id sdn.ID) error {
	return p.change("DeleteSubnet", func() error { return p.Provider.DeleteSubnet(ctx, id) })
}

func (p faulty) ApplyLoadBalancer(ctx context.Context, spec sdn.LoadBalancerSpec) (out sdn.LoadBalancer, err error) {
	err = p.change("ApplyLoadBalancer", func() (err error) { out, err = p.Provider.ApplyLoadBalancer(ctx, spec); return err })
	return out, err
}

func (p faulty) DeleteLoadBalancer(ctx context.Context, id sdn.ID) error {
	return p.change("DeleteLoadBalancer", func() error { return p.Provider.DeleteLoadBalancer(ctx, id) })
}

func (p faulty) FindLoadBalancers(ctx context.Context, q sdn.LoadBalancerQuery) iter.Seq2[sdn.LoadBalancer, error] {
	return find(p, "FindLoadBalancers", p.Provider.FindLoadBalancers(ctx, q))
}
