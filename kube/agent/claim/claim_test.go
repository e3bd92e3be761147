//go:build linux

package claim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/datapath/hostport"
	"github.com/kuryr/kuryr/kube/agent"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// A warm pool serves while the API server is away; what it is to know comes when it is back.
func TestWarmPoolNeedsNoAPI(t *testing.T) {
	w := newWorld(t, aPort(1), aPort(2), aPod("a", "ua"), aPod("b", "ub"))
	w.begun()
	w.api.leave(true)
	got := w.adds(ask("ca", "a", "ua"))
	other := w.adds(ask("cb", "b", ""))
	if got.Port.ID == other.Port.ID {
		t.Fatalf("both have %s", got.Port.ID)
	}
	if again := w.adds(ask("ca", "a", "ua")); again.Port.ID != got.Port.ID {
		t.Errorf("asked again it has %s, not %s", again.Port.ID, got.Port.ID)
	}
	if s := got.Subnets[0]; got.MTU != 1450 || s.CIDR.String() != "10.1.0.0/16" || s.Gateway.String() != "10.1.0.1" || len(s.Nameservers) != 1 || len(s.HostRoutes) != 1 ||
		len(got.Port.Addresses) != 1 || got.Port.MAC == nil || got.Port.VIF.Details[sdn.DetailBridge] != "br0" {
		t.Errorf("wiring %+v", got)
	}
	if n := w.api.written(); n != 0 {
		t.Errorf("%d writes", n)
	}
	w.api.leave(false)
	w.says(string(got.Port.ID), v1.PortBound, "ca")
	w.says(string(other.Port.ID), v1.PortBound, "cb")
	want := fmt.Sprintf(`/apis/openstack.org/v1/kuryrports/%s"`, got.Port.ID)
	eventually(t, "the annotation", func() bool { return strings.Contains(w.api.pod(t, "a").Annotations[v1.AnnotationVIF], want) })

	w.api.leave(true)
	w.dels(ask("ca", "a", "ua"))
	w.dels(ask("ca", "a", "ua"))
	if next := w.adds(ask("ca2", "a", "ua")); next.Port.ID != got.Port.ID {
		t.Errorf("what was freed is not used again: %s", next.Port.ID)
	}
	w.dels(ask("ca2", "a", "ua"))
	w.api.leave(false)
	w.says(string(got.Port.ID), v1.PortAvailable, "")
	w.settled(1)
}

// An API server that is slow, or refuses the daemon's token for a while, only has it hear later.
func TestSlowOrRefusing(t *testing.T) {
	for name, refusal := range map[string]error{
		"slow":          nil,
		"token expired": apierrors.NewUnauthorized("the token has expired"),
		"too much":      apierrors.NewTooManyRequests("later", 1),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, aPort(1), aPort(2), aPod("a", "ua"), aPod("b", "ub"))
			w.begun()
			slow := make(chan struct{})
			if w.api.refusal = refusal; refusal != nil {
				w.api.leave(true)
			} else {
				w.api.mu.Lock()
				w.api.slow = slow
				w.api.mu.Unlock()
			}
			a, b := w.adds(ask("ca", "a", "ua")), w.adds(ask("cb", "b", "ub"))
			w.dels(ask("ca", "a", "ua"))
			if n := w.api.written(); n != 0 {
				t.Errorf("%d writes", n)
			}
			close(slow)
			w.api.leave(false)
			w.says(string(a.Port.ID), v1.PortAvailable, "")
			w.says(string(b.Port.ID), v1.PortBound, "cb")
		})
	}
}

// An attachment that asks for what cannot be is told so, by kind and field.
func TestRefused(t *testing.T) {
	static := aPod("static", "mirror")
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	lonely := aPod("lonely", "ul")
	lonely.Annotations = map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:09"}
	elsewhere := aPod("elsewhere", "ue")
	elsewhere.Namespace = "other"
	w := aWorld(t, aPort(1), aPort(2), aPod("a", "ua"), aPod("b", "ub"), static, lonely, elsewhere)
	w.wait = 200 * time.Millisecond // for a pod that does not come
	w.start()
	t.Cleanup(func() { w.kill() })
	w.begun()
	w.adds(ask("ca", "a", "ua"))
	in := func(a agent.Attachment, ns string) agent.Attachment { a.Pod.Namespace = ns; return a }
	wants := func(want agent.Want) agent.Attachment { a := ask("cw", "b", "ub"); a.Want = want; return a }
	for name, c := range map[string]struct {
		ask  agent.Attachment
		is   func(error) bool
		says string
	}{
		"no pod":                    {agent.Attachment{Container: "x", Interface: "eth0"}, sdn.IsInvalid, "K8S_POD_NAME"},
		"unknown pod":               {ask("x", "none", ""), sdn.IsNotFound, "default/none"},
		"stale UID":                 {ask("x", "b", "old"), func(err error) bool { return sdn.IsConflict(err) && sdn.ReasonOf(err) == sdn.Stale }, "K8S_POD_UID"},
		"another's container":       {ask("ca", "b", "ub"), sdn.IsConflict, "default/a"},
		"wishes without their port": {ask("x", "lonely", "ul"), sdn.IsExhausted, "alone"},
		"no network yet":            {in(ask("x", "elsewhere", "ue"), "other"), sdn.IsExhausted, "namespace other"},
		"unknown port":              {wants(agent.Want{Port: "none"}), sdn.IsNotFound, "none"},
		"another's port":            {wants(agent.Want{Port: sdn.ID(portName(1))}), sdn.IsConflict, portName(1)},
		"an address none has":       {wants(agent.Want{IPs: []string{"10.9.9.9"}}), sdn.IsExhausted, "pool"},
		"a network":                 {wants(agent.Want{Network: "green"}), sdn.IsUnsupported, `"green" (network)`},
		"published":                 {wants(agent.Want{Published: []agent.Published{{HostPort: 80, Port: 80}}}), sdn.IsUnsupported, "portMappings"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := func() error { _, err := w.Claim(t.Context(), c.ask); return err }
			if c.is(sdn.Exhausted("", "", "")) { // it waits for what does not come
				claim = func() error { return w.givesUp(c.ask) }
			}
			if err := claim(); !c.is(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v", err)
			}
		})
	}
	if got := w.adds(ask("cs", "static", "hash")); got.Port.ID != sdn.ID(portName(2)) {
		t.Errorf("the static pod has %s", got.Port.ID)
	}
	w.dels(ask("cs", "static", "hash"))
	if got := w.adds(wants(agent.Want{IPs: []string{"10.1.0.2/16"}})); got.Port.ID != sdn.ID(portName(2)) {
		t.Errorf("the wanted address is of %s", got.Port.ID)
	}
}

// A port made for one pod is that one's in each of its sandboxes, and goes with it.
func TestDedicated(t *testing.T) {
	wisher := aPod("a", "ua")
	wisher.Annotations = map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:01"}
	w := newWorld(t, aPort(2), dedicated(aPort(1), "ua"), wisher)
	w.begun()
	for _, c := range []string{"c1", "c2"} {
		if got := w.adds(ask(c, "a", "ua")); got.Port.ID != sdn.ID(portName(1)) {
			t.Errorf("%s has %s", c, got.Port.ID)
		}
		w.says(portName(1), v1.PortBound, c)
		if c == "c1" {
			w.dels(ask(c, "a", "ua"))
			w.says(portName(1), v1.PortAvailable, "")
		}
	}
	must(t, w.api.Delete(t.Context(), wisher))
	eventually(t, "the pod has gone", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.index.uids["ua"] == nil })
	w.dels(ask("c2", "a", "ua"))
	w.says(portName(1), v1.PortDeleting, "")
}

// A DEL for another pod's UID, or for a container that has nothing, takes nothing away.
func TestStaleRelease(t *testing.T) {
	w := newWorld(t, aPort(1), aPod("a", "ua"))
	w.begun()
	got := w.adds(ask("c", "a", "ua"))
	if _, err := w.Find(t.Context(), ask("c", "a", "another")); !sdn.IsNotFound(err) {
		t.Errorf("another pod's container has it too: %v", err)
	}
	w.dels(ask("c", "a", "another"))
	w.dels(ask("other", "a", "ua"))
	if has, err := w.Find(t.Context(), ask("c", "a", "ua")); err != nil || has.Port.ID != got.Port.ID {
		t.Errorf("it has %s, error %v", has.Port.ID, err)
	}
	w.dels(ask("c", "a", "")) // a runtime that tells no UID means it
	if _, err := w.Find(t.Context(), ask("c", "a", "")); !sdn.IsNotFound(err) {
		t.Errorf("error %v", err)
	}
}

// Who wants a port no more deletes it: one that is free is given up at once, and one that a pod has when the pod has gone.
func TestGivenUp(t *testing.T) {
	w := newWorld(t, aPort(1), aPod("a", "ua"))
	w.begun()
	w.adds(ask("c", "a", "ua"))
	must(t, w.api.Create(t.Context(), aPort(2)))
	must(t, w.api.Delete(t.Context(), aPort(1)))
	must(t, w.api.Delete(t.Context(), aPort(2)))
	w.says(portName(2), v1.PortDeleting, "")
	w.says(portName(1), v1.PortBound, "c")
	if err := w.givesUp(ask("c2", "a", "ua")); !sdn.IsExhausted(err) {
		t.Errorf("error %v", err)
	}
	w.dels(ask("c", "a", "ua"))
	w.says(portName(1), v1.PortDeleting, "")
	w.api.remove(t, aPort(1))
	w.api.remove(t, aPort(2))
	w.settled(0)
}

// A port that is gone from the API is its pod's until that goes.
func TestPortGoneFromAPI(t *testing.T) {
	w := newWorld(t, aPort(1), aPod("a", "ua"))
	w.begun()
	got := w.adds(ask("c", "a", "ua"))
	w.api.remove(t, aPort(1))
	w.restart()
	w.begun()
	if has, err := w.Find(t.Context(), ask("c", "a", "ua")); err != nil || has.Port.ID != got.Port.ID || len(has.Subnets) != 1 {
		t.Errorf("it has %+v, error %v", has, err)
	}
	w.dels(ask("c", "a", "ua"))
	w.settled(0)
}

// What was answered and not yet told when the daemon died is told by the next one, and nothing is given twice.
func TestRestart(t *testing.T) {
	w := newWorld(t, aPort(1), aPort(2), aPod("a", "ua"), aPod("b", "ub"))
	w.begun()
	a := w.adds(ask("ca", "a", "ua"))
	w.says(string(a.Port.ID), v1.PortBound, "ca")
	w.api.leave(true)
	w.dels(ask("ca", "a", "ua"))
	b := w.adds(ask("cb", "b", "ub"))
	w.restart()
	if has, err := w.Find(t.Context(), ask("cb", "b", "ub")); err != nil || has.Port.ID != b.Port.ID {
		t.Fatalf("with the API away it has %s, error %v", has.Port.ID, err)
	}
	if err := w.Ready(t.Context(), "", ""); !sdn.IsUnavailable(err) {
		t.Errorf("ready: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	// On a loaded machine the time is over before the ADD waits for the API.
	_, err := w.Claim(ctx, ask("ca3", "a", "ua"))
	if !sdn.IsUnavailable(err) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a new one before the API was seen: %v", err)
	}
	w.api.leave(false)
	w.begun()
	must(t, w.Ready(t.Context(), "", ""))
	w.says(string(b.Port.ID), v1.PortBound, "cb")
	w.says(string(a.Port.ID), v1.PortAvailable, "")
}

// Without its journal the daemon believes the API: what a pod of the node has stays its own, what others had is free.
func TestLostJournal(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"lost":   func(w *world) { w.dir = w.t.TempDir() },
		"reboot": reboot,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, aPort(1), aPort(2), aPort(3), aPod("a", "ua"), aPod("b", "ub"), aPod("c", "uc"))
			w.begun()
			a, b := w.adds(ask("ca", "a", "ua")), w.adds(ask("cb", "b", "ub"))
			w.says(string(a.Port.ID), v1.PortBound, "ca")
			w.says(string(b.Port.ID), v1.PortBound, "cb")
			w.kill()
			lose(w)
			w.api.remove(t, aPod("b", "ub"))
			w.start()
			w.begun()
			w.says(string(b.Port.ID), v1.PortAvailable, "")
			if all := w.attachments(); len(all) != 1 || all[0].Network != "kuryr" {
				t.Errorf("attachments %+v", all)
			}
			if c := w.adds(ask("cc", "c", "uc")); c.Port.ID == a.Port.ID {
				t.Error("another pod has the port")
			}
			// The pod's next sandbox has the port, and the dead one's DEL comes late.
			if next := w.adds(ask("ca2", "a", "ua")); next.Port.ID != a.Port.ID {
				t.Errorf("the next sandbox has %s, not %s", next.Port.ID, a.Port.ID)
			}
			w.dels(ask("ca", "a", "ua"))
			w.says(string(a.Port.ID), v1.PortBound, "ca2")
			w.restart()
			w.begun()
			if has, err := w.Find(t.Context(), ask("ca2", "a", "ua")); err != nil || has.Port.ID != a.Port.ID {
				t.Errorf("after another start it has %s, error %v", has.Port.ID, err)
			}
		})
	}
}

// reboot takes the interfaces and the table away. Package reconcile has the test of the latter.
func reboot(w *world) {
	must(w.t, os.Remove(filepath.Join(w.dir, "agent.db")))
	clear(w.plugs.there)
}

// What people change by hand is set right.
func TestChangedByHand(t *testing.T) {
	w := newWorld(t, aPort(1), aPort(2), aPod("a", "ua"))
	w.begun()
	got := w.adds(ask("c", "a", "ua"))
	w.says(string(got.Port.ID), v1.PortBound, "c")
	annotated := func() bool {
		return strings.Contains(w.api.pod(t, "a").Annotations[v1.AnnotationVIF], portName(1))
	}
	eventually(t, "the annotation", annotated) // the daemon has written all
	for _, n := range []int{1, 2} {
		p := w.api.port(t, portName(n))
		is := p.Labels[v1.LabelPortStatus]
		p.Labels[v1.LabelPortStatus] = map[string]string{string(v1.PortAvailable): string(v1.PortBound), string(v1.PortBound): string(v1.PortAvailable)}[is]
		must(t, w.api.Update(t.Context(), p))
	}
	pod := w.api.pod(t, "a")
	pod.Annotations = map[string]string{v1.AnnotationVIF: "mine"}
	must(t, w.api.Update(t.Context(), pod))
	w.says(portName(1), v1.PortBound, "c")
	w.says(portName(2), v1.PortAvailable, "")
	eventually(t, "the annotation again", annotated)
}

// The daemon does not allocate the ports of a node whose label names Raven.
func TestRavenClaims(t *testing.T) {
	w := newWorld(t, aPort(1), aPod("a", "ua"))
	w.begun()
	n := &corev1.Node{}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: thisNode}, n))
	n.Labels = map[string]string{v1.LabelClaimant: v1.ClaimantRaven}
	must(t, w.api.Update(t.Context(), n))
	eventually(t, "not ready", func() bool { return sdn.IsUnavailable(w.Ready(t.Context(), "", "")) })
	if _, err := w.Claim(t.Context(), ask("c", "a", "ua")); !sdn.IsUnavailable(err) || !strings.Contains(err.Error(), v1.LabelClaimant) {
		t.Errorf("error %v", err)
	}
	// What Raven writes stays, and is kept when a daemon takes over.
	p := w.api.port(t, portName(1))
	p.Labels[v1.LabelPortStatus] = string(v1.PortBound)
	must(t, w.api.Update(t.Context(), p))
	p.Status = v1.KuryrPortStatus{PortStatus: v1.PortBound, Pod: &v1.PortPod{Namespace: namespace, Name: "a", UID: "ua", Interface: "eth0"}}
	must(t, w.api.Status().Update(t.Context(), p))
	must(t, w.api.Create(t.Context(), aPort(2)))
	eventually(t, "both ports are seen", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.index.ports) == 2 })
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: thisNode}, n))
	n.Labels = nil
	must(t, w.api.Update(t.Context(), n))
	eventually(t, "ready", func() bool { return w.Ready(t.Context(), "", "") == nil })
	eventually(t, "it is taken over", func() bool { _, err := w.Find(t.Context(), ask("any", "a", "")); return err == nil })
	w.says(portName(1), v1.PortBound, "")
	must(t, w.api.Create(t.Context(), aPod("b", "ub")))
	if got := w.adds(ask("cb", "b", "ub")); got.Port.ID != sdn.ID(portName(2)) {
		t.Errorf("another pod has %s", got.Port.ID)
	}
	w.dels(ask("any", "a", "ua"))
	w.says(portName(1), v1.PortAvailable, "")
}

// Who waits for a port when Raven is to claim waits no longer, and what was taken and not yet answered is let go without a word: the port may be another pod's.
func TestRavenClaimsMeanwhile(t *testing.T) {
	w := newWorld(t, aPod("a", "ua"), aPod("b", "ub"))
	kernel := &led{owners: map[string][]hostport.Mapping{}}
	w.host = kernel
	w.restart()
	w.begun()
	label := func(labels map[string]string, is func(error) bool) {
		n := &corev1.Node{}
		must(t, w.api.Get(t.Context(), client.ObjectKey{Name: thisNode}, n))
		n.Labels = labels
		must(t, w.api.Update(t.Context(), n))
		eventually(t, fmt.Sprint("labels ", labels), func() bool { return is(w.Ready(t.Context(), "", "")) })
	}
	ravens := map[string]string{v1.LabelClaimant: v1.ClaimantRaven}
	refused := func(end chan error) {
		t.Helper()
		select {
		case err := <-end:
			if !sdn.IsUnavailable(err) || !strings.Contains(err.Error(), v1.LabelClaimant) {
				t.Errorf("error %v", err)
			}
		case <-time.After(testTimeout):
			t.Fatal("it waits on")
		}
	}
	ends := make(chan error, 2)
	for _, pod := range []string{"a", "b"} {
		go func() { _, err := w.Claim(t.Context(), ask("c"+pod, pod, "u"+pod)); ends <- err }()
	}
	eventually(t, "both wait", func() bool { return w.View().Waiting == 2 })
	label(ravens, sdn.IsUnavailable)
	refused(ends)
	refused(ends)

	label(nil, func(err error) bool { return err == nil })
	must(t, w.api.Create(t.Context(), aPort(1)))
	kernel.during = func() {
		label(ravens, sdn.IsUnavailable)
		p := w.api.port(t, portName(1))
		p.Labels[v1.LabelPortStatus] = string(v1.PortBound)
		must(t, w.api.Update(t.Context(), p))
		p.Status = v1.KuryrPortStatus{PortStatus: v1.PortBound, Pod: &v1.PortPod{Namespace: namespace, Name: "b", UID: "ub", Container: "ravens", Interface: "eth0"}}
		must(t, w.api.Status().Update(t.Context(), p))
	}
	a := ask("ca", "a", "ua")
	a.Want.Published = []agent.Published{{HostPort: 8080, Port: 80, Protocol: sdn.TCP}}
	_, err := w.Claim(t.Context(), a)
	ends <- err
	refused(ends)
	if to := kernel.to(8080); to != "" {
		t.Errorf("left is a way to %q", to)
	}
	w.settled(0)
	eventually(t, "all is written", func() bool { return w.queue.Len() == 0 })
	w.says(portName(1), v1.PortBound, "ravens")
	if has := holder(w, portName(1)); has != "" {
		t.Errorf("%s has the port too", has)
	}
}

// Who keeps the Node's condition hears of the own Node by the Allocator's watch, and of no other.
func TestOwnNode(t *testing.T) {
	w := newWorld(t)
	heard := make(chan string, 9)
	w.own = func(n *corev1.Node) { heard <- n.Name + n.Labels["x"] }
	w.restart()
	w.begun()
	must(t, w.api.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}))
	n := &corev1.Node{}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: thisNode}, n))
	n.Labels = map[string]string{"x": "-changed"}
	must(t, w.api.Update(t.Context(), n))
	for is := ""; is != thisNode+"-changed"; {
		select {
		case is = <-heard:
		case <-time.After(testTimeout):
			t.Fatal("nothing is heard")
		}
		if !strings.HasPrefix(is, thisNode) {
			t.Errorf("heard of %s", is)
		}
	}
}

// A pod that is made again under its name has a port of its own, and the one before keeps its own until its DEL.
func TestSameNameAgain(t *testing.T) {
	w := newWorld(t, aPort(1), aPort(2), aPod("a", "u1"))
	w.begun()
	first := w.adds(ask("c1", "a", "u1"))
	w.api.remove(t, aPod("a", "u1"))
	must(t, w.api.Create(t.Context(), aPod("a", "u2")))
	second := w.adds(ask("c2", "a", "u2"))
	if first.Port.ID == second.Port.ID {
		t.Error("both have one port")
	}
	w.says(string(second.Port.ID), v1.PortBound, "c2")
	eventually(t, "the annotation", func() bool {
		return strings.Contains(w.api.pod(t, "a").Annotations[v1.AnnotationVIF], string(second.Port.ID))
	})
}

// A disk that is full lets nobody claim, and everybody give back.
func TestFullDisk(t *testing.T) {
	w := newWorld(t, aPort(1), aPort(2), aPod("a", "ua"))
	w.begun()
	w.adds(ask("c", "a", "ua"))
	room := fill(w)
	if _, err := w.Claim(t.Context(), ask("x", "a", "ua")); !sdn.IsOfHost(err) {
		t.Fatalf("error %v", err)
	}
	w.dels(ask("x", "a", "ua"))
	w.dels(ask("c", "a", "ua"))
	room()
	w.adds(ask("x", "a", "ua"))
}

// fill takes the room for new rows away. The function it returns gives it back.
func fill(w *world) (room func()) {
	w.full.Store(true)
	return func() { w.full.Store(false) }
}

// Many at once get each one of their own.
func TestAtOnce(t *testing.T) {
	const n = 30
	var objects []client.Object
	for i := range n {
		objects = append(objects, aPort(i), aPod(fmt.Sprint("p", i), fmt.Sprint("u", i)))
	}
	w := newWorld(t, objects...)
	w.api.faults = 20
	w.begun()
	for range 2 {
		var mu sync.Mutex
		has := map[sdn.ID]int{}
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				got := w.adds(ask(fmt.Sprint("c", i), fmt.Sprint("p", i), ""))
				mu.Lock()
				has[got.Port.ID]++
				mu.Unlock()
			})
		}
		all.Wait()
		if len(has) != n {
			t.Errorf("%d ports for %d pods", len(has), n)
		}
		for i := range n {
			w.says(portName(i), v1.PortBound, holder(w, portName(i)))
		}
		for i := range n {
			all.Go(func() { w.dels(ask(fmt.Sprint("c", i), fmt.Sprint("p", i), "")) })
		}
		all.Wait()
		for i := range n {
			w.says(portName(i), v1.PortAvailable, "")
		}
	}
}

// holder is the container that has a port.
func holder(w *world, port string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.index.holders[port]; a != nil {
		return a.Attachment.Container
	}
	return ""
}

// What cannot be plugged is told of by its field, and is nobody's.
func TestBrokenSpec(t *testing.T) {
	for field, spoil := range map[string]func(*v1.KuryrPortSpec){
		"spec.address":                            func(s *v1.KuryrPortSpec) { s.Address = "x" },
		"spec.network.subnets.cidr":               func(s *v1.KuryrPortSpec) { s.Network.Subnets[0].CIDR = "x" },
		"spec.network.subnets.ips":                func(s *v1.KuryrPortSpec) { s.Network.Subnets[0].IPs = []string{"x"} },
		"spec.network.subnets.gateway":            func(s *v1.KuryrPortSpec) { s.Network.Subnets[0].Gateway = "x" },
		"spec.network.subnets.dns":                func(s *v1.KuryrPortSpec) { s.Network.Subnets[0].DNS = []string{"x"} },
		"spec.network.subnets.routes.destination": func(s *v1.KuryrPortSpec) { s.Network.Subnets[0].Routes[0].Destination = "x" },
		"spec.network.subnets.routes.nextHop":     func(s *v1.KuryrPortSpec) { s.Network.Subnets[0].Routes[0].NextHop = "x" },
	} {
		p := dedicated(aPort(1), "ua")
		spoil(&p.Spec)
		x := newIndex(thisNode)
		x.setPort(p)
		x.setPod(aPod("a", "ua"))
		if _, _, _, err := x.choose(ask("c", "a", "ua")); !sdn.IsInvalid(err) || sdn.FieldOf(err) != field {
			t.Errorf("%s: error %v", field, err)
		}
	}
}
