package raven

import (
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// applied is what Raven knows of load balancers and Kubernetes does not. All of it may be lost: then each is applied once more, which changes nothing where nothing has changed.
type applied struct {
	mu   sync.Mutex
	all  map[client.ObjectKey]*appliedOne
	told map[client.ObjectKey]*toldOne
}

// appliedOne is of one Service's load balancer. Another Service of the name has another one.
type appliedOne struct {
	service types.UID
	digests map[string][sha256.Size]byte    // by VIP: what the SDN has been told, and has done
	shared  sdn.LoadBalancer                // another's, as it was when it was seen last
	floated string                          // what of the floating IP was asked for and seen to be so
	looked  time.Time                       // when all of it was applied, whatever the digests
	written time.Time                       // the status
	cleaned int64                           // the generation at which what earlier ones said was looked for
	noted   map[string]bool                 // to the Service's owner, of what the SDN has of it
	refused map[string]bool                 // of what the namespace is not granted, to the Service's owner too
	seen    map[string]v1.LoadBalancerOfVIP // by VIP, as the SDN has answered
	unseen  map[string]bool                 // pods of endpoints on the nodes' network that the cache lacked
	// certificate is one that the SDN was seen to have of the Service, though it is not granted.
	certificate string

	// suspected is that the SDN was seen to have of it what it does not want. More than one reconciler has this.
	suspected bool
	// fresh is the object as it was written, until the cache shows it so. More than one reconciler has this too.
	fresh *v1.KuryrLoadBalancer
}

// toldOne is what a Service's owner was told.
type toldOne struct {
	service types.UID
	notes   map[string]bool
	waits   time.Time // since when, for the name
}

func (a *applied) of(lb *v1.KuryrLoadBalancer) *appliedOne {
	key := client.ObjectKeyFromObject(lb)
	if one := a.all[key]; one != nil && one.service == lb.Spec.ServiceUID {
		return one
	}
	if a.all == nil {
		a.all = map[client.ObjectKey]*appliedOne{}
	}
	a.all[key] = &appliedOne{
		service: lb.Spec.ServiceUID,
		digests: map[string][sha256.Size]byte{}, seen: map[string]v1.LoadBalancerOfVIP{},
	}
	return a.all[key]
}

// entry is a load balancer's; one reconciler has it at a time. What is told is apart, as another has that.
func (a *applied) entry(lb *v1.KuryrLoadBalancer) *appliedOne {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of(lb)
}

// wrote notes what a load balancer is since its status was written.
func (a *applied) wrote(lb *v1.KuryrLoadBalancer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of(lb).fresh = lb
}

// newest is a load balancer as the cache shows it, or as it was written here since: who took the cache's word for it would have the SDN apply it once more, and be refused the status.
func (a *applied) newest(cached *v1.KuryrLoadBalancer, now time.Time) *v1.KuryrLoadBalancer {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.of(cached)
	if f := one.fresh; f != nil && f.UID == cached.UID && core.Older(cached, f) && now.Sub(one.written) <= core.StaleAfter {
		return f.DeepCopy()
	}
	one.fresh = nil
	return cached
}

// shown lets go of what was written, which the cache shows by now.
func (a *applied) shown(cached *v1.KuryrLoadBalancer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.all[client.ObjectKeyFromObject(cached)]; one != nil && one.fresh != nil && !core.Older(cached, one.fresh) {
		one.fresh = nil
	}
}

// suspect notes of a load balancer that the SDN has more of it than it wants and tells of, or that it has not any more.
func (a *applied) suspect(lb *v1.KuryrLoadBalancer, more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of(lb).suspected = more
}

func (a *applied) suspected(lb *v1.KuryrLoadBalancer) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of(lb).suspected
}

// forget drops what is known of a load balancer that has gone, or of a Service that is to have none.
func (a *applied) forget(key client.ObjectKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.all, key)
	delete(a.told, key)
}

// news are those of the notes that have not been told of this Service.
func (a *applied) news(key client.ObjectKey, service types.UID, notes []string) (fresh []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.toldOf(key, service)
	fresh, one.notes = news(one.notes, notes)
	return fresh
}

// waits is since when a Service is known to wait for its name: now, where it is not.
func (a *applied) waits(key client.ObjectKey, service types.UID, now time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.toldOf(key, service)
	if one.waits.IsZero() {
		one.waits = now
	}
	return one.waits
}

func (a *applied) toldOf(key client.ObjectKey, service types.UID) *toldOne {
	if one := a.told[key]; one != nil && one.service == service {
		return one
	}
	if a.told == nil {
		a.told = map[client.ObjectKey]*toldOne{}
	}
	a.told[key] = &toldOne{service: service}
	return a.told[key]
}

// news are those of the notes that have not been told, each once, and what has been told with them.
func news(told map[string]bool, notes []string) (fresh []string, now map[string]bool) {
	now = map[string]bool{}
	for _, n := range notes {
		if !told[n] && !now[n] {
			fresh = append(fresh, n)
		}
		now[n] = true
	}
	return fresh, now
}

// digest is of all that a load balancer is to be.
func digest(spec sdn.LoadBalancerSpec) ([sha256.Size]byte, error) {
	text, err := json.Marshal(spec)
	return sha256.Sum256(text), err
}
