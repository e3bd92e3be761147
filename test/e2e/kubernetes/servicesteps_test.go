//go:build e2e

package kubernetes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// steps are Ravens that die where they are told to, with one Service and a floating IP that somebody has made.
type steps struct {
	*ravens
	asker    *http.Client // of the SDN's API
	settings []string
	theirs   string          // the address of the floating IP
	service  *corev1.Service // as it was last written; nil is none
	second   string          // its second ClusterIP
}

// stage is something that is done to the Service while no Raven runs, the failpoints at
// which those are killed that see to it, and what there is when one has not been.
type stage struct {
	name   string
	act    func(*steps)
	killed []string
	spare  bool // where nobody is killed the next stages do without
	want   func(*steps) []string
}

// stages are a Service's life.
var stages = []stage{
	{"made", (*steps).make, []string{
		"raven.service.created", "raven.balancer.applied", "raven.balancer.applied:2",
		"raven.float.made", "raven.balancer.told", "raven.service.published",
	}, false, func(s *steps) []string {
		return append(s.floats("somebody's", "Raven's > first"), "first: 80", "second: 80", "Service: Raven's")
	}},
	{"readdressed", (*steps).readdress, []string{
		"raven.balancer.deleted", "raven.balancer.anew",
	}, true, func(s *steps) []string {
		return append(s.floats("somebody's", "Raven's > first"), "first: 80", "second: 80", "Service: Raven's")
	}},
	{"changed", (*steps).change, []string{
		"raven.service.changed", "raven.balancer.deleted", "raven.balancer.retired",
		"raven.float.sunk", "raven.float.noted", "raven.float.led",
	}, false, func(s *steps) []string {
		return append(s.floats("somebody's > first"), "first: 80 81", "Service: somebody's")
	}},
	{"hidden", (*steps).hide, []string{
		"raven.service.changed", "raven.float.sunk", "raven.balancer.told",
	}, true, func(s *steps) []string {
		return append(s.floats("somebody's"), "first: 80 81", "Service: nowhere")
	}},
	{"gone", (*steps).drop, []string{
		"raven.service.dismissed", "raven.balancer.deleted", "", "", "raven.float.sunk",
		"raven.balancer.released",
	}, false, func(s *steps) []string {
		return s.floats("somebody's")
	}},
}

// tornStages are the life of a Service that goes without a word.
var tornStages = []stage{
	{"made", (*steps).make, nil, false, stages[0].want},
	{
		"torn away", (*steps).tear,
		[]string{"raven.stray.sunk", "raven.stray.deleted", "raven.stray.deleted:2"}, false,
		func(s *steps) []string { return s.floats("somebody's") },
	},
}

// Raven is killed at each of its steps as a Service's load balancer, its VIPs and its
// floating IP are made, changed and taken away, and as the VIP network is made. The next
// one ends with what the Service says, nothing is there twice, and in the end nothing is
// left.
func TestServicesKilledAnywhere(t *testing.T) {
	t.Parallel()
	s := startSteps(t)
	s.settings = ravenRanges
	for _, step := range []string{"raven.vips.network", "raven.vips.subnet", "raven.vips.attached"} {
		s.dies(step)
	}
	s.rests(func() error { return s.vipSubnets(kubelab.ServiceRange, kubelab.ServiceRange6) })
	s.settings = ravenServices
	s.dies("raven.vips.detached")
	// larger than the ranges, so that no ClusterIP is the gateway
	s.rests(func() error { return errors.Join(s.vipSubnets("10.96.0.0/15", "fd00:96::/111"), s.networks(1)) })
	s.endpoints()
	s.theirs = s.float()
	before := s.things()
	s.pass(stages)
	s.pass(tornStages)
	s.same(before)
}

// startSteps is a cluster whose Ravens are killed.
func startSteps(t *testing.T) *steps {
	s := &steps{ravens: startRavens(t, "Ravens are killed at failpoints", kubelab.DualStack)}
	s.asker = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(
		ctx context.Context, _, _ string,
	) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.dir, "run", "sdn.sock"))
	}}}
	s.program = filepath.Join(filepath.Dir(kuryr), "kuryr-failpoints")
	s.kubernetesUnserved()
	s.grant("default")
	return s
}

// pass has the Service live as often as it takes to kill a Raven at each failpoint of each stage.
func (s *steps) pass(stages []stage) {
	s.Helper()
	for cycle := range slices.MaxFunc(stages, func(a, b stage) int { return len(a.killed) - len(b.killed) }).killed {
		for _, st := range stages {
			killed := ""
			if cycle < len(st.killed) {
				killed = st.killed[cycle]
			}
			if killed == "" && st.spare {
				continue
			}
			st.act(s)
			if killed != "" {
				s.dies(killed)
			}
			s.rests(func() error {
				if err := s.has(st.want(s)); err != nil {
					return fmt.Errorf("%s, killed at %q:\n%w", st.name, killed, err)
				}
				return nil
			})
		}
	}
}

// has complains unless there is of Services what is wanted.
func (s *steps) has(want []string) error {
	s.Helper()
	is := s.looks()
	if slices.Sort(want); !slices.Equal(is, want) {
		return fmt.Errorf("%s\nwant\n%s", strings.Join(is, "\n"), strings.Join(want, "\n"))
	}
	return nil
}

// same complains unless the SDN has what it had before.
func (s *steps) same(before []string) {
	s.Helper()
	if after := s.things(); !slices.Equal(before, after) {
		s.Errorf("the SDN had\n%s\nand has\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}

// retried does again what another write has come before.
func retried(f func() error) (err error) {
	for range 5 {
		if err = f(); err == nil {
			break
		}
	}
	return err
}

// dies starts a Raven that is to be killed at a failpoint, and waits for it.
func (s *steps) dies(step string) {
	s.Helper()
	c := s.raven("KURYR_FAILPOINT=" + step)
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case err := <-ended:
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			s.Fatalf("Raven was to be killed at %s and ended with %v", step, err)
		}
	case <-time.After(90 * time.Second):
		s.Fatalf("Raven does not come to %s; there is\n%s", step, strings.Join(s.looks(), "\n"))
	}
}

// rests has a Raven run until there is nothing to complain of.
func (s *steps) rests(complaint func() error) {
	s.Helper()
	c := s.raven()
	s.eventually("after a kill", complaint)
	s.kill(c)
}

func (s *steps) raven(env ...string) *exec.Cmd {
	s.Helper()
	s.env = env
	return s.controller(append([]string{"--controller-leader-election=false"}, s.settings...)...)
}

// make makes the Service, for both families, with an address that Raven chooses.
func (s *steps) make() {
	s.Helper()
	s.service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Type:           corev1.ServiceTypeLoadBalancer,
		IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
		Ports:          []corev1.ServicePort{{Name: "web", Port: 80}},
	}}
	var err error
	s.service, err = s.Client.CoreV1().Services("default").Create(s.ctx, s.service, metav1.CreateOptions{})
	s.must(err)
	s.second = s.service.Spec.ClusterIPs[1]
}

// edit changes the Service.
func (s *steps) edit(f func(*corev1.ServiceSpec)) {
	s.Helper()
	s.must(retried(func() (err error) {
		is, err := s.Client.CoreV1().Services("default").Get(s.ctx, "web", metav1.GetOptions{})
		if err == nil {
			f(&is.Spec)
			s.service, err = s.Client.CoreV1().Services("default").Update(s.ctx, is, metav1.UpdateOptions{})
		}
		return err
	}))
}

// single leaves the Service the first of its families.
func single(spec *corev1.ServiceSpec) {
	spec.IPFamilyPolicy, spec.ClusterIPs, spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack),
		spec.ClusterIPs[:1], spec.IPFamilies[:1]
}

// readdress gives the Service another address of its second family, which an SDN makes another load balancer of.
func (s *steps) readdress() {
	s.Helper()
	s.edit(single)
	s.edit(func(spec *corev1.ServiceSpec) {
		spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
		spec.ClusterIPs, spec.IPFamilies = append(spec.ClusterIPs, "fd00:96::7777"),
			append(spec.IPFamilies, corev1.IPv6Protocol)
	})
	s.second = s.service.Spec.ClusterIPs[1]
}

// change asks for somebody's address and one port more, without the second family.
func (s *steps) change() {
	s.Helper()
	s.edit(func(spec *corev1.ServiceSpec) {
		single(spec)
		spec.LoadBalancerIP = s.theirs
		spec.Ports = append(spec.Ports, corev1.ServicePort{Name: "more", Port: 81})
	})
}

// hide asks for no address any more.
func (s *steps) hide() {
	s.Helper()
	s.edit(func(spec *corev1.ServiceSpec) { spec.Type, spec.LoadBalancerIP = corev1.ServiceTypeClusterIP, "" })
}

func (s *steps) drop() {
	s.Helper()
	s.must(s.Client.CoreV1().Services("default").Delete(s.ctx, "web", metav1.DeleteOptions{}))
	s.service = nil
}

// tear has the Service go with its KuryrLoadBalancer, whose finalizer is torn away.
func (s *steps) tear() {
	s.Helper()
	var lb kuryrv1.KuryrLoadBalancer
	s.must(s.api.Get(s.ctx, types.NamespacedName{Namespace: "default", Name: "web"}, &lb))
	lb.Finalizers = nil
	s.must(s.api.Update(s.ctx, &lb))
	s.must(s.api.Delete(s.ctx, &lb))
	s.drop()
}

// endpoints are those of the Service, which stay while it comes and goes.
func (s *steps) endpoints() {
	s.Helper()
	port := int32(8080)
	for family, address := range map[discoveryv1.AddressType]string{
		discoveryv1.AddressTypeIPv4: "198.18.0.9", discoveryv1.AddressTypeIPv6: "fd00:9::9",
	} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name:   "web-" + strings.ToLower(string(family)),
				Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
			},
			AddressType: family, Ports: []discoveryv1.EndpointPort{
				{Name: new("web"), Port: &port, Protocol: new(corev1.ProtocolTCP)},
			},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses:  []string{address},
				Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			}},
		}
		_, err := s.Client.DiscoveryV1().EndpointSlices("default").Create(s.ctx, slice, metav1.CreateOptions{})
		s.must(err)
	}
}

// What the SDN says of its things.
type (
	sdnSubnet   struct{ CIDR string }
	sdnBalancer struct {
		ID, Name  string
		VIP       string `json:"vip_address"`
		Listeners []struct{ ID string }
	}
	sdnListener struct {
		ID   string
		Port int `json:"protocol_port"`
	}
	sdnFloat struct {
		ID          string
		Address     string `json:"floating_ip_address"`
		Fixed       string `json:"fixed_ip_address"`
		Description string
	}
)

// asks asks the SDN as any client of its API may, and takes what the answer has by a name.
func (s *steps) asks(method, path string, body any, name string, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(s.ctx, method, "http://kuryr/v2.0/"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	answer, err := s.asker.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%s %s: %s: %s, %w", method, path, answer.Status, said, err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(said, &all); err != nil {
		return err
	}
	return json.Unmarshal(all[name], into)
}

// float makes a floating IP that is not Raven's, and gives its address.
func (s *steps) float() string {
	s.Helper()
	var networks []struct{ ID string }
	s.must(s.asks(http.MethodGet, "networks?router:external=true", nil, "networks", &networks))
	var made sdnFloat
	s.must(s.asks(
		http.MethodPost, "floatingips",
		map[string]any{"floatingip": map[string]any{"floating_network_id": networks[0].ID}},
		"floatingip", &made,
	))
	return made.Address
}

// vipSubnets complains unless those of the VIP network are these, each with a leg of the router.
func (s *steps) vipSubnets(want ...string) error {
	var networks []struct {
		ID   string
		Name string
	}
	if err := s.asks(http.MethodGet, "networks?name=kuryr-services", nil, "networks", &networks); err != nil {
		return err
	}
	if len(networks) != 1 {
		return fmt.Errorf("there are %d VIP networks", len(networks))
	}
	var subnets []sdnSubnet
	var legs []struct{ ID string }
	if err := errors.Join(s.asks(http.MethodGet, "subnets?network_id="+networks[0].ID, nil, "subnets", &subnets),
		s.asks(
			http.MethodGet,
			"ports?device_owner=network:router_interface&network_id="+networks[0].ID, nil, "ports",
			&legs,
		)); err != nil {
		return err
	}
	var is []string
	for _, one := range subnets {
		is = append(is, one.CIDR)
	}
	slices.Sort(is)
	if slices.Sort(want); !slices.Equal(is, want) || len(legs) != len(want) {
		return fmt.Errorf("the VIP network has the subnets %v and %d legs, want %v", is, len(legs), want)
	}
	return nil
}

// floats are floating IPs as looks tells of them.
func (s *steps) floats(all ...string) (lines []string) {
	for _, one := range all {
		lines = append(lines, "floating: "+one)
	}
	return lines
}

// looks is what there is of Services in the SDN and in Kubernetes, in an order of its own.
func (s *steps) looks() (all []string) {
	s.Helper()
	var balancers []sdnBalancer
	var listeners []sdnListener
	var floats []sdnFloat
	var vips []struct {
		FixedIPs []struct {
			Address string `json:"ip_address"`
		} `json:"fixed_ips"`
	}
	s.must(errors.Join(
		s.asks(http.MethodGet, "lbaas/loadbalancers", nil, "loadbalancers", &balancers),
		s.asks(http.MethodGet, "lbaas/listeners", nil, "listeners", &listeners),
		s.asks(
			http.MethodGet, "floatingips", nil, "floatingips", &floats,
		), s.asks(http.MethodGet, "ports?device_owner=Octavia", nil, "ports", &vips)))
	names := map[string]string{}
	if s.service != nil {
		names[s.service.Spec.ClusterIPs[0]], names[s.second] = "first", "second"
	}
	named := func(address string) string {
		if name := names[address]; name != "" {
			return name
		}
		return address
	}
	for _, b := range balancers {
		if strings.HasSuffix(b.Name, ".lb") {
			names[b.VIP] = "own4"
			if strings.Contains(b.VIP, ":") {
				names[b.VIP] = "own6"
			}
		}
		var ports []string
		for _, l := range listeners {
			if slices.ContainsFunc(b.Listeners, func(of struct{ ID string }) bool { return of.ID == l.ID }) {
				ports = append(ports, fmt.Sprint(l.Port))
			}
		}
		slices.Sort(ports)
		all = append(all, named(b.VIP)+": "+strings.Join(ports, " "))
	}
	if len(vips) != len(balancers) {
		all = append(all, fmt.Sprintf("%d load balancers have %d ports", len(balancers), len(vips)))
	}
	owner := func(address string) string {
		if address == s.theirs {
			return "somebody's"
		}
		return "Raven's"
	}
	outside := map[string]bool{}
	for _, f := range floats {
		line := "floating: " + owner(f.Address)
		if f.Fixed != "" {
			line += " > " + named(f.Fixed)
		}
		all, outside[f.Address] = append(all, line), true
	}
	var objects kuryrv1.KuryrLoadBalancerList
	s.must(s.api.List(s.ctx, &objects))
	for _, o := range objects.Items {
		for _, of := range o.Status.LoadBalancers {
			if of.Own {
				all = append(all, "told: "+named(of.VIP))
			}
		}
		all = append(all, "Service: "+s.published(&o, func(address string) string {
			if !outside[address] {
				return "an address that is not there"
			}
			return owner(address)
		}))
	}
	slices.Sort(all)
	return all
}

// published is where the Service says that it is reached, when its load balancer is ready.
func (s *steps) published(lb *kuryrv1.KuryrLoadBalancer, owner func(string) string) string {
	s.Helper()
	var now corev1.Service
	if err := s.api.Get(s.ctx, types.NamespacedName{Namespace: lb.Namespace, Name: lb.Name}, &now); err != nil {
		return err.Error()
	}
	for _, c := range lb.Status.Conditions {
		if c.Type == kuryrv1.ConditionReady && (c.Status != metav1.ConditionTrue || c.ObservedGeneration != lb.Generation) {
			return c.Message
		}
	}
	var has []string
	for _, of := range lb.Status.LoadBalancers {
		if !of.Own {
			has = append(has, of.VIP)
		}
	}
	slices.Sort(has)
	if want := slices.Sorted(slices.Values(now.Spec.ClusterIPs)); !slices.Equal(has, want) {
		return fmt.Sprintf("%v in the status of ClusterIPs %v", has, want)
	}
	switch ingress := now.Status.LoadBalancer.Ingress; len(ingress) {
	case 0:
		return "nowhere"
	case 1:
		return owner(ingress[0].IP)
	}
	return fmt.Sprint(now.Status.LoadBalancer.Ingress)
}

// things are the ids of all that the SDN has which Services have a part in. Pods' ports,
// which come and go with their pools, are none of these.
func (s *steps) things() (all []string) {
	s.Helper()
	for path, name := range map[string]string{
		"networks": "networks", "subnets": "subnets", "ports": "ports", "routers": "routers",
		"floatingips":         "floatingips",
		"lbaas/loadbalancers": "loadbalancers", "security-groups": "security_groups"} {
		var some []struct {
			ID, Name string
			Owner    string `json:"device_owner"`
		}
		s.must(s.asks(http.MethodGet, path, nil, name, &some))
		for _, one := range some {
			if one.Owner != "compute:kuryr" {
				all = append(all, strings.Join([]string{name, one.ID, one.Name, one.Owner}, " "))
			}
		}
	}
	slices.Sort(all)
	return all
}
