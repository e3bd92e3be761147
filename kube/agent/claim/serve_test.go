//go:build linux

package claim

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/kube/agent"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/kube/cni/static"
	"github.com/kuryr/kuryr/sdn"
)

// served is a node's daemon as a container runtime sees it.
type served struct {
	*world
	static *static.Bindings
}

func serve(t *testing.T, w *world) *served {
	t.Helper()
	return &served{world: w, static: static.In(filepath.Join(w.dir, "cni"), w.plugs)}
}

func (s *served) do(verb, container, pod, uid string, more map[string]any) error {
	s.t.Helper()
	a := agent.Attachment{Container: container, Interface: "eth0", Namespace: "/run/netns/" + container, Pod: &agent.Pod{Namespace: namespace, Name: pod, UID: uid}}
	if verb == cni.GC {
		a = agent.Attachment{}
	}
	return s.call(s.t.Context(), verb, a, more)
}

// collects is a GC whose list has these containers.
func (s *served) collects(containers ...string) {
	s.t.Helper()
	valid := []any{}
	for _, c := range containers {
		valid = append(valid, map[string]any{"containerID": c, "ifname": "eth0"})
	}
	must(s.t, s.do(cni.GC, "", "", "", map[string]any{"cni.dev/valid-attachments": valid}))
}

// plugged wants these containers, and no others, to have an interface.
func (s *served) plugged(containers ...string) {
	s.t.Helper()
	s.plugs.mu.Lock()
	defer s.plugs.mu.Unlock()
	is := map[string]bool{}
	for _, i := range s.plugs.there {
		is[strings.TrimPrefix(filepath.Base(i.Namespace), "netns-")] = true
	}
	same := len(is) == len(containers)
	for _, c := range containers {
		same = same && is[c]
	}
	if !same {
		s.t.Errorf("plugged are %v, want %v", is, containers)
	}
}

// A DEL before its ADD, one for another pod's UID, and a second ADD change nothing; a GC with an empty list takes all.
func TestOutOfOrder(t *testing.T) {
	s := serve(t, newWorld(t, aPort(1), aPort(2), aPod("a", "ua"), aPod("b", "ub")))
	s.begun()
	must(t, s.do(cni.Del, "ca", "a", "ua", nil))
	for range 2 {
		must(t, s.do(cni.Add, "ca", "a", "ua", nil))
		must(t, s.do(cni.Add, "cb", "b", "ub", nil))
	}
	s.plugged("ca", "cb")
	must(t, s.do(cni.Del, "ca", "a", "another", nil))
	s.plugged("ca", "cb")
	if err := s.do(cni.Add, "ca", "a", "another", nil); err == nil || !strings.Contains(err.Error(), "K8S_POD_UID") {
		t.Errorf("the container of one pod is added for another: %v", err)
	}
	s.collects("cb")
	s.plugged("cb")
	s.collects()
	s.plugged()
	for n := 1; n <= 2; n++ {
		s.says(portName(n), v1.PortAvailable, "")
	}
}

// A daemon that comes to a node where Raven has claimed: what was bound without it goes by its DEL and the port with it, and the DEL of a sandbox whose port the next one has takes nothing from that.
func TestHandOver(t *testing.T) {
	w := newWorld(t, aPod("a", "ua"), aPod("b", "ub"))
	for n, pod := range []string{"a", "b"} {
		p := aPort(n)
		p.Labels[v1.LabelPortStatus] = string(v1.PortBound)
		p.Status = v1.KuryrPortStatus{PortStatus: v1.PortBound, Pod: &v1.PortPod{Namespace: namespace, Name: pod, UID: types.UID("u" + pod), Interface: "eth0"}}
		must(t, w.api.Create(t.Context(), p))
	}
	w.restart()
	s := serve(t, w)
	for n, container := range []string{"ca", "cb"} {
		port := sdn.Port{Meta: sdn.Meta{ID: sdn.ID(portName(n))}, MAC: []byte{2, 0, 0, 0, 0, byte(n)}}
		_, err := s.static.BindPort(t.Context(), static.Binding{Container: container, Interface: "eth0", Namespace: "/run/netns/" + container, Network: "kuryr", Port: port})
		must(t, err)
	}
	s.begun()
	must(t, s.do(cni.Add, "ca2", "a", "ua", nil)) // before the DEL of the sandbox that it replaces
	s.plugged("ca2", "cb")
	must(t, s.do(cni.Del, "ca", "a", "ua", nil))
	s.plugged("ca2", "cb")
	s.says(portName(0), v1.PortBound, "ca2")
	must(t, s.do(cni.Del, "cb", "b", "ub", nil))
	s.plugged("ca2")
	s.says(portName(1), v1.PortAvailable, "")
}

// A daemon that is started again after a reboot, before the pods have their new sandboxes, keeps their ports for them; what an ADD has left that was killed goes.
func TestStartedTwiceAfterReboot(t *testing.T) {
	w := newWorld(t, aPort(1), aPort(2), aPod("a", "ua"), aPod("b", "ub"))
	w.begun()
	got := w.adds(ask("before", "a", "ua"))
	w.says(string(got.Port.ID), v1.PortBound, "before")
	w.kill()
	reboot(w)
	w.start()
	w.begun()
	killed := w.adds(ask("killed", "b", "ub"))
	clear(w.plugs.there) // as if it had not been plugged yet
	w.restart()
	w.begun()
	s := serve(t, w)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan error, 1)
	go func() { end <- s.server.Serve(ctx, l) }()
	s.says(string(killed.Port.ID), v1.PortAvailable, "")
	cancel()
	must(t, <-end)
	must(t, s.do(cni.Add, "after", "a", "ua", nil))
	s.plugged("after")
	s.says(string(got.Port.ID), v1.PortBound, "after")
}

// A pod whose sandbox died while no daemon ran has its port in the next one, and the daemon knows it by the first: a GC leaves it alone.
func TestBoundMeanwhile(t *testing.T) {
	p := aPort(1)
	p.Labels[v1.LabelPortStatus] = string(v1.PortBound)
	p.Status = v1.KuryrPortStatus{PortStatus: v1.PortBound, Pod: &v1.PortPod{Namespace: namespace, Name: "a", UID: "ua", Container: "dead", Interface: "eth0"}}
	w := newWorld(t, aPod("a", "ua"))
	must(t, w.api.Create(t.Context(), p))
	w.restart()
	s := serve(t, w)
	port := sdn.Port{Meta: sdn.Meta{ID: sdn.ID(portName(1))}, MAC: []byte{2, 0, 0, 0, 0, 1}}
	_, err := s.static.BindPort(t.Context(), static.Binding{Container: "ca", Interface: "eth0", Namespace: "/run/netns/ca", Network: "kuryr", Port: port})
	must(t, err)
	s.begun()
	s.collects("ca")
	s.plugged("ca")
	s.collects()
	s.plugged()
	s.says(portName(1), v1.PortAvailable, "")
}
