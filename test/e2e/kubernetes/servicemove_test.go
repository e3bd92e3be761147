//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// Whoever of Kuryr is killed and comes again, under load: no connection breaks, and no new one fails.
func TestServicesKilled(t *testing.T) {
	t.Parallel()
	w := &whole{node: &kuryrNode{}, settings: ravenServices, daemonSettings: daemonServices}
	w.rig = start(t, "Kuryr's processes are killed", talkOptions(w.boot))
	b := newBalanced(w.run())
	of := b.service("loaded", nil)
	ported := b.service("ported", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort })
	for _, to := range append(at(of, 80), b.places(ported.Spec.Ports[0].NodePort)...) {
		b.answers(b.pod, "tcp", to, "a", "b")
	}
	place := b.places(ported.Spec.Ports[0].NodePort)[0]
	all := []load{
		b.loads("keeps", "tcp", at(of, 80)[0], true), b.loads("keeps6", "tcp", at(of, 80)[1], true),
		b.loads("keeps-port", "tcp", place, true),
		b.loads("comes", "tcp", at(of, 80)[0], false), b.loads("comes-port", "tcp", place, false),
	}
	for name, one := range map[string]struct {
		of    func() *privatehost.Service
		start func(context.Context) error
	}{
		"the node's daemon": {func() *privatehost.Service { return b.whole.claim }, b.whole.startDaemon},
		"the SDN":           {func() *privatehost.Service { return b.whole.sdnDaemon }, b.whole.startSDN},
		"Raven":             {func() *privatehost.Service { return b.whole.raven }, b.whole.startRaven},
	} {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			b.must(one.of().Stop(sig, limit))
			for _, l := range all {
				l.goesOn()
			}
			b.must(one.start(b.ctx))
			for _, l := range all {
				l.goesOn()
			}
			if b.Failed() {
				b.Fatalf("at %s of %s", sig, name)
			}
		}
	}
	later := b.service("later", nil)
	b.answers(b.pod, "tcp", at(later, 80)[0], "a", "b")
	for _, l := range all {
		l.ends()
	}
}

// A live cluster leaves kube-proxy for Kuryr, and goes back, and leaves another mode of
// it: the node finds the API server at its ClusterIP and everybody a Service's pods
// throughout, pods while ClusterIPs are the SDN's; connections go on, and of who has gone
// no rules are left.
func TestServicesMove(t *testing.T) {
	t.Parallel()
	w := &whole{node: &kuryrNode{}, settings: ravenRanges}
	w.rig = start(t, "Services move from kube-proxy to Kuryr and back", talkOptions(func(
		ctx context.Context, n *kubelab.Node,
	) error {
		return errors.Join(n.StartProxy(ctx), w.boot(ctx, n))
	}))
	b := newBalanced(w.run())
	of := b.service("moved", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort })
	cluster, place := at(of, 80)[0], b.places(of.Spec.Ports[0].NodePort)[0]
	m := &move{balanced: b, cluster: cluster, place: place}
	m.works(b.here)
	own := func(spec *corev1.PodSpec) { spec.HostNetwork = true }
	m.kept = []load{
		b.loads("keeps-port", "tcp", place, true), b.loads("node-keeps", "tcp", cluster, true, own),
		b.loads("node-keeps-port", "tcp", place, true, own),
	}
	both := func() {
		m.watched(b.here, m.toKuryr)
		m.kept = append(m.kept, b.loads("keeps", "tcp", cluster, true))
		m.watched(b.here, m.back)
	}
	m.watchedOutside(both)
	for _, l := range m.kept {
		l.ends()
	}
	m.kept = nil
	// which is without either of its modes for a moment
	b.must(errors.Join(b.node.StopProxy(syscall.SIGTERM), b.node.StartProxyIn(b.ctx, "iptables")))
	m.chains(true)
	m.works(b.here)
	m.watchedOutside(func() { m.watched(b.here, m.toKuryr) })
}

// move is a cluster on its way between kube-proxy and Kuryr, as docs/services.md has it.
type move struct {
	*balanced
	cluster, place string // where a Service answers inside and outside
	kept           []load // by connections that are to outlast all steps
}

// works waits until these find the Service at its ClusterIP, and another host at its NodePort.
func (m *move) works(from ...speaker) {
	m.Helper()
	for _, one := range from {
		m.answers(one, "tcp", m.cluster, "a", "b")
	}
	m.answers(m.away, "tcp", m.place, "a", "b")
}

// watched has somebody find the Service and the API server at their ClusterIPs all the time while something is done.
func (m *move) watched(from speaker, do func()) {
	m.Helper()
	service, server := m.watches(from, m.cluster), m.watches(from, apiAddress())
	do()
	for _, ends := range []func() error{service, server} {
		if err := ends(); err != nil {
			m.Error(err)
		}
	}
}

// watchedOutside has another host find the Service all the time.
func (m *move) watchedOutside(do func()) {
	m.Helper()
	ends := m.watches(m.away, m.place)
	do()
	if err := ends(); err != nil {
		m.Error(err)
	}
}

// toKuryr has Raven serve ClusterIPs, then the node's daemon what is the node's; then kube-proxy goes.
func (m *move) toKuryr() {
	m.Helper()
	m.whole.reset("--controller-services=true")
	m.until(func(ctx context.Context) error { return errors.Join(m.whole.settled(), m.served(ctx)) })
	m.services.kubernetes()
	m.works(m.everywhere()...)
	m.goesOn("when Raven serves ClusterIPs")
	m.watched(m.pod, func() {
		m.whole.resetDaemon(daemonServices...)
		m.tables("kuryr_lb", "nothing")
		m.works(m.everywhere()...)
		m.goesOn("when the node serves NodePorts")
		m.must(m.node.StopProxy(syscall.SIGTERM))
		m.must(m.node.CleanProxy(m.ctx))
		m.tables("kuryr_lb", "kube-proxy")
		m.chains(false)
		m.works(m.everywhere()...)
		m.goesOn("when kube-proxy has gone")
	})
}

// back installs kube-proxy, and then has the node and Raven leave Services to it.
func (m *move) back() {
	m.Helper()
	m.watched(m.pod, func() {
		m.must(m.node.StartProxy(m.ctx))
		m.tables("kube-proxy", "nothing")
		m.whole.resetDaemon()
		m.tables("kube-proxy", "kuryr_lb")
		m.goesOn("when the node's table has gone")
	})
	m.whole.reset()
	m.until(func(context.Context) error {
		var all kuryrv1.KuryrLoadBalancerList
		err := m.whole.api.List(m.ctx, &all)
		if err == nil && len(all.Items) > 0 {
			err = fmt.Errorf("%d load balancers are left", len(all.Items))
		}
		return err
	})
	m.works(m.here)
	m.goesOn("when Raven has left Services")
}

// served complains of a load balancer that is not ready.
func (m *move) served(ctx context.Context) error {
	var all kuryrv1.KuryrLoadBalancerList
	if err := m.whole.api.List(ctx, &all); err != nil {
		return err
	}
	for _, lb := range all.Items {
		if !meta.IsStatusConditionTrue(lb.Status.Conditions, kuryrv1.ConditionReady) {
			return fmt.Errorf("%s/%s is not ready: %+v", lb.Namespace, lb.Name, lb.Status.Conditions)
		}
	}
	return nil
}

// tables waits until the node has one table of nftables, and not another.
func (m *move) tables(has, lacks string) {
	m.Helper()
	m.until(func(ctx context.Context) error {
		all := m.node.Exec(ctx, "nft", "list", "tables").Out()
		if !strings.Contains(all, has) || strings.Contains(all, lacks) {
			return fmt.Errorf("the tables are %q, want %s and not %s", all, has, lacks)
		}
		return nil
	})
}

// chains waits until the node has, or has not, chains of iptables by which kube-proxy serves Services.
func (m *move) chains(want bool) {
	m.Helper()
	m.until(func(ctx context.Context) error {
		for _, save := range []string{"iptables-save", "ip6tables-save"} {
			if all := m.node.Exec(ctx, save).Out(); strings.Contains(all, ":KUBE-SERVICES") != want {
				return fmt.Errorf("%s: want chains of kube-proxy %v, there is %s", save, want, all)
			}
		}
		return nil
	})
}

func (m *move) goesOn(when string) {
	m.Helper()
	before := m.Failed()
	for _, l := range m.kept {
		l.goesOn()
	}
	if m.Failed() && !before {
		m.Fatalf("connections break %s", when)
	}
}

// apiAddress is where pods find the API server.
func apiAddress() string {
	return net.JoinHostPort(netip.MustParsePrefix(kubelab.ServiceRange).Addr().Next().String(), "443")
}

// hungUp tells whether who was asked has hung up: a server of TLS takes a line of text for the mistake that it is.
func hungUp(a answer) bool { return a.failed == "EOF" || strings.Contains(a.failed, "reset") }

// watches asks all the time until it is told to end, and then says what failed. The API
// server's way to answer counts as one.
func (s *services) watches(from speaker, to string) (end func() error) {
	ctx, cancel := context.WithCancel(s.ctx)
	failed := make(chan error, 1)
	go func() {
		n := 0
		for ctx.Err() == nil {
			got, err := s.ask(s.ctx, from, 20, "tcp", to, "-every", "20ms", "-timeout", "5s")
			if err != nil {
				failed <- err
				return
			}
			for _, a := range got {
				if n++; a.failed != "" && (to != apiAddress() || !hungUp(a)) {
					failed <- fmt.Errorf("%s, at %s: question %d: %s", from.name, to, n, a.failed)
					return
				}
			}
		}
		failed <- nil
	}()
	return func() error {
		cancel()
		return <-failed
	}
}
