package raven

import (
	"slices"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
)

// What is known of a Service's load balancer is not known of that of another Service of its name; what its owner was told is known apart.
func TestKnownOfOneServiceAlone(t *testing.T) {
	t.Parallel()
	var a applied
	first, second := &v1.KuryrLoadBalancer{Spec: v1.KuryrLoadBalancerSpec{ServiceUID: "1"}}, &v1.KuryrLoadBalancer{Spec: v1.KuryrLoadBalancerSpec{ServiceUID: "2"}}
	a.suspect(first, true)
	known := a.entry(first)
	known.cleaned, known.noted = 3, map[string]bool{"a note": true}
	if !a.suspected(first) || a.entry(first) != known {
		t.Error("what is known of it is lost")
	}
	if fresh := a.news(core.Request("", "").NamespacedName, "1", []string{"told"}); !slices.Equal(fresh, []string{"told"}) {
		t.Errorf("news %q", fresh)
	}
	if fresh := a.news(core.Request("", "").NamespacedName, "1", []string{"told"}); len(fresh) != 0 {
		t.Errorf("told again: %q", fresh)
	}
	if a.suspected(second) {
		t.Error("the other is suspected")
	}
	if other := a.entry(second); other.cleaned != 0 || len(other.noted) != 0 {
		t.Errorf("of the other is known %+v", other)
	}
	if fresh := a.news(core.Request("", "").NamespacedName, "2", []string{"told"}); len(fresh) != 1 {
		t.Error("the other's owner is told nothing")
	}
	if a.forget(core.Request("", "").NamespacedName); len(a.all) != 0 || len(a.told) != 0 {
		t.Errorf("of what has gone is known %v and %v", a.all, a.told)
	}
}
