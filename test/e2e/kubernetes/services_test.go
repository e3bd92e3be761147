//go:build e2e

package kubernetes_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// nodeServices is the value by which the manifests let nodes' daemons look at Services.
// Those of these tests get their settings by hand.
const nodeServices = "node.config.node.services=true"

// talkImage has test/e2e/talk, which every pod of these tests runs.
const talkImage = "registry.k8s.io/talk:kuryr-test"

// The ports that pods talk at.
const (
	talkTCP  = 8080
	talkUDP  = 8081
	talkSCTP = 8082
)

// services is a cluster whose Services answer, whoever sees to that, and what every row of these tests asks from.
type services struct {
	*rig
	node *kubelab.Node
	pod  speaker // a pod that is no endpoint
	here speaker // the node
	away speaker // another host, that has no part in the cluster's network
}

// speaker is a place where talk runs.
type speaker struct {
	name string
	run  func(ctx context.Context, argv ...string) (string, error)
}

func talkPath() string { return filepath.Join(filepath.Dir(kuryr), "talk") }

// talkOptions are those of a cluster for these tests.
func talkOptions(booted func(context.Context, *kubelab.Node) error) kubelab.Options {
	return kubelab.Options{
		Nodes: 1, Families: kubelab.DualStack, DNS: true, Booted: booted,
		Images: []kubelab.Image{{
			Name: talkImage, Programs: map[string]string{"/bin/talk": talkPath()},
			Command: []string{"/bin/talk"},
		}},
	}
}

// newServices makes the pods that several rows ask, when the cluster's nodes are ready and who sees to Services runs.
func newServices(r *rig) *services {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.T.Context(), 3*limit) // of all rows
	r.Cleanup(cancel)
	r.ctx = ctx
	s := &services{rig: r, node: r.Nodes[0]}
	s.here, s.away = onHost("the node", s.node.Exec), onHost("another host", r.Central.Exec)
	s.grant("default")
	s.must(s.DeployDNS(s.ctx))
	silent := talker("silent", "silent")
	silent.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		PeriodSeconds: 1,
		ProbeHandler: corev1.ProbeHandler{
			TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)},
		},
	}
	other := talker("c", "web-other")
	other.Spec.Containers[0].Command = []string{"talk", "serve", "-tcp", "9090"}
	other.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "talk", ContainerPort: 9090}}
	ask := talker("asks", "asks")
	s.create("default", talker("a", "web"), talker("b", "web"), other, silent, ask)
	s.running("default", "app in (web, web-other, asks)", 4)
	s.pod = s.inPod("asks")
	return s
}

// talker is a pod that answers at talkTCP, talkUDP and talkSCTP.
func talker(name, app string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"app": app, "web": "any"},
		},
		Spec: talkerSpec("1s"),
	}
}

// talkerSpec serves so long after it was asked to end.
func talkerSpec(linger string) corev1.PodSpec {
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(20)), AutomountServiceAccountToken: new(false),
		EnableServiceLinks: new(false),
		Containers: []corev1.Container{{
			Name: "talk", Image: talkImage, ImagePullPolicy: corev1.PullNever,
			Command: []string{
				"talk", "serve", "-tcp", strconv.Itoa(talkTCP), "-udp", strconv.Itoa(talkUDP),
				"-sctp", strconv.Itoa(talkSCTP), "-linger", linger,
			},
			Ports: []corev1.ContainerPort{{Name: "talk", ContainerPort: talkTCP}, {
				Name: "chat", ContainerPort: talkUDP, Protocol: corev1.ProtocolUDP,
			}},
		}},
	}
}

func onHost[R interface {
	Err() error
	Out() string
}](name string, exec func(context.Context, ...string) R) speaker {
	return speaker{name, func(ctx context.Context, argv ...string) (string, error) {
		said := exec(ctx, append([]string{talkPath()}, argv...)...)
		return said.Out(), said.Err()
	}}
}

func (s *services) inPod(name string) speaker {
	return speaker{"the pod " + name, func(ctx context.Context, argv ...string) (string, error) {
		return s.Exec(ctx, "default", name, append([]string{"talk"}, argv...)...)
	}}
}

// everywhere is a pod and its node.
func (s *services) everywhere() []speaker { return []speaker{s.pod, s.here} }

// row runs one of the tests that share the cluster.
func (s *services) row(name string, test func(*services)) {
	s.Run(name, func(t *testing.T) {
		of, rig := *s, *s.rig
		rig.T, of.rig = t, &rig
		test(&of)
	})
}

// service makes one of TCP at port 80 that leads to the pods of app web, unless edit says
// otherwise, and deletes it with the row.
func (s *services) service(name string, edit func(*corev1.ServiceSpec)) *corev1.Service {
	s.Helper()
	return s.annotated(name, nil, edit)
}

// annotated is service with annotations.
func (s *services) annotated(
	name string, annotations map[string]string, edit func(*corev1.ServiceSpec),
) *corev1.Service {
	s.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Name: name, Annotations: annotations,
	}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
		Ports: []corev1.ServicePort{{Name: "tcp", Port: 80, TargetPort: intstr.FromInt32(talkTCP)}},
	}}
	if edit != nil {
		edit(&service.Spec)
	}
	made, err := s.Client.CoreV1().Services("default").Create(s.ctx, service, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		_ = s.Client.CoreV1().Services("default").Delete(context.WithoutCancel(s.ctx), name, metav1.DeleteOptions{})
	})
	return made
}

// change has a Service be otherwise.
func (s *services) change(name string, edit func(*corev1.Service)) *corev1.Service {
	s.Helper()
	var now *corev1.Service
	s.until(func(ctx context.Context) error { // status may be written meanwhile
		is, err := s.Client.CoreV1().Services("default").Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			edit(is)
			now, err = s.Client.CoreV1().Services("default").Update(ctx, is, metav1.UpdateOptions{})
		}
		return err
	})
	return now
}

// label has a pod be of another app.
func (s *services) label(pod, app string) {
	s.Helper()
	_, err := s.Client.CoreV1().Pods("default").Patch(
		s.ctx, pod, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata": {"labels": {"app": %q}}}`, app), metav1.PatchOptions{},
	)
	s.must(err)
}

// answer is one of talk's results.
type answer struct {
	who    string     // answers; "" is nobody
	client netip.Addr // as he saw it
	failed string     // why, in one word
}

// ask asks count times, each by a connection of its own unless more says otherwise.
func (s *services) ask(
	ctx context.Context, from speaker, count int, network, at string, more ...string,
) ([]answer, error) {
	argv := append([]string{"ask", "-n", strconv.Itoa(count), "-timeout", "1s"}, more...)
	said, err := from.run(ctx, append(argv, network, at)...)
	if err != nil {
		return nil, err
	}
	var all []answer
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		if why, is := strings.CutPrefix(line, "error "); is {
			all = append(all, answer{failed: why})
			continue
		}
		who, client, _ := strings.Cut(line, " ")
		address, err := netip.ParseAddrPort(client)
		if err != nil {
			return nil, fmt.Errorf("talk says %q: %w", line, err)
		}
		all = append(all, answer{who: who, client: address.Addr().Unmap()})
	}
	return all, nil
}

// answers waits until those asked at an address are exactly want, each of them, and
// nobody was not answered; it returns the last answers.
func (s *services) answers(from speaker, network, at string, want ...string) (last []answer) {
	s.Helper()
	s.until(func(ctx context.Context) (err error) {
		// That one of two endpoints is not asked among so many has the chance of one to half a million.
		if last, err = s.ask(ctx, from, 1+19*min(1, len(want)-1), network, at); err != nil {
			return err
		}
		found := map[string]bool{}
		for _, a := range last {
			found[cmp.Or(a.who, a.failed)] = true
		}
		if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			return fmt.Errorf("%s, at %s %s: %v answer, want %v", from.name, network, at, got, want)
		}
		return nil
	})
	return last
}

// silence waits until nobody answers at an address, in one of the ways given by talk's words.
func (s *services) silence(from speaker, network, at string, ways ...string) {
	s.Helper()
	s.until(func(ctx context.Context) error {
		got, err := s.ask(ctx, from, 1, network, at)
		if err == nil && !slices.Contains(ways, got[0].failed) {
			err = fmt.Errorf("%s, at %s %s: %+v, want %v", from.name, network, at, got[0], ways)
		}
		return err
	})
}

// warned waits until an Event tells the owner of a Service something.
func (s *services) warned(name, words string) {
	s.Helper()
	s.until(func(ctx context.Context) error {
		events, err := s.Client.EventsV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Name == name && strings.Contains(e.Note, words) {
				return nil
			}
		}
		return fmt.Errorf("of %d Events none tells %s of %q", len(events.Items), name, words)
	})
}

// at are a Service's addresses with a port.
func at(service *corev1.Service, port int) (all []string) {
	for _, ip := range service.Spec.ClusterIPs {
		all = append(all, net.JoinHostPort(ip, strconv.Itoa(port)))
	}
	return all
}

// looks waits until a name has these addresses in the cluster's DNS.
func (s *services) looks(name string, want ...string) {
	s.Helper()
	slices.Sort(want)
	s.until(func(ctx context.Context) error {
		said, err := s.pod.run(ctx, "look", name)
		if err == nil && !slices.Equal(strings.Fields(said), want) {
			err = fmt.Errorf("%s is %q, want %v", name, said, want)
		}
		return err
	})
}

// The rows with kube-proxy and the reference plugins: they say that what the tests ask for is what Services are.
func TestReferenceServices(t *testing.T) {
	t.Parallel()
	const reason = "kube-proxy and the reference plugins run in Kuryr's place"
	r := start(t, reason, talkOptions(func(ctx context.Context, n *kubelab.Node) error {
		if err := kubelab.ReferenceNetwork(ctx, n); err != nil {
			return err
		}
		return n.StartProxy(ctx)
	}))
	r.must(r.WaitReady(r.ctx))
	begin := time.Now()
	s := newServices(r)
	t.Logf("the pods are ready after %s", time.Since(begin).Round(10*time.Millisecond))
	s.inside()
	s.outside()
	s.changing()
	s.row("UDPTerminating", (*services).udpTerminating)
}
