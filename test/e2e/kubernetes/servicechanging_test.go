//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// changing are the rows of Services and endpoints that come and go under who uses them.
func (s *services) changing() {
	s.row("RollingUpdate", (*services).rollingUpdate) // its pods end while the next rows run
	s.row("UDPConversation", (*services).udpConversation)
	s.row("Terminating", (*services).terminating)
	s.row("SameName", (*services).sameName)
}

// A client of UDP that asks from one port all the time has another endpoint when its own
// has gone: nothing remembers that one.
func (s *services) udpConversation() {
	labels := map[string]string{"app": "chat"}
	of := s.service("chat", func(spec *corev1.ServiceSpec) {
		spec.Selector = labels
		spec.Ports = []corev1.ServicePort{{
			Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80,
			TargetPort: intstr.FromInt32(talkUDP),
		}}
	})
	to := at(of, 80)[0]
	from := func(who, want string) {
		s.Helper()
		s.until(func(ctx context.Context) error {
			got, err := s.ask(ctx, s.pod, 1, "udp", to, "-from", "7777")
			if err == nil && got[0].who != want {
				err = fmt.Errorf("%s: %+v answers, want %s", who, got[0], want)
			}
			return err
		})
	}
	from("before there is an endpoint", "")
	s.create("default", talker("first", "chat"))
	s.running("default", "app=chat", 1)
	from("one endpoint", "first")
	s.create("default", talker("second", "chat"))
	s.running("default", "app=chat", 2)
	s.must(s.Client.CoreV1().Pods("default").Delete(
		s.ctx, "first", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))},
	))
	from("the endpoint has gone", "second")
	s.must(s.Client.CoreV1().Pods("default").Delete(
		s.ctx, "second", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))},
	))
}

// The last endpoint serves on while it ends, and who has a connection keeps it.
func (s *services) terminating() {
	pod := talker("leaving", "leaving")
	pod.Spec = talkerSpec("10s") // longer than a loaded machine takes for the questions
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		PeriodSeconds: 1,
		ProbeHandler: corev1.ProbeHandler{
			TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(talkTCP)},
		},
	}
	s.create("default", pod)
	of := s.service("leaving", func(spec *corev1.ServiceSpec) { spec.Selector = map[string]string{"app": "leaving"} })
	to := at(of, 80)[0]
	s.running("default", "app=leaving", 1)
	s.answers(s.pod, "tcp", to, "leaving")
	s.must(s.Client.CoreV1().Pods("default").Delete(s.ctx, "leaving", metav1.DeleteOptions{}))
	got, err := s.ask(s.ctx, s.pod, 12, "tcp", to, "-every", "250ms", "-timeout", "5s")
	s.must(err)
	for i, a := range got {
		if a.who != "leaving" {
			s.Errorf("question %d to an endpoint that ends: %+v", i, a)
		}
	}
	s.silence(s.pod, "tcp", to, "refused")
}

// saysReady is a probe of what the pod says by "talk ready".
func saysReady() *corev1.Probe {
	return &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"talk", "ready"}},
	}}
}

// A conversation of UDP goes on with an endpoint that ends for as long as that is ready
// to serve, though there is another one, at the ClusterIP as at a NodePort, and then with
// the other one. Who begins one meanwhile has the other one at once.
func (s *services) udpTerminating() {
	ending := talker("parting", "parting")
	ending.Spec = talkerSpec("18s")
	ending.Spec.Containers[0].ReadinessProbe = saysReady()
	s.create("default", ending)
	of := s.service("parting", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.Selector = corev1.ServiceTypeNodePort, map[string]string{"app": "parting"}
		spec.Ports = []corev1.ServicePort{{
			Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80,
			TargetPort: intstr.FromInt32(talkUDP),
		}}
	})
	s.running("default", "app=parting", 1)
	all := []struct {
		speaker
		to string
	}{{s.pod, at(of, 80)[0]}, {s.pod, at(of, 80)[1]}, {s.away, s.places(of.Spec.Ports[0].NodePort)[0]}}
	goesOn := func(i int, want string, more ...string) {
		s.Helper()
		got, err := s.ask(s.ctx, all[i].speaker, 4, "udp", all[i].to, append(more, "-from", "7778")...)
		s.must(err)
		for _, a := range got {
			if a.who != want {
				s.Errorf("%s, at %s: the conversation goes to %+v, want %s", all[i].name, all[i].to, a, want)
			}
		}
	}
	for i, of := range all {
		s.answers(of.speaker, "udp", of.to, "parting")
		goesOn(i, "parting", "-every", "1s") // one of some seconds connection tracking keeps for two minutes
	}
	s.create("default", talker("staying", "parting"))
	s.running("default", "app=parting", 2)
	s.must(s.Client.CoreV1().Pods("default").Delete(s.ctx, "parting", metav1.DeleteOptions{}))
	becomes := func(i int, want string, count int, more ...string) {
		s.Helper()
		s.until(func(ctx context.Context) error {
			got, err := s.ask(ctx, all[i].speaker, count, "udp", all[i].to, more...)
			for _, a := range got {
				if err == nil && a.who != want {
					err = fmt.Errorf("%s, at %s: %+v answers, want %s", all[i].name, all[i].to, a, want)
				}
			}
			return err
		})
	}
	for i := range all {
		becomes(i, "staying", 10)
		goesOn(i, "parting")
	}
	_, err := s.inPod("parting").run(s.ctx, "ready", "off")
	s.must(err)
	for i := range all {
		becomes(i, "staying", 1, "-from", "7778")
	}
	for _, name := range []string{"parting", "staying"} {
		s.must(client.IgnoreNotFound(s.Client.CoreV1().Pods("default").Delete(
			s.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))},
		)))
	}
}

// A Service deleted and made again at once under its name has another address, which answers, and the old one does not.
func (s *services) sameName() {
	before := s.service("again", nil)
	s.answers(s.pod, "tcp", at(before, 80)[0], "a", "b")
	for range 3 {
		s.must(s.Client.CoreV1().Services("default").Delete(s.ctx, "again", metav1.DeleteOptions{}))
		now := s.service("again", nil)
		if now.Spec.ClusterIP == before.Spec.ClusterIP {
			s.Logf("the address is %s again", now.Spec.ClusterIP)
		}
		for _, to := range at(now, 80) {
			s.answers(s.pod, "tcp", to, "a", "b")
		}
		if now.Spec.ClusterIP != before.Spec.ClusterIP {
			if got, err := s.ask(s.ctx, s.pod, 1, "tcp", at(before, 80)[0]); err != nil || got[0].who != "" {
				s.Errorf("at the address that was: %+v, %v", got, err)
			}
		}
		before = now
	}
}

// load is a pod that asks all the time.
type load struct {
	s    *services
	name string
}

// loads starts one; keep has it ask by one connection, or from one port.
func (s *services) loads(name, network, to string, keep bool, edits ...func(*corev1.PodSpec)) load {
	s.Helper()
	p := talker(name, name)
	p.Labels = map[string]string{"app": name}
	p.Spec.Containers[0].Ports = nil
	p.Spec.Containers[0].Command = []string{
		"talk", "ask", "-n", "0", "-every", "10ms", "-timeout", "5s",
		"-keep=" + strconv.FormatBool(keep), network, to,
	}
	for _, edit := range edits {
		edit(&p.Spec)
	}
	s.create("default", p)
	s.running("default", "app="+name, 1)
	return load{s, name}
}

// total is how many questions were answered so far; the first that was not is an error.
func (l load) total(ctx context.Context) (int, error) {
	said, err := l.s.PodLog(ctx, "default", l.name)
	if err != nil {
		return 0, err
	}
	good := 0
	var failed []string
	for line := range strings.Lines(said) {
		if n, is := strings.CutPrefix(strings.TrimSpace(line), "good "); is {
			if good, err = strconv.Atoi(n); err != nil {
				return 0, err
			}
		} else {
			failed = append(failed, strings.TrimSpace(line))
		}
	}
	if len(failed) > 0 {
		return good, fmt.Errorf("%s: %d of %d questions failed, the first: %s", l.name, len(failed), good, failed[0])
	}
	return good, nil
}

// goesOn waits until more questions were answered than there were.
func (l load) goesOn() {
	l.s.Helper()
	before, err := l.total(l.s.ctx)
	if err != nil {
		l.s.Error(err)
		return
	}
	l.s.until(func(ctx context.Context) error {
		if now, err := l.total(ctx); err != nil || now > before {
			return nil // what has failed, ends says
		}
		return fmt.Errorf("%s has no answer since %d", l.name, before)
	})
}

// ends takes the load away, and says how much there was.
func (l load) ends() {
	l.s.Helper()
	l.goesOn()
	n, err := l.total(l.s.ctx)
	if err != nil {
		l.s.Error(err)
	}
	l.s.Logf("%s: %d questions", l.name, n)
	l.s.must(l.s.Client.CoreV1().Pods("default").Delete(l.s.ctx, l.name, metav1.DeleteOptions{}))
}

// A rolling update of a deployment whose pods serve a moment longer than they are asked
// to, as every well-behaved server does, and say that they are not ready any more, loses
// no request, and no conversation of UDP stays with a pod that goes.
func (s *services) rollingUpdate() {
	labels := map[string]string{"app": "rolling"}
	spec := talkerSpec("20s") // longer than Kubernetes takes to tell, on a busy machine too
	spec.Containers[0].ReadinessProbe = saysReady()
	spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
		Exec: &corev1.ExecAction{Command: []string{"talk", "ready", "off"}},
	}}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "rolling"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
	}}
	deployments := s.Client.AppsV1().Deployments("default")
	d, err := deployments.Create(s.ctx, d, metav1.CreateOptions{})
	s.must(err)
	of := s.service("rolling", func(spec *corev1.ServiceSpec) {
		spec.Selector = labels
		spec.Ports = append(spec.Ports, corev1.ServicePort{
			Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80,
			TargetPort: intstr.FromInt32(talkUDP),
		})
	})
	s.running("default", "app=rolling", 3)
	s.silenceEnds(at(of, 80)[0])
	all := []load{
		s.loads("roll-tcp", "tcp", at(of, 80)[0], false), s.loads("roll-tcp6", "tcp", at(of, 80)[1], false),
		s.loads("roll-udp", "udp", at(of, 80)[0], false),
		s.loads("roll-chat", "udp", at(of, 80)[0], true),
		s.loads("roll-chat6", "udp", at(of, 80)[1], true),
	}
	begin := time.Now()
	s.until(func(ctx context.Context) error {
		d, err = deployments.Get(ctx, "rolling", metav1.GetOptions{})
		if err == nil {
			d.Spec.Template.Labels["turn"] = "next"
			d, err = deployments.Update(ctx, d, metav1.UpdateOptions{})
		}
		return err
	})
	s.must(kubelab.Until(s.ctx, deployments, metav1.ListOptions{
		FieldSelector: "metadata.name=rolling",
	}, func(list *appsv1.DeploymentList) error {
		if len(list.Items) != 1 {
			return errors.New("the deployment has gone")
		}
		if st := list.Items[0].Status; st.ObservedGeneration < d.Generation ||
			st.UpdatedReplicas != 3 || st.AvailableReplicas != 3 || st.Replicas != 3 {
			return fmt.Errorf("the update is not over: %+v", st)
		}
		return nil
	}))
	s.running("default", "app=rolling,turn=next", 3)
	for _, l := range all {
		l.ends()
	}
	s.Logf("the update took %s", time.Since(begin).Round(10*time.Millisecond))
	s.must(deployments.Delete(s.ctx, "rolling", metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationBackground),
	}))
}
