//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// cloudServices is a cluster of two nodes on Neutron, in two zones, whose Services are
// Kuryr's. On each node is a pod of the app web and one that asks.
type cloudServices struct {
	*stack
	asks  *services // how it is asked
	pods  []speaker // one on each node
	nodes []speaker // the nodes themselves
}

// startCloudServices starts one; the settings are Raven's and the nodes' daemons'.
func startCloudServices(
	t *testing.T, reason string, cloud neutronlab.Options, dns bool, raven, daemons []string,
) *cloudServices {
	t.Helper()
	opts := talkOptions(nil)
	opts.Nodes, opts.DNS = 2, dns
	c := &cloudServices{stack: newStack(t, reason, cloud, opts)}
	c.leadBack()
	c.settings = slices.Concat(ravenServices, []string{"--controller-node-ranges=" + nodeRange + "," + nodeRange6}, raven)
	c.daemons = append([]string{"--node-services=true"}, daemons...)
	c.run()
	for i, w := range c.workers {
		zone := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"zone%d"}}}`, corev1.LabelTopologyZone, i+1)
		_, err := c.Client.CoreV1().Nodes().Patch(c.ctx, w.Name, types.MergePatchType, zone, metav1.PatchOptions{})
		c.must(err)
		c.nodes = append(c.nodes, onHost(w.Name, w.Exec))
	}
	c.asks = &services{rig: c.rig, away: onHost("another host", c.Central.Exec)}
	begin := time.Now()
	if dns {
		c.must(c.DeployDNS(c.ctx))
	}
	c.create("default", onNode(talker("a", "web"), 1), onNode(talker("b", "web"), 2))
	for i := range c.workers {
		asks := onNode(talker(fmt.Sprint("asks", i+1), "asks"), i+1)
		asks.Spec.AutomountServiceAccountToken = nil // it has the API server's authority with it
		c.create("default", asks)
	}
	c.running("default", "", 4)
	c.pods = []speaker{c.asks.inPod("asks1"), c.asks.inPod("asks2")}
	t.Logf("the pods are ready %s later", time.Since(begin).Round(10*time.Millisecond))
	return c
}

// onNode has a pod run on a node.
func onNode(p *corev1.Pod, number int) *corev1.Pod {
	p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: fmt.Sprint("node", number)}
	return p
}

// everywhere are the pods and the nodes.
func (c *cloudServices) everywhere() []speaker { return append(slices.Clone(c.pods), c.nodes...) }

// web makes a Service of TCP and UDP that leads to the pods of the app web.
func (c *cloudServices) web(name string, edit func(*corev1.ServiceSpec)) *corev1.Service {
	c.Helper()
	return c.asks.service(name, func(spec *corev1.ServiceSpec) {
		spec.Ports = append(spec.Ports, corev1.ServicePort{
			Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80,
			TargetPort: intstr.FromInt32(talkUDP),
		})
		if edit != nil {
			edit(spec)
		}
	})
}

// find waits until each of these is answered by exactly want at each of a Service's addresses, by TCP and UDP.
func (c *cloudServices) find(of *corev1.Service, from []speaker, want ...string) {
	c.Helper()
	for _, to := range at(of, 80) {
		for _, one := range from {
			c.asks.answers(one, "tcp", to, want...)
			c.asks.answers(one, "udp", to, want...)
		}
	}
}

// places are both nodes' addresses with a port.
func (c *cloudServices) places(port int32) (all []string) {
	for _, w := range c.workers {
		for _, a := range []netip.Addr{w.Address, w.Address6} {
			all = append(all, net.JoinHostPort(a.String(), strconv.Itoa(int(port))))
		}
	}
	return all
}

// routes waits until the router leads to ClusterIPs by so many nodes, in each family.
func (c *cloudServices) routes(count int) {
	c.Helper()
	c.until(func(ctx context.Context) error {
		routers, err := c.lab.API().List(ctx, "routers", "name=kuryr-kubernetes")
		if err != nil || len(routers) != 1 {
			return errors.Join(err, fmt.Errorf("%d routers", len(routers)))
		}
		routes, _ := routers[0]["routes"].([]any)
		if len(routes) != 2*count {
			return fmt.Errorf("the router has %v, want routes by %d nodes", routes, count)
		}
		return nil
	})
}

// Without Octavia the nodes' kernels balance ClusterIPs, to which Neutron's router leads:
// from pods and from nodes, to pods on both nodes and to what is no pod, as endpoints
// come and go; a node's own programs get what hints and policies say; NodePorts answer at
// both nodes; and without Services the router leads nowhere.
func TestNeutronServicesNode(t *testing.T) {
	const reason = "the nodes' kernels balance"
	c := startCloudServices(
		t, reason, neutronlab.Options{Keystone: true}, true,
		[]string{"--controller-load-balancers=node"}, []string{"--node-load-balancers=node"},
	)
	c.routes(2)
	web := c.web("web", nil)
	c.find(web, append(c.everywhere(), c.asks.inPod("a")), "a", "b")
	for _, from := range c.everywhere() {
		c.asks.silence(from, "tcp", at(web, 81)[0], "refused") // what is nobody's does not go to and fro
	}
	c.dns(web)
	c.nodePorts()
	c.near()

	c.create("default", onNode(talker("c", "web"), 1))
	c.running("default", "app=web", 3)
	c.find(web, c.everywhere(), "a", "b", "c")
	for _, name := range []string{"a", "c"} {
		c.must(c.Client.CoreV1().Pods("default").Delete(c.ctx, name, metav1.DeleteOptions{}))
	}
	c.find(web, c.everywhere(), "b")
	c.must(c.Client.CoreV1().Services("default").Delete(c.ctx, "web", metav1.DeleteOptions{}))
	for _, w := range c.workers {
		c.until(func(ctx context.Context) error {
			if said := w.Exec(ctx, "nft", "list", "table", "inet", "kuryr_lb"); !said.OK() ||
				strings.Contains(said.Stdout, web.Spec.ClusterIP+" ") {
				return fmt.Errorf("%s has the Service still: %s", w.Name, said)
			}
			return nil
		})
	}

	c.must(c.raven.Stop(syscall.SIGTERM, limit))
	c.must(c.startRaven("--controller-services=false"))
	c.routes(0)
}

// dns checks that CoreDNS, which reads the cluster at the API server's ClusterIP, is
// there at its own for pods of both nodes.
func (c *cloudServices) dns(web *corev1.Service) {
	c.Helper()
	begin := time.Now()
	c.must(c.WaitDNS(c.ctx))
	for _, c.asks.pod = range c.pods {
		c.asks.looks(web.Name, web.Spec.ClusterIPs...)
	}
	c.Logf("CoreDNS is there after %s", time.Since(begin).Round(10*time.Millisecond))
}

// legs are the addresses of the nodes' own ports.
func (c *cloudServices) legs() (all []string) {
	c.Helper()
	var ports kuryrv1.KuryrPortList
	c.must(c.api.List(c.ctx, &ports, client.MatchingLabels{kuryrv1.LabelForNode: "true"}))
	for _, p := range ports.Items {
		for _, subnet := range p.Spec.Network.Subnets {
			all = append(all, subnet.IPs...)
		}
	}
	if len(all) != 4 {
		c.Errorf("the nodes' own ports have %v", all)
	}
	return all
}

// nodePorts has both nodes' addresses lead to the pods of both, for another host and for
// pods, who reach them by the router's way out, which is of IPv4 here; so do the nodes'
// addresses in the SDN for a pod. Where only a node's own count, to those, but for pods
// and the node itself.
func (c *cloudServices) nodePorts() {
	c.Helper()
	of := c.web("ports", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort })
	for i, network := range []string{"tcp", "udp"} {
		for _, to := range c.places(of.Spec.Ports[i].NodePort) {
			c.asks.answers(c.asks.away, network, to, "a", "b")
			if at, err := netip.ParseAddrPort(to); err == nil && at.Addr().Is4() {
				for _, from := range c.pods {
					c.asks.answers(from, network, to, "a", "b")
				}
			}
		}
	}
	for _, leg := range c.legs() {
		c.asks.answers(c.pods[0], "tcp", net.JoinHostPort(leg, strconv.Itoa(int(of.Spec.Ports[0].NodePort))), "a", "b")
	}
	c.asks.change("ports", func(service *corev1.Service) {
		service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	for i, to := range c.places(of.Spec.Ports[0].NodePort) {
		c.asks.answers(c.asks.away, "tcp", to, []string{"a", "b"}[i/2])
		c.asks.answers(c.nodes[i/2], "tcp", to, "a", "b")
	}
	for _, leg := range c.legs() {
		c.asks.answers(c.pods[0], "tcp", net.JoinHostPort(leg, strconv.Itoa(int(of.Spec.Ports[0].NodePort))), "a", "b")
	}
}

// near has a node's own programs find the endpoints that are near them, where the Service says so.
func (c *cloudServices) near() {
	c.Helper()
	inner := c.web("inner", func(spec *corev1.ServiceSpec) {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	})
	zoned := c.web("zoned", func(spec *corev1.ServiceSpec) {
		spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameZone)
	})
	for _, to := range at(inner, 80) {
		for _, pod := range c.pods { // by UDP OVN may have all that a pod sends come to one node
			c.asks.answers(pod, "tcp", to, "a", "b")
		}
	}
	c.asks.warned("inner", "spec.internalTrafficPolicy: Local: pods' connections come to any node")
	for i, from := range c.nodes {
		c.find(inner, []speaker{from}, []string{"a", "b"}[i])
		c.find(zoned, []speaker{from}, []string{"a", "b"}[i])
	}
}

// balancers are Octavia's load balancers, by the Service that they are of.
func (c *cloudServices) balancers(ctx context.Context) (map[string][]string, error) {
	var said struct {
		LoadBalancers []struct{ ID, Name, Provider string }
	}
	if err := c.lab.Octavia(ctx, http.MethodGet, "loadbalancers", nil, &said); err != nil {
		return nil, err
	}
	found := map[string][]string{}
	for _, lb := range said.LoadBalancers {
		found[lb.Name] = append(found[lb.Name], lb.Provider)
	}
	return found, nil
}

// ready waits until a Service's load balancer serves so many endpoints.
func (c *cloudServices) ready(name string, members int) {
	c.Helper()
	begin := time.Now()
	var lb kuryrv1.KuryrLoadBalancer
	c.until(func(ctx context.Context) error {
		if err := c.api.Get(ctx, types.NamespacedName{Namespace: "default", Name: name}, &lb); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(lb.Status.Conditions, kuryrv1.ConditionReady) || lb.Status.Members != members {
			return fmt.Errorf("%s: %+v", name, lb.Status)
		}
		return nil
	})
	c.Logf("%s has %d endpoints after %s", name, members, time.Since(begin).Round(10*time.Millisecond))
}

// floating waits for the address that a Service's status tells.
func (c *cloudServices) floating(name string) (address string) {
	c.Helper()
	c.until(func(ctx context.Context) error {
		of, err := c.Client.CoreV1().Services("default").Get(ctx, name, metav1.GetOptions{})
		if err == nil && len(of.Status.LoadBalancer.Ingress) != 1 {
			err = fmt.Errorf("the status is %+v", of.Status)
		}
		if err == nil {
			address = of.Status.LoadBalancer.Ingress[0].IP
		}
		return err
	})
	return address
}

// With Octavia ClusterIPs are load balancers of OVN's provider: pods of both nodes and
// namespaces and the nodes reach pods of both nodes there, as endpoints come and go; a
// Service of type LoadBalancer has a floating IP; and of what goes nothing is left.
func TestNeutronServicesOctavia(t *testing.T) {
	const reason = "Octavia balances"
	c := startCloudServices(t, reason, neutronlab.Options{Keystone: true, Octavia: true}, true, nil, nil)
	c.namespace("blue", nil)
	c.create("blue", onNode(talker("blue", "blue"), 2))
	web := c.web("web", nil)
	c.ready("web", 4)
	c.running("blue", "", 1)
	blue := speaker{"a pod of another namespace", func(ctx context.Context, argv ...string) (string, error) {
		return c.Exec(ctx, "blue", "blue", append([]string{"talk"}, argv...)...)
	}}
	c.find(web, append(c.everywhere(), blue, c.asks.inPod("a")), "a", "b")
	c.dns(web)
	c.apiServer()
	c.asks.pod, c.asks.here = c.pods[0], c.nodes[1]
	c.asks.byHand(false)
	c.onHosts()

	c.asks.change("web", func(service *corev1.Service) { service.Spec.Type = corev1.ServiceTypeLoadBalancer })
	outside := net.JoinHostPort(c.floating("web"), "80")
	for _, from := range []speaker{c.asks.away, c.pods[0], c.nodes[1]} {
		c.asks.answers(from, "tcp", outside, "a", "b")
	}
	c.asks.answers(c.asks.away, "udp", outside, "a", "b")
	outside = c.guarded(web, outside)

	c.create("default", onNode(talker("c", "web"), 1))
	c.running("default", "app=web", 3)
	c.ready("web", 6)
	c.find(web, c.pods, "a", "b", "c")
	c.must(c.Client.CoreV1().Pods("default").Delete(c.ctx, "a", metav1.DeleteOptions{}))
	c.ready("web", 4)
	c.find(web, c.pods, "b", "c")
	c.asks.answers(c.asks.away, "tcp", outside, "b", "c")

	if all, err := c.balancers(c.ctx); err != nil || !slices.Equal(all["default/web"], []string{"ovn", "ovn"}) {
		t.Errorf("Octavia has %v, %v", all, err)
	}
	c.must(c.Client.CoreV1().Services("default").Delete(c.ctx, "web", metav1.DeleteOptions{}))
	c.nothingOf(web)
	c.survives()
	c.stuck()
	c.placed()
}

// guarded has a Service say who may connect, and that clients stay with their endpoints,
// neither of which OVN's provider can: Events tell both, nobody outside is let in, not
// even who may be, and pods and nodes are served as before. It returns where the Service
// is when it says so no more.
func (c *cloudServices) guarded(web *corev1.Service, outside string) string {
	c.Helper()
	c.asks.change("web", func(service *corev1.Service) {
		service.Spec.LoadBalancerSourceRanges = []string{neutronlab.External.Masked().String()}
		service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	})
	for _, field := range []string{"spec.loadBalancerSourceRanges", "spec.sessionAffinity"} {
		c.asks.warned("web", field)
	}
	for _, network := range []string{"tcp", "udp"} {
		c.asks.silence(c.asks.away, network, outside, "timeout", "refused", "unreachable")
	}
	c.until(func(ctx context.Context) error {
		of, err := c.Client.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
		if err == nil && len(of.Status.LoadBalancer.Ingress) > 0 {
			err = fmt.Errorf("nobody may come in, and the status is %+v", of.Status)
		}
		return err
	})
	c.find(web, []speaker{c.pods[0], c.nodes[1]}, "a", "b")
	c.asks.change("web", func(service *corev1.Service) {
		service.Spec.LoadBalancerSourceRanges = nil
		service.Spec.SessionAffinity, service.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	})
	outside = net.JoinHostPort(c.floating("web"), "80")
	c.asks.answers(c.asks.away, "tcp", outside, "a", "b")
	return outside
}

// apiServer checks that pods and nodes speak with the API server at the first of the
// ClusterIPs, though it is on its host's network.
func (c *cloudServices) apiServer() {
	c.Helper()
	is, err := c.Client.Discovery().ServerVersion()
	c.must(err)
	url := "https://" + netip.MustParsePrefix(kubelab.ServiceRange).Addr().Next().String() + "/version"
	for _, from := range c.everywhere() {
		authority := filepath.Join(c.dir, "ca")
		if slices.ContainsFunc(c.pods, func(pod speaker) bool { return pod.name == from.name }) {
			authority = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
		}
		c.until(func(ctx context.Context) error {
			said, err := from.run(ctx, "get", authority, url)
			if err == nil && !strings.Contains(said, is.GitVersion) {
				err = fmt.Errorf("%s, at %s: %s", from.name, url, said)
			}
			return err
		})
	}
}

// onHosts has pods on the nodes' own network be endpoints, for pods and nodes, theirs among them.
func (c *cloudServices) onHosts() {
	c.Helper()
	for i := range c.workers {
		p := onNode(talker(fmt.Sprint("host", i+1), "hosts"), i+1)
		p.Spec.HostNetwork = true
		c.create("default", p)
	}
	c.running("default", "app=hosts", len(c.workers))
	of := c.web("hosts", func(spec *corev1.ServiceSpec) {
		spec.Selector = map[string]string{"app": "hosts"}
		spec.IPFamilyPolicy, spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPv4Protocol}
	})
	c.find(of, c.everywhere(), "node1", "node2")
}

// nothingOf waits until Octavia and Neutron have nothing of a Service that has gone.
func (c *cloudServices) nothingOf(service *corev1.Service) {
	c.Helper()
	c.until(func(ctx context.Context) error {
		balancers, err := c.balancers(ctx)
		floating, failed := c.lab.API().List(ctx, "floatingips", "")
		ports, lost := c.lab.API().List(ctx, "ports", "fixed_ips=ip_address="+service.Spec.ClusterIP)
		name := service.Namespace + "/" + service.Name
		if err = errors.Join(err, failed, lost); err == nil &&
			len(balancers[name])+len(balancers[name+".lb"])+len(floating)+len(ports) > 0 {
			err = fmt.Errorf("of a Service that has gone is left: %v, %v, %v", balancers, floating, ports)
		}
		return err
	})
}

// placed has a Service of type LoadBalancer be reached by a VIP in its namespace: from
// outside by the floating IP that leads there, and from pods and nodes at the VIP where
// it is internal; then another Service shares that.
func (c *cloudServices) placed() {
	c.Helper()
	c.must(c.raven.Stop(syscall.SIGTERM, limit))
	c.must(c.startRaven("--controller-vip-placement=namespace"))
	of := c.web("placed", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.IPFamilyPolicy, spec.IPFamilies = corev1.ServiceTypeLoadBalancer,
			new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPv4Protocol}
	})
	begin := time.Now()
	outside := c.floating("placed")
	c.Logf("the floating IP is there after %s", time.Since(begin).Round(10*time.Millisecond))
	c.asks.answers(c.asks.away, "tcp", net.JoinHostPort(outside, "80"), "b", "c")
	c.asks.change("placed", func(service *corev1.Service) {
		service.Annotations = map[string]string{"service.beta.kubernetes.io/openstack-internal-load-balancer": "true"}
	})
	inside := outside
	c.until(func(context.Context) error {
		if inside = c.floating("placed"); inside == outside ||
			!netip.MustParsePrefix(podRange).Contains(netip.MustParseAddr(inside)) {
			return fmt.Errorf("an internal load balancer is at %s", inside)
		}
		return nil
	})
	for _, from := range c.everywhere() {
		c.asks.answers(from, "tcp", net.JoinHostPort(inside, "80"), "b", "c")
	}
	c.find(of, c.pods, "b", "c")
	c.ready("placed", 2)
	c.asks.change("placed", func(service *corev1.Service) { service.Annotations = nil })
	c.until(func(context.Context) error {
		if outside = c.floating("placed"); outside == inside {
			return fmt.Errorf("a load balancer that is no more internal is at %s", outside)
		}
		return nil
	})
	c.asks.shared("placed", outside, []string{"b", "c"}, []string{"asks1", "asks2"})
	c.nothingOf(of)
}
