//go:build linux

package claim

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kuryr/kuryr/kube/agent"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// An older word of a port than the one that is known is passed over.
func TestOlderVersion(t *testing.T) {
	x := newIndex(thisNode)
	at := func(version string, status v1.PortStatus) *v1.KuryrPort {
		p := aPort(1)
		p.ResourceVersion, p.Labels[v1.LabelPortStatus] = version, string(status)
		return p
	}
	x.setPort(at("10", v1.PortAvailable))
	x.setPort(at("9", v1.PortBound))
	if is := labelOf(x.ports[portName(1)].object); is != v1.PortAvailable {
		t.Errorf("it is %s", is)
	}
	x.setPort(at("11", v1.PortDeleting))
	if !x.empty(aPool().Name) {
		t.Error("a port on its way out is free")
	}
}

// A port whose spec is edited by hand is still one port: its claim takes it from whichever pool's free ones it is among.
func TestEditedByHand(t *testing.T) {
	for name, edit := range map[string]func(*v1.KuryrPortSpec){
		"pool":            func(s *v1.KuryrPortSpec) { s.Pool = "by-hand" },
		"dedicated":       func(s *v1.KuryrPortSpec) { s.Dedicated = "ua" },
		"dedicated later": func(s *v1.KuryrPortSpec) { s.Dedicated = "uc" },
	} {
		x := newIndex(thisNode)
		x.setNamespace(aNamespace())
		x.setNetwork(aNetwork())
		x.setPod(aPod("a", "ua"))
		x.setPod(aPod("b", "ub"))
		at := func(version string, edit func(*v1.KuryrPortSpec)) {
			p := aPort(1)
			p.ResourceVersion = version
			edit(&p.Spec)
			x.setPort(p)
		}
		at("1", func(*v1.KuryrPortSpec) {})
		at("2", edit)
		var has []string
		for _, who := range []string{"a", "b"} {
			a := ask("c"+who, who, "u"+who)
			if p, _, _, _ := x.choose(a); p != nil {
				x.hold(&attachment{Intent: agent.Intent{Attachment: a, Port: &agent.Allocation{Wiring: p.wiring}}})
				has = append(has, who)
			}
		}
		if len(has) > 1 {
			t.Errorf("%s: the pods %v have one port", name, has)
		}
	}
}

// What was edited by hand and is as before again is given as before.
func TestEditedBack(t *testing.T) {
	x := newIndex(thisNode)
	x.setNamespace(aNamespace())
	x.setNetwork(aNetwork())
	x.setPod(aPod("a", "ua"))
	for version, edit := range []func(*v1.KuryrPortSpec){
		func(*v1.KuryrPortSpec) {}, func(s *v1.KuryrPortSpec) { s.Pool = "by-hand" }, func(*v1.KuryrPortSpec) {},
		func(s *v1.KuryrPortSpec) { s.Dedicated = "uc" }, func(*v1.KuryrPortSpec) {},
	} {
		p := aPort(1)
		p.ResourceVersion = fmt.Sprint(version + 1)
		edit(&p.Spec)
		x.setPort(p)
		free := x.pool(aPool().Name).free.Len()
		if want := map[bool]int{true: 1}[reflect.DeepEqual(p.Spec, aPort(1).Spec)]; free != want {
			t.Errorf("version %d: %d are free, want %d", version, free, want)
		}
	}
	if p, _, _, err := x.choose(ask("c", "a", "ua")); p == nil {
		t.Error(err)
	}
}

// A namespace that was made again has the network of its own life alone, whatever of its earlier ones is still there.
func TestNamespaceMadeAgain(t *testing.T) {
	x := newIndex(thisNode)
	old, gone := aNetwork(), metav1.Now()
	old.Spec.ProjectID = "red"
	p := aPort(1)
	p.Spec.Pool = v1.PoolName(v1.PoolKey(old, thisNode))
	has := func(want *v1.KuryrNetwork) {
		t.Helper()
		is, there := x.network(namespace)
		if there != (want != nil) || there && is.pool != v1.PoolName(v1.PoolKey(want, thisNode)) {
			t.Errorf("the network is %+v, not %+v", is, want)
		}
	}
	x.setNetwork(old)
	x.setPort(p)
	x.setPod(aPod("a", "ua"))
	has(nil)
	first := aNamespace()
	if told := x.setNamespace(first); !slices.Equal(told, []topic{{ofNetwork, namespace}}) {
		t.Errorf("%v hear of it", told)
	}
	has(old)
	first.DeletionTimestamp = &gone
	x.setNamespace(first)
	has(nil)
	again := aNamespace()
	again.UID = "ns2"
	x.setNamespace(again)
	has(nil)
	if q, _, next, _ := x.choose(ask("c", "a", "ua")); q != nil || next.of != ofNetwork {
		t.Errorf("a pod of the second life gets %v, or waits for %v", q, next)
	}
	own := aNetwork()
	own.Name, own.Spec.UID = namespace+".2", "ns2"
	x.setNetwork(own)
	has(own)
	x.dropNamespace(namespace)
	has(nil)
}

// Nothing is left of a pool that has gone, whichever watch tells of its end first, nor of one that was only asked for.
func TestPoolsGo(t *testing.T) {
	for name, last := range map[string]func(*index){
		"the port first": func(x *index) { x.dropPort(portName(1)); x.dropPool(aPool().Name) },
		"the pool first": func(x *index) { x.dropPool(aPool().Name); x.dropPort(portName(1)) },
		"the port on its way out": func(x *index) {
			p := aPort(1)
			p.ResourceVersion, p.Labels[v1.LabelPortStatus] = "2", string(v1.PortDeleting)
			x.setPort(p)
			x.dropPool(aPool().Name)
			x.dropPort(portName(1))
		},
	} {
		x := newIndex(thisNode)
		x.setNamespace(aNamespace())
		x.setNetwork(aNetwork())
		x.setPod(aPod("a", "ua"))
		if _, _, next, _ := x.choose(ask("c", "a", "ua")); next.of != ofPorts || len(x.pools) != 0 {
			t.Errorf("%s: asked for %v, there are %d pools", name, next, len(x.pools))
		}
		x.setPool(aPool())
		p := aPort(1)
		p.ResourceVersion = "1"
		x.setPort(p)
		if x.empty(aPool().Name) {
			t.Errorf("%s: the port is not free", name)
		}
		if last(x); len(x.pools) != 0 {
			t.Errorf("%s: %d pools are left", name, len(x.pools))
		}
	}
}

// Who waits for a network or its ports hears of what concerns it alone: every node hears of every network.
func TestWhatConcernsNobody(t *testing.T) {
	x := newIndex(thisNode)
	hear := func(what string, told []topic, want ...topic) {
		t.Helper()
		if !slices.Equal(told, want) {
			t.Errorf("%s: %v hear of it, want %v", what, told, want)
		}
	}
	forNetwork, ports := topic{ofNetwork, namespace}, topic{ofPorts, aPool().Name}
	made := aNetwork()
	made.Status = v1.KuryrNetworkStatus{Conditions: []metav1.Condition{{Type: v1.ConditionReady, Message: "no range is left"}}}
	hear("of a namespace that is not known", x.setNetwork(made))
	hear("the namespace", x.setNamespace(aNamespace()), forNetwork)
	hear("the namespace again", x.setNamespace(aNamespace()))
	if n, _ := x.network(namespace); n.why != "no range is left" {
		t.Errorf("it is not there: %q", n.why)
	}
	hear("made", x.setNetwork(aNetwork()), forNetwork)
	told := aNetwork()
	told.Labels, told.Status.MTU, told.Status.ObservedGeneration = map[string]string{"a": "b"}, 9000, 7
	told.Status.Conditions = []metav1.Condition{{Type: v1.ConditionReady, Message: "the ranges are used up"}}
	hear("its status", x.setNetwork(told))
	others := aNetwork()
	others.Name, others.Spec.UID = namespace+".0", "before"
	hear("of another life", x.setNetwork(others))
	younger := aNetwork()
	younger.Name, younger.Status.Network = namespace+".2", "other"
	hear("a younger one", x.setNetwork(younger))
	hear("its end", x.dropNetwork(namespace, younger.Name))
	grouped := aNetwork()
	grouped.Status.SecurityGroups = []string{"g"}
	hear("groups", x.setNetwork(grouped), forNetwork, ports)
	gone := metav1.Now()
	grouped.DeletionTimestamp = &gone
	hear("on its way out", x.setNetwork(grouped), forNetwork, topic{ofPorts, v1.PoolName(v1.PoolKey(grouped, thisNode))})
	hear("gone", x.dropNetwork(namespace, grouped.Name))
}
