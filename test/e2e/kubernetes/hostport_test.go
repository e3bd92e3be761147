//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// A pod's hostPort leads to it from another host, from the node, by its loopback too, and
// from another pod, also after the node's daemon was killed, until the pod goes; a port
// that a program of the node has is not taken from it. A pod's bandwidth is limited at
// both ends of its interface. The commands by which faults are found know these pods.
func TestHostPorts(t *testing.T) {
	w := shareNode(t)
	const hostPort = 8088
	web := serverPod("web", "")
	web.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: port, HostPort: hostPort}}
	slow := serverPod("slow", "")
	slow.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "16M"}
	w.create("default", web, slow, serverPod("other", ""))
	pods := w.running("default", "", 3)
	other := pods["other"]
	before := w.tables()

	get := func(address netip.Addr) []string {
		return []string{"curl", "-sf", "--max-time", "20", fmt.Sprintf("http://%s/", netip.AddrPortFrom(address, hostPort))}
	}
	leads := func(when, want string) {
		t.Helper()
		for from, r := range map[string]privatehost.Result{
			"another host": w.Central.Exec(w.ctx, get(w.node.Address)...),
			"the node":     w.node.Exec(w.ctx, get(w.node.Address)...),
			"its loopback": w.node.Exec(w.ctx, get(netip.MustParseAddr("127.0.0.1"))...),
		} {
			if r.Out() != want {
				t.Errorf("%s, from %s: %q answers, want %q", when, from, r.Out(), want)
			}
		}
		page, err := w.Exec(
			w.ctx, "default", other.Name, "timeout", "20", "wget", "-qO-",
			fmt.Sprintf("http://%s/", netip.AddrPortFrom(w.node.Address, hostPort)),
		)
		if page = strings.TrimSpace(page); page != want {
			t.Errorf("%s, from another pod: %q answers (%v), want %q", when, page, err, want)
		}
	}
	w.talks(other, pods["web"]) // its server listens
	w.talks(pods["web"], other)
	leads("at first", "web")
	w.agree(3) // which doctor looks at
	w.tools(pods["web"], other)

	shaped := w.node.Exec(
		w.ctx, "sh", "-c",
		`for n in /run/kuryr/netns/* /var/run/netns/cni-*; do nsenter --net=$n tc qdisc show; done`,
	).Out()
	for _, rate := range []string{"rate 8Mbit", "rate 16Mbit"} {
		if strings.Count(shaped, rate) != 1 {
			t.Errorf("%s is not there once:\n%s", rate, shaped)
		}
	}

	w.must(w.claim.Stop(syscall.SIGKILL, limit))
	leads("without a daemon", "web")
	w.must(w.startDaemon(w.ctx))
	leads("with the next daemon", "web")

	greedy := serverPod("greedy", "")
	// the kubelet's, which the scheduler does not know of
	greedy.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: port, HostPort: 10250}}
	w.create("default", greedy)
	w.until(func(ctx context.Context) error {
		events, err := w.Client.EventsV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Name == "greedy" && strings.Contains(e.Note, "10250") &&
				strings.Contains(e.Note, "a program of this host uses it") {
				return nil
			}
		}
		return fmt.Errorf("the pod greedy is not told that its hostPort is the kubelet's")
	})

	for _, name := range []string{"web", "greedy"} {
		w.must(w.Client.CoreV1().Pods("default").Delete(w.ctx, name, metav1.DeleteOptions{}))
		w.absent("default", name)
	}
	leads("when it has gone", "")
	if !strings.Contains(before, "kuryr_hostport") || strings.Contains(w.tables(), "kuryr_hostport") {
		t.Errorf("the node's tables with a hostPort and without:\n%s\n%s", before, w.tables())
	}
	w.agree(2)
}

// tables lists the node's tables of nftables.
func (w *whole) tables() string { return w.node.Exec(w.ctx, "nft", "list", "tables").Out() }
