//go:build linux

package claim

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/bind"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/kube/cni/given"
	"github.com/kuryr/kuryr/kube/node"
	"github.com/kuryr/kuryr/sdn"
)

// plugs are the containers' network namespaces by the ports that are plugged there.
type plugs struct {
	mu    sync.Mutex
	there map[sdn.ID]string
}

func (p *plugs) Plug(_ context.Context, i bind.Interface) (bind.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.there[i.Port.ID] = i.Namespace
	return bind.Result{Name: i.Name, MAC: i.Port.MAC}, nil
}

func (p *plugs) Unplug(_ context.Context, port sdn.Port) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.there, port.ID)
	return nil
}

func (p *plugs) State(_ context.Context, port sdn.Port) (bind.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.there[port.ID]; there {
		return bind.Whole, nil
	}
	return bind.Absent, nil
}

// served is a node's daemon whole, but for the kernel.
type served struct {
	*world
	*plugs
	server *node.Server
	given  *given.Folder
	netns  string
}

func serve(t *testing.T, w *world) *served {
	t.Helper()
	s := &served{world: w, plugs: &plugs{there: map[sdn.ID]string{}}, netns: t.TempDir()}
	state := t.TempDir()
	s.given = given.In(state, s.plugs)
	s.server = node.New(node.Config{Source: w.Claimant, Binder: s.plugs, State: state, Logger: slog.New(slog.DiscardHandler)})
	return s
}

// namespace is a container's; GC is of none.
func (s *served) namespace(container string) string {
	s.t.Helper()
	if container == "" {
		return ""
	}
	path := filepath.Join(s.netns, container)
	must(s.t, os.WriteFile(path, nil, 0o600))
	return path
}

func (s *served) do(verb, container, pod, uid, more string) error {
	s.t.Helper()
	_, err := s.server.Do(s.t.Context(), cni.Call{
		Verb: verb, Container: container, Interface: "eth0", Namespace: s.namespace(container),
		Args:   fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s", namespace, pod, container, uid),
		Config: fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "kuryr", "type": "kuryr"%s}`, more),
	})
	return err
}

// plugged wants these containers, and no others, to have an interface.
func (s *served) plugged(containers ...string) {
	s.t.Helper()
	s.plugs.mu.Lock()
	defer s.plugs.mu.Unlock()
	is := map[string]bool{}
	for _, ns := range s.there {
		is[filepath.Base(ns)] = true
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
	must(t, s.do(cni.Del, "ca", "a", "ua", ""))
	for range 2 {
		must(t, s.do(cni.Add, "ca", "a", "ua", ""))
		must(t, s.do(cni.Add, "cb", "b", "ub", ""))
	}
	s.plugged("ca", "cb")
	must(t, s.do(cni.Del, "ca", "a", "another", ""))
	s.plugged("ca", "cb")
	if err := s.do(cni.Add, "ca", "a", "another", ""); err == nil || !strings.Contains(err.Error(), "K8S_POD_UID") {
		t.Errorf("the container of one pod is added for another: %v", err)
	}
	must(t, s.do(cni.GC, "", "", "", `, "cni.dev/valid-attachments": [{"containerID": "cb", "ifname": "eth0"}]`))
	s.plugged("cb")
	must(t, s.do(cni.GC, "", "", "", `, "cni.dev/valid-attachments": []`))
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
		_, err := s.given.BindPort(t.Context(), given.Bound{Container: container, Interface: "eth0", Namespace: s.namespace(container), Network: "kuryr", Port: port})
		must(t, err)
	}
	s.begun()
	must(t, s.do(cni.Add, "ca2", "a", "ua", "")) // before the DEL of the sandbox that it replaces
	s.plugged("ca2", "cb")
	must(t, s.do(cni.Del, "ca", "a", "ua", ""))
	s.plugged("ca2", "cb")
	s.says(portName(0), v1.PortBound, "ca2")
	must(t, s.do(cni.Del, "cb", "b", "ub", ""))
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
	w.boot = "5c4b7a1e-0000-4000-8000-000000000002"
	w.start()
	w.begun()
	killed := w.adds(ask("killed", "b", "ub")) // nothing is plugged
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
	must(t, s.do(cni.Add, "after", "a", "ua", ""))
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
	_, err := s.given.BindPort(t.Context(), given.Bound{Container: "ca", Interface: "eth0", Namespace: s.namespace("ca"), Network: "kuryr", Port: port})
	must(t, err)
	s.begun()
	must(t, s.do(cni.GC, "", "", "", `, "cni.dev/valid-attachments": [{"containerID": "ca", "ifname": "eth0"}]`))
	s.plugged("ca")
	must(t, s.do(cni.GC, "", "", "", `, "cni.dev/valid-attachments": []`))
	s.plugged()
	s.says(portName(1), v1.PortAvailable, "")
}
