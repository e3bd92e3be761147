//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// elsewhere is a port on which hosts that are no pods answer.
const elsewhere = 9000

// greet answers TCP connections until the test ends.
func (r *rig) greet(h *privatehost.Host, at netip.AddrPort) {
	r.Helper()
	listener, err := h.Listen(r.ctx, "tcp", at.String())
	r.must(err)
	r.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("here\n"))
			_ = c.Close()
		}
	}()
}

// resolve answers DNS questions for IPv4 addresses with one, until the test ends.
func (r *rig) resolve(h *privatehost.Host, at netip.AddrPort, answer netip.Addr) {
	r.Helper()
	conn, err := h.ListenPacket(r.ctx, "udp", at.String())
	r.must(err)
	r.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if n < 16 {
				continue
			}
			// The question comes back with an answer behind it, as RFC 1035, section 4.1, has it.
			reply := append([]byte(nil), buf[:n]...)
			reply[2], reply[3], reply[7] = 0x81, 0x80, 0
			if reply[n-3] == 1 { // type A
				reply[7] = 1
				reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4)
				reply = append(reply, answer.AsSlice()...)
			}
			_, _ = conn.WriteTo(reply, from)
		}
	}()
}

// connects tells whether a pod is answered at an address by TCP.
func (r *rig) connects(p corev1.Pod, to netip.AddrPort) error {
	_, err := r.Exec(r.ctx, p.Namespace, p.Name, "sh", "-c", fmt.Sprintf("nc -w 2 %s %d </dev/null", to.Addr(), to.Port()))
	return err
}

// asks tells whether a pod has names resolved by a name server.
func (r *rig) asks(p corev1.Pod, server netip.Addr) error {
	_, err := r.Exec(r.ctx, p.Namespace, p.Name, "timeout", "10", "nslookup", "-type=a", "name.example", server.String())
	return err
}

// underlay is what of the nodes' network there is to reach.
type underlay struct {
	closed, open map[string]netip.AddrPort // with isolation
	dns          netip.Addr
}

func (w *whole) underlay() underlay {
	w.Helper()
	central := kubelab.Nodes.Addr()
	outside := privatehost.NeighbourIPv4.Addr()
	var host struct {
		Subnets []struct {
			Gateway string `json:"gateway_ip"`
		}
	}
	w.must(w.node.sdn(w.ctx, http.MethodGet, "subnets?name=host-v4", nil, &host))
	if len(host.Subnets) != 1 {
		w.Fatalf("the SDN's network outside: %+v", host)
	}
	w.greet(w.Central, netip.AddrPortFrom(central, elsewhere))
	w.greet(w.Central, netip.AddrPortFrom(central, 53))
	w.resolve(w.Central, netip.AddrPortFrom(central, 53), outside)
	stop, err := w.node.StartOutside(
		w.ctx, "busybox", "httpd", "-f", "-p", strconv.Itoa(elsewhere), "-h", "/proc/sys/net/ipv4",
	)
	w.must(err)
	w.Cleanup(stop)
	const kubelet = 10250
	return underlay{
		dns: central,
		closed: map[string]netip.AddrPort{
			"the kubelet": netip.AddrPortFrom(w.node.Address, kubelet),
			"the kubelet, where routers find the host": netip.AddrPortFrom(
				netip.MustParseAddr(host.Subnets[0].Gateway), kubelet,
			),
			"the kubelet at the node's other address": netip.AddrPortFrom(
				privatehost.HostIPv4.Addr(), kubelet,
			), "another host of the network": netip.AddrPortFrom(central, elsewhere),
		},
		open: map[string]netip.AddrPort{
			"the API server":         netip.AddrPortFrom(central, kubelab.Port),
			"the name server by TCP": netip.AddrPortFrom(central, 53),
			"what is outside":        netip.AddrPortFrom(outside, elsewhere),
		},
	}
}

// finds checks what a pod reaches. On a machine that is busy an answer may come too late for a try, so there are
// several of what must succeed.
func (w *whole) finds(u underlay, p corev1.Pod, isolated bool) {
	w.Helper()
	tries := func(connect func() error) (err error) {
		for range 5 {
			if err = connect(); err == nil {
				break
			}
		}
		return err
	}
	for what, at := range u.open {
		w.until(func(context.Context) error {
			if err := w.connects(p, at); err != nil {
				return fmt.Errorf("isolated %v: %s does not reach %s: %w", isolated, p.Name, what, err)
			}
			return nil
		})
	}
	w.until(func(context.Context) error {
		if err := w.asks(p, u.dns); err != nil {
			return fmt.Errorf("isolated %v: %s has no names resolved: %w", isolated, p.Name, err)
		}
		return nil
	})
	for what, at := range u.closed {
		connect := func() error { return w.connects(p, at) }
		err := connect()
		if err != nil && !isolated {
			err = tries(connect)
		}
		if (err == nil) == isolated {
			w.Errorf("isolated %v: %s reaches %s (%s): %v", isolated, p.Name, what, at, err)
		}
	}
	for _, to := range []netip.Addr{w.node.Address, u.dns} {
		if _, err := w.Exec(w.ctx, p.Namespace, p.Name, "ping", "-c2", "-W2", to.String()); (err == nil) == isolated {
			w.Errorf("isolated %v: %s and ping of %s: %v", isolated, p.Name, to, err)
		}
	}
}

// fromNode checks that the node reaches a pod: its kubelet by what probes are, its
// programs, and who forwards a port through it.
func (w *whole) fromNode(p corev1.Pod) {
	w.Helper()
	for _, address := range addresses(p) {
		if page := w.node.Exec(w.ctx, "curl", "-sm20", pageAt(address)); page.Stdout != p.Name+"\n" {
			w.Errorf("the node does not reach %s at %s: %s", p.Name, address, page)
		}
	}
	at, stop, err := w.Forward(w.ctx, p.Namespace, p.Name, port)
	w.must(err)
	defer stop()
	request, err := http.NewRequestWithContext(w.ctx, http.MethodGet, "http://"+at+"/", nil)
	w.must(err)
	answer, err := http.DefaultClient.Do(request)
	w.must(err)
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		w.Errorf("by port-forward %s answers %s", p.Name, answer.Status)
	}
}

// Pods reach the nodes' network, and with underlay_isolation nothing of it but API and
// DNS, at once and without being made again; what is beyond, other pods, and the way from
// the node to them stay. A namespace's other groups reach pods that run in the same way.
func TestReach(t *testing.T) {
	w := shareNode(t)
	u := w.underlay()
	w.create("default", probed(serverPod("a", "")), serverPod("b", ""))
	pods := w.running("default", "", 2)
	a, b := pods["a"], pods["b"]
	w.finds(u, a, false)

	begin := time.Now()
	w.reset(
		"--controller-underlay-isolation=true", "--controller-node-networks",
		kubelab.Nodes.Masked().String()+","+privatehost.HostIPv4.Addr().String()+"/32",
	)
	w.until(func(context.Context) error {
		if w.connects(a, u.closed["another host of the network"]) == nil {
			return errors.New("the pod that runs reaches the nodes' network still")
		}
		return nil
	})
	t.Logf("the pod that runs is isolated after %s", time.Since(begin).Round(10*time.Millisecond))
	w.finds(u, a, true)
	w.talks(a, b)
	w.fromNode(a)
	w.create("default", probed(serverPod("c", "")))
	c := w.running("default", "app=c", 1)["c"]
	w.finds(u, c, true)
	w.talks(c, a)
	w.agree(3)

	w.reset()
	w.until(func(context.Context) error { return w.connects(a, u.closed["another host of the network"]) })
	w.finds(u, a, false)
	w.finds(u, c, false)
	w.agree(3)
	w.until(func(ctx context.Context) error {
		var all struct {
			Groups []struct{ Name string } `json:"security_groups"`
		}
		if err := w.node.sdn(ctx, http.MethodGet, "security-groups", nil, &all); err != nil {
			return err
		}
		if len(all.Groups) > 0 {
			return fmt.Errorf("the SDN has the groups %v still", all.Groups)
		}
		return nil
	})
	w.gone("default")
	w.agree(0)
	w.regroups(u)
}

// regroups checks that a namespace's other groups reach pods that run, that pods that
// come have them, and that the pool of the groups before goes.
func (w *whole) regroups(u underlay) {
	w.Helper()
	w.namespace("green")
	w.create("green", probed(serverPod("old", "")))
	old := w.running("green", "", 1)["old"]
	outside := u.open["what is outside"]
	w.must(w.connects(old, outside))

	quiet, err := w.node.create(w.ctx, "security-group", map[string]any{"name": "quiet"})
	w.must(err)
	w.must(w.onlyAnswers(quiet))
	w.regroup("green", quiet)
	w.until(func(context.Context) error {
		if w.connects(old, outside) == nil {
			return errors.New("the pod that runs still sends what its group forbids")
		}
		return nil
	})
	w.fromNode(old)
	w.create("green", probed(serverPod("new", "")))
	young := w.running("green", "app=new", 1)["new"]
	if w.connects(young, outside) == nil {
		w.Error("a new pod sends what its group forbids")
	}
	w.agree(2)
	w.must(w.Client.CoreV1().Pods("green").Delete(w.ctx, "old", metav1.DeleteOptions{}))
	w.until(func(ctx context.Context) error { return w.onlyPools(ctx, "green", quiet) })

	w.regroup("green", "")
	w.until(func(context.Context) error { return w.connects(young, outside) })
	w.gone("green")
	w.until(func(ctx context.Context) error { return w.onlyPools(ctx, "green", "") })
	w.erase("security-groups/" + quiet)
	w.agree(0)
}

// onlyAnswers has a group let pass what comes, and of what goes the answers to it.
func (w *whole) onlyAnswers(group string) error {
	var rules struct {
		Rules []struct{ ID string } `json:"security_group_rules"`
	}
	if err := w.node.sdn(w.ctx, http.MethodGet, "security-group-rules?security_group_id="+group, nil, &rules); err != nil {
		return err
	}
	for _, r := range rules.Rules {
		w.erase("security-group-rules/" + r.ID)
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		rule := map[string]any{"security_group_id": group, "direction": "ingress", "ethertype": family}
		if _, err := w.node.create(w.ctx, "security-group-rule", rule); err != nil {
			return err
		}
	}
	return nil
}

// regroup says what groups a namespace's pods have; "" leaves it to Raven.
func (w *whole) regroup(namespace, group string) {
	w.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	value := "null"
	if group != "" {
		value = strconv.Quote(group)
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, kuryrv1.AnnotationSecurityGroups, value)
	w.must(w.api.Patch(w.ctx, ns, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// onlyPools complains of each pool of the namespace's network that is of other groups
// than the one, or than none. A pool that no pod needs any more goes, so there may be
// none at all.
func (w *whole) onlyPools(ctx context.Context, namespace, group string) error {
	var pools kuryrv1.KuryrPortPoolList
	if err := w.api.List(ctx, &pools); err != nil {
		return err
	}
	want := []string{}
	if group != "" {
		want = append(want, group)
	}
	for _, p := range pools.Items {
		if p.Spec.NetworkName == "kuryr-ns-"+namespace && !slices.Equal(p.Spec.SecurityGroups, want) {
			return fmt.Errorf("pool %s of the groups %v is still there", p.Name, p.Spec.SecurityGroups)
		}
	}
	return nil
}
