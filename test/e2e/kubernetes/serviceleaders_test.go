//go:build e2e

package kubernetes_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// leaders are two Ravens of one Lease, on a cluster whose pods talk: one leads until it
// is killed, and the other stands by, to be killed when it leads.
type leaders struct {
	*balanced
	steps         *steps // what the SDN has of the Service
	leads, stands *privatehost.Service
	holder        string   // of the Lease
	inside        []string // where the Service is reached
	outside       string   // the same from another host; "" is nowhere
}

// reigns are what is done to a Service, where the leader is killed that sees to it, and
// what there is and who answers when the next one has seen to it. That one does not come
// by its own failpoint meanwhile: what it begins with is to have the load balancers of
// both families applied, each once.
var reigns = []struct {
	name    string
	act     func(*leaders)
	killed  string
	want    []string
	answers []string
}{
	{
		"made", (*leaders).make, "raven.balancer.applied",
		[]string{"first: 80", "second: 80", "Service: nowhere"}, []string{"a", "b"},
	},
	{
		"of type LoadBalancer", (*leaders).expose, "raven.float.made",
		[]string{"floating: Raven's > first", "first: 80", "second: 80", "Service: Raven's"},
		[]string{"a", "b"},
	},
	{
		"an endpoint less", (*leaders).spare, "raven.balancer.applied:3",
		[]string{"floating: Raven's > first", "first: 80", "second: 80", "Service: Raven's"},
		[]string{"a"},
	},
	{
		"a port more", (*leaders).more, "raven.service.changed",
		[]string{"floating: Raven's > first", "first: 80 81", "second: 80 81", "Service: Raven's"},
		[]string{"a"},
	},
	{"gone", (*leaders).drop, "raven.balancer.deleted", nil, nil},
}

// Raven's leader is killed in the midst of each change of a Service, and the one that
// stood by ends what it was at: the Service is answered as it says, nothing is there
// twice, and in the end nothing is left.
func TestServicesLeaders(t *testing.T) {
	t.Parallel()
	l := startLeaders(t)
	before := l.steps.things()
	for i, reign := range reigns {
		begin := time.Now()
		reign.act(l)
		l.killed(l.leads, reign.killed)
		l.follows(failpointOf(i + 2))
		l.steps.eventually(reign.name, func() error { return l.steps.has(slices.Clone(reign.want)) })
		l.found(reign.answers)
		t.Logf("%s: after %s", reign.name, time.Since(begin).Round(10*time.Millisecond))
	}
	l.steps.same(before)
}

// failpointOf is where the leader of a reign is killed; that of none after the last is not.
func failpointOf(reign int) string {
	if reign < len(reigns) {
		return reigns[reign].killed
	}
	return ""
}

// startLeaders is such a cluster, with pods that answer and one that asks.
func startLeaders(t *testing.T) *leaders {
	w := &whole{node: &kuryrNode{}, daemonSettings: daemonServices}
	// which would have load balancers applied at any time
	w.settings = append(slices.Clone(ravenServices), "--controller-leader-election=true", "--controller-audit=0")
	opts := talkOptions(w.boot)
	opts.DNS = false
	w.rig = start(t, "Ravens that lead are killed", opts)
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit) // of all reigns
	t.Cleanup(cancel)
	w.ctx = ctx
	w.prepare()
	w.kubernetesUnserved()
	w.grant("default")
	w.must(w.startSDN(w.ctx))
	s := &services{
		rig: w.rig, node: w.Nodes[0], here: onHost("the node", w.Nodes[0].Exec),
		away: onHost("another host", w.Central.Exec),
	}
	l := &leaders{balanced: &balanced{s, w}, steps: &steps{
		ravens: &ravens{rig: w.rig, api: w.api}, asker: w.node.UnixClient("/run/kuryr/sdn.sock"),
	}}
	l.leads = l.raven(failpointOf(0))
	l.holder = w.holder("")
	l.stands = l.raven(failpointOf(1))
	w.must(w.startDaemon(w.ctx))
	w.must(w.WaitReady(w.ctx))
	w.create("default", talker("a", "web"), talker("b", "web"), talker("asks", "asks"))
	w.running("default", "", 3)
	s.pod = s.inPod("asks")
	return l
}

// raven starts one that is killed at a failpoint when it leads.
func (l *leaders) raven(failpoint string) *privatehost.Service {
	l.Helper()
	l.whole.failpoint = failpoint
	l.must(l.whole.startRaven(l.ctx))
	return l.whole.raven
}

// follows has the one that stands by lead at once, as the other has been killed, and
// another stand by. That a Lease runs out by itself TestRavenStandby has.
func (l *leaders) follows(failpoint string) {
	l.Helper()
	_, err := l.Client.CoordinationV1().Leases(system).Patch(
		l.ctx, "kuryr-controller", types.MergePatchType, []byte(`{"spec": {"holderIdentity": ""}}`),
		metav1.PatchOptions{},
	)
	l.must(err)
	l.holder = l.whole.holder(l.holder)
	l.leads, l.stands = l.stands, l.raven(failpoint)
}

// found waits until exactly these answer wherever the Service is or was reached; none is that nobody does.
func (l *leaders) found(want []string) {
	l.Helper()
	if now, err := l.Client.CoreV1().Services("default").Get(
		l.ctx, "web", metav1.GetOptions{},
	); err == nil && len(now.Status.LoadBalancer.Ingress) > 0 {
		address := now.Status.LoadBalancer.Ingress[0].IP
		l.outside = net.JoinHostPort(address, "80")
		l.routed(address + "/32")
	}
	finds := func(from speaker, to string) {
		l.Helper()
		if len(want) == 0 {
			l.silence(from, "tcp", to, "timeout", "refused", "unreachable")
			return
		}
		l.until(func(ctx context.Context) error {
			got, err := l.ask(ctx, from, 20, "tcp", to)
			var who []string
			for _, a := range got {
				who = append(who, cmp.Or(a.who, a.failed))
			}
			slices.Sort(who)
			if who = slices.Compact(who); err == nil && !slices.Equal(who, want) {
				err = fmt.Errorf("%s, at %s: %v answer, want %v", from.name, to, who, want)
			}
			return err
		})
	}
	for _, to := range l.inside {
		for _, from := range l.everywhere() {
			finds(from, to)
		}
	}
	if l.outside != "" {
		finds(l.away, l.outside)
	}
}

func (l *leaders) make() {
	l.Helper()
	of := l.service("web", nil)
	l.inside = at(of, 80)
	l.steps.service, l.steps.second = of, of.Spec.ClusterIPs[1]
}

func (l *leaders) expose() {
	l.Helper()
	l.change("web", func(service *corev1.Service) { service.Spec.Type = corev1.ServiceTypeLoadBalancer })
}

// spare has a pod be no endpoint any more.
func (l *leaders) spare() {
	l.Helper()
	l.label("b", "spare")
}

func (l *leaders) more() {
	l.Helper()
	of := l.change("web", func(service *corev1.Service) {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: "more", Port: 81, TargetPort: intstr.FromInt32(talkTCP),
		})
	})
	l.inside = append(l.inside, at(of, 81)...)
}

func (l *leaders) drop() {
	l.Helper()
	l.must(l.Client.CoreV1().Services("default").Delete(l.ctx, "web", metav1.DeleteOptions{}))
}
