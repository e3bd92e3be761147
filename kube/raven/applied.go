package raven

import (
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// applied is what Raven knows of load balancers and Kubernetes does not. All of it may be lost: then each is applied once more, which changes nothing where nothing has changed.
type applied struct {
	mu  sync.Mutex
	all map[client.ObjectKey]*appliedOne
}

type appliedOne struct {
	digests map[string][sha256.Size]byte // by VIP: what the SDN has been told, and has done
	floated string                       // what of the floating IP was asked for and seen to be so
	looked  time.Time                    // when all of it was applied, whatever the digests
	written time.Time                    // the status
	cleaned int64                        // the generation at which what earlier ones said was looked for
	noted   map[string]bool              // to the Service's owner, of what the SDN has of it
	told    map[string]bool              // to the Service's owner
	service string                       // whose owner: a UID

	// suspected is that the SDN was seen to have of it what it does not want. More than one reconciler has this.
	suspected bool
}

func (a *applied) of(key client.ObjectKey) *appliedOne {
	if a.all == nil {
		a.all = map[client.ObjectKey]*appliedOne{}
	}
	if a.all[key] == nil {
		a.all[key] = &appliedOne{digests: map[string][sha256.Size]byte{}}
	}
	return a.all[key]
}

// entry is a load balancer's; one reconciler has it at a time. What is told is apart, as another has that.
func (a *applied) entry(key client.ObjectKey) *appliedOne {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of(key)
}

// suspect notes of a load balancer that the SDN has more of it than it wants and tells of, or that it has not any more.
func (a *applied) suspect(key client.ObjectKey, more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of(key).suspected = more
}

func (a *applied) suspected(key client.ObjectKey) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of(key).suspected
}

// forget drops what is known of a load balancer that has gone.
func (a *applied) forget(key client.ObjectKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.all, key)
}

// news are those of the notes that have not been told of this Service.
func (a *applied) news(key client.ObjectKey, service string, notes []string) (fresh []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.of(key)
	if one.service != service {
		one.service, one.told = service, nil
	}
	fresh, one.told = news(one.told, notes)
	return fresh
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
