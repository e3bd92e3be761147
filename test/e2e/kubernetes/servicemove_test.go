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

	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// Whoever of Kuryr is killed and comes again, under load: no connection breaks, and no new one fails.
func TestServicesKilled(t *testing.T) {
	t.Parallel()
	b := startServices(t, true, nil)
	of := b.service("loaded", nil)
	ported := b.service("ported", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort })
	for _, to := range append(at(of, 80), b.places(ported.Spec.Ports[0].NodePort)...) {
		b.answers(b.pod, "tcp", to, "a", "b")
	}
	place := b.places(ported.Spec.Ports[0].NodePort)[0]
	all := []load{
		b.loads("keeps", "tcp", at(of, 80)[0], true), b.loads("keeps6", "tcp", at(of, 80)[1], true), b.loads("keeps-port", "tcp", place, true),
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

// A live cluster leaves kube-proxy for Kuryr, and goes back: pods and the node find the API server at its ClusterIP and everybody a Service's pods throughout, connections go on, and of who has gone no rules are
// left.
func TestServicesMove(t *testing.T) {
	t.Parallel()
	b := startServices(t, false, func(ctx context.Context, n *kubelab.Node) error { return n.StartProxy(ctx) })
	of := b.service("moved", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort })
	cluster, place := at(of, 80)[0], b.places(of.Spec.Ports[0].NodePort)[0]
	b.services.kubernetes()
	for _, from := range b.everywhere() {
		b.answers(from, "tcp", cluster, "a", "b")
	}
	b.answers(b.away, "tcp", place, "a", "b")
	own := func(spec *corev1.PodSpec) { spec.HostNetwork = true }
	kept := []load{
		b.loads("keeps", "tcp", cluster, true), b.loads("keeps-port", "tcp", place, true),
		b.loads("node-keeps", "tcp", cluster, true, own), b.loads("node-keeps-port", "tcp", place, true, own),
	}
	watches := []func() error{
		b.watches(b.pod, cluster), b.watches(b.here, cluster), b.watches(b.away, place),
		b.watches(b.pod, apiAddress()), b.watches(b.here, apiAddress()),
	}
	tables := func(has, lacks string) {
		b.Helper()
		b.until(func(ctx context.Context) error {
			all := b.node.Exec(ctx, "nft", "list", "tables").Out()
			if !strings.Contains(all, has) || strings.Contains(all, lacks) {
				return fmt.Errorf("the tables are %q, want %s and not %s", all, has, lacks)
			}
			return nil
		})
	}
	goOn := func(when string) {
		b.Helper()
		for _, l := range kept {
			l.goesOn()
		}
		if b.Failed() {
			b.Fatalf("connections do not outlast that %s", when)
		}
	}

	b.whole.reset(ravenServices...)
	b.until(func(context.Context) error { return b.settled() })
	goOn("Raven serves ClusterIPs")
	b.whole.daemonSettings = daemonServices
	b.must(errors.Join(b.whole.claim.Stop(syscall.SIGTERM, limit), b.whole.startDaemon(b.ctx)))
	b.answers(b.pod, "tcp", cluster, "a", "b")
	tables("kuryr_lb", "nothing")
	goOn("the node serves NodePorts")
	b.must(b.node.StopProxy(syscall.SIGTERM))
	b.must(b.node.CleanProxy(b.ctx))
	tables("kuryr_lb", "kube-proxy")
	b.services.kubernetes()
	b.answers(b.here, "tcp", cluster, "a", "b")
	b.answers(b.away, "tcp", place, "a", "b")
	goOn("kube-proxy has gone")

	b.must(b.node.StartProxy(b.ctx))
	tables("kube-proxy", "nothing")
	b.whole.daemonSettings = nil
	b.must(errors.Join(b.whole.claim.Stop(syscall.SIGTERM, limit), b.whole.startDaemon(b.ctx)))
	tables("kube-proxy", "kuryr_lb")
	goOn("the node's table has gone")
	b.whole.reset(ravenRanges...)
	for _, from := range b.everywhere() {
		b.answers(from, "tcp", cluster, "a", "b")
	}
	b.services.kubernetes()
	b.answers(b.away, "tcp", place, "a", "b")
	for _, ends := range watches {
		if err := ends(); err != nil {
			t.Error(err)
		}
	}
	for _, l := range kept {
		l.ends()
	}
}

// apiAddress is where pods find the API server.
func apiAddress() string {
	return net.JoinHostPort(netip.MustParsePrefix(kubelab.ServiceRange).Addr().Next().String(), "443")
}

// hungUp tells whether who was asked has hung up: a server of TLS takes a line of text for the mistake that it is.
func hungUp(a answer) bool { return a.failed == "EOF" || strings.Contains(a.failed, "reset") }

// watches asks all the time until it is told to end, and then says what failed. The API server's way to answer counts as one.
func (s *services) watches(from speaker, to string) (end func() error) {
	ctx, cancel := context.WithCancel(s.ctx)
	failed := make(chan error, 1)
	go func() {
		n := 0
		for ctx.Err() == nil {
			got, err := s.ask(s.ctx, from, 20, "tcp", to, "-every", "20ms")
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
