package neutronapi

import (
	"slices"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// noSuchThing says why load balancers lack an attribute.
const noSuchThing = "the load balancers here have no such thing"

// isDescription takes a description or null, which is "".
var isDescription = kindOf(func(b *body, _ string) *string { return b.description("") })

// isUnset takes what can only be null, empty, or a value that means the same. Any other value is
// given.
func isUnset(same ...string) kind {
	return func(b *body, name string) (any, bool) {
		value, _ := b.take(name)
		empty := value == nil || value == "" || value == false || slices.Contains(same, text(value))
		switch v := value.(type) {
		case []any:
			empty = len(v) == 0
		case map[string]any:
			empty = len(v) == 0
		}
		return &value, !empty
	}
}

// unset refuses a value of an attribute that isUnset would give.
func (b *body) unset(name string, same ...string) {
	if _, given := isUnset(same...)(b, name); given {
		b.unsupported(name, noSuchThing)
	}
}

// nullIs makes null a value.
func nullIs(value any, k kind) kind {
	return func(b *body, name string) (any, bool) {
		if b.null(name) {
			return value, true
		}
		return k(b, name)
	}
}

// statusFields are the attributes that show how far a load balancer is. It is applied as a whole, so
// its parts show the same. online is the operating status of what is ready.
func statusFields[T any](of func(*T) *sdn.LoadBalancer, online string) []field {
	return []field{
		{name: "provisioning_status", show: via(func(o *T) any { return provisioning(of(o)) })},
		{name: "operating_status", show: via(func(o *T) any { return operating(of(o), online) })},
		{name: "admin_state_up", is: orNull(isBool), show: via(func(*T) any { return true }), only: true,
			why: "load balancers and what is below them cannot be switched off"},
		{name: "created_at", show: via(func(o *T) any { return octaviaTime(of(o).Created) })},
		{name: "updated_at", show: via(func(o *T) any { return octaviaTime(of(o).Updated) })},
	}
}

// The statuses of Octavia that load balancers and their parts have here.
const (
	provisioned = "ACTIVE"
	updating    = "PENDING_UPDATE"
	online      = "ONLINE"
	offline     = "OFFLINE"
	noMonitor   = "NO_MONITOR"
)

func provisioning(l *sdn.LoadBalancer) string {
	if !l.Status.Ready {
		return updating
	}
	return provisioned
}

func operating(l *sdn.LoadBalancer, online string) string {
	if !l.Status.Ready {
		return offline
	}
	return online
}

// octaviaTime shows a time, null for an unknown one.
func octaviaTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02T15:04:05")
}
