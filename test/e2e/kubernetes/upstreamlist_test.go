//go:build e2e

package kubernetes_test

import (
	"cmp"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// upstreamFocus matches Kubernetes' tests of sig-network. All run except those of upstreamSkipped.
const upstreamFocus = `^\[sig-network\]`

// Reasons that several tests share.
const (
	oneNode = "wants two nodes, and the embedded SDN serves one machine; with " +
		"KURYR_E2E_UPSTREAM_NEUTRON it runs on two of Neutron's"
	twoNodes = "wants two nodes and their load balancer, and the embedded SDN serves one " +
		"machine; with KURYR_E2E_UPSTREAM_NEUTRON there is no Octavia"
	noOctavia = "wants a load balancer, and with KURYR_E2E_UPSTREAM_NEUTRON there is no Octavia"
	byNodes   = "with node.load_balancers: node a pod's connection comes to any node, from whose " +
		"address it goes on, as docs/services.md says"
	measures = "measures, and judges nothing"
	internet = "wants the Internet"
	ofProxy  = "is about kube-proxy, which does not run"
)

// upstreamSkipped are the tests of sig-network that are not run, each class with its
// reason. Each matches some; what skips itself must be here, too.
var upstreamSkipped = []struct{ test, because string }{
	{`Netpol .*NetworkPolicy between server and client`, "Kuryr does not enforce NetworkPolicy yet"},
	{
		`SCTP`,
		"the kernels of small machines have no SCTP, and its servers do not start there; " +
			"datapath/lb has its packets in its tests, by raw sockets, where the kernel tracks " +
			"SCTP",
	},
	{`LoadBalancers .*(on different nodes|disruption during rolling update|target all nodes with endpoints)`, twoNodes},
	{
		`LoadBalancers .*(type and ports|affinity|without NodePort|on the same nodes|work from ` +
			`pods|only target nodes)`,
		noOctavia,
	},
	{
		`LoadBalancers .*load balancer cleanup finalizer`,
		"wants the finalizer of cloud controllers on the Service; Kuryr's is on the " +
			"KuryrLoadBalancer, as docs/services.md says",
	},
	{
		`LoadBalancers .*only allow access from service loadbalancer source ranges`,
		"keeps pods out; loadBalancerSourceRanges let them in, as docs/services.md says",
	},
	{
		`LoadBalancers .*ExternalTrafficPolicy: Local.* should work for type=LoadBalancer`,
		"takes a client of the nodes' own /16, as the lab's is, for one whose address was " +
			"hidden; TestServices checks the client's address",
	},
	{
		`recreate its iptables rules if they are deleted`,
		"deletes rules of iptables by SSH; Kuryr's are of nftables, and TestServices deletes " +
			"their tables",
	},
	{
		`Services should work after restarting (kube-proxy|apiserver)`,
		"wants both to be pods of the cluster; TestServicesKilled does so with Kuryr's parts",
	},
	{`KubeProxy should|should check kube-proxy urls`, ofProxy},
	{`Feature:Networking-IPv[46]|Feature:Networking-DNS`, internet},
	{`Networking IPerf2|Feature:PerformanceDNS`, measures},
	{`should provide DNS for the cluster \[Provider:GCE\]`, "asks for names of Google's, of its cloud alone"},
	{
		`DNS configMap nameserver|DNS should support configurable pod resolv.conf`,
		"want CoreDNS's plugins hosts and forward, which test/kubernetes/coredns has not; no " +
			"Service is in question",
	},
	{`Feature:OffByDefault`, "wants a feature gate that is off by default"},
	{`Proxy version v1 should proxy logs on node`, "wants the kubelet's /var/log, which is not in the nodes of this lab"},
	{
		`(Topology Hints|Traffic Distribution) should`,
		"wants three zones of nodes, the first with equal processors; TestServices has hints",
	},
	{
		`implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes`,
		"wants three nodes; TestServices changes it on one, with an endpoint elsewhere",
	},
	{`Conntrack should be able to|Conntrack proxy implementation`, oneNode},
	{
		`Services should (fail health check|fallback to|respect internalTrafficPolicy|support ` +
			`externalTrafficPolicy|preserve source pod IP)`,
		oneNode,
	},
	{
		`Services should (preserve source pod IP|respect internalTrafficPolicy=Local Pod ` +
			`(to|and)|fallback to local .* internalTrafficPolicy)`,
		byNodes,
	},
	{`unready endpoints if PublishNotReadyAddresses is|Service CIDRs should create`, oneNode},
}

// upstreamCI are the tests that .ci/run has time for: of each part of Services and of the
// network one or two with packets.
var upstreamCI = []string{
	`API Server should provide secure master service`,
	`DNS should provide DNS for services`,
	`DNS should provide DNS for ExternalName services`,
	`EndpointSlice should support a Service with multiple endpoint IPs specified in multiple EndpointSlices`,
	`EndpointSliceMirroring should mirror a custom Endpoints resource through create update and delete`,
	`HostPort validates that there is no conflict`,
	`LoadBalancers [Feature:LoadBalancer] should be able to create LoadBalancer Service without NodePort and change it`,
	`LoadBalancers [Feature:LoadBalancer] should be able to switch session affinity for ` +
		`LoadBalancer service with Local traffic policy`,
	`Networking Granular Checks: Pods should function for node-pod communication: udp`,
	`Networking Granular Checks: Services should function for client IP based session affinity: http`,
	`Networking Granular Checks: Services should function for node-Service: udp`,
	`Networking Granular Checks: Services should function for pod-Service: http`,
	`Networking Granular Checks: Services should function for service endpoints using hostNetwork`,
	`Services Secondary IP Family [LinuxOnly] should function for pod-Service: udp`,
	`Proxy version v1 should proxy through a service and a pod`,
	`Services should allow pods to hairpin back to themselves through services`,
	`Services should be able to change the type from ExternalName to NodePort`,
	`Services should be able to create a functioning NodePort service`,
	`Services should be able to switch session affinity for service with type clusterIP`,
	`Services should be able to update service type to NodePort listening on same port number but different protocols`,
	`Services should be possible to connect to a service via ExternalIP when the external IP is not assigned to a node`,
	`Services should be rejected when no endpoints exist`,
	`Services should be updated after adding or deleting ports`,
	`Services should connect to the named ports exposed by restartable init containers`,
	`Services should implement service.kubernetes.io/service-proxy-name`,
	`Services should serve endpoints on same port and different protocols`,
	`Services should serve multiport endpoints from pods`,
	`Services should work after the service has been recreated`,
}

// TestUpstreamList holds the lists against the tests that there are.
func TestUpstreamList(t *testing.T) {
	t.Parallel()
	all, runs := upstreamTests(t, upstreamPrograms(t), 1)
	if len(runs) < 100 {
		t.Fatalf("of %d tests of sig-network only %d run", len(all), len(runs))
	}
	for _, s := range upstreamSkipped {
		if !slices.ContainsFunc(all, regexp.MustCompile(s.test).MatchString) {
			t.Errorf("no test matches %q: the list of those that are not run is stale", s.test)
		}
	}
	for _, name := range upstreamCI {
		if !slices.ContainsFunc(runs, func(r string) bool { return strings.Contains(r, name) }) {
			t.Errorf("no test that runs has %q in its name: the list of CI's is stale", name)
		}
	}
	var parts []string
	for part := range 4 {
		parts = append(parts, upstreamPart(runs, part+1, 4)...)
	}
	slices.Sort(parts)
	if !slices.Equal(parts, runs) {
		t.Errorf("four parts have %d tests, all have %d", len(parts), len(runs))
	}
	t.Logf("%d of %d tests of sig-network run", len(runs), len(all))
}

// upstreamTests lists the tests of sig-network, and those of them that run on so many nodes, sorted.
func upstreamTests(t *testing.T, programs string, nodes int) (all, runs []string) {
	t.Helper()
	focus, left := regexp.MustCompile(upstreamFocus), regexp.MustCompile(strings.Join(upstreamLeft(nodes), "|"))
	for line := range strings.Lines(output(t, filepath.Join(programs, "e2e.test"), "--list-tests")) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if !focus.MatchString(name) {
			continue
		}
		all = append(all, name)
		if !left.MatchString(name) {
			runs = append(runs, name)
		}
	}
	slices.Sort(runs)
	return all, runs
}

// upstreamPart returns every count-th of the sorted tests from the part-th on: a test stays in its
// part while Kubernetes' version stays, and tests of one kind, which take about as long as one
// another, are spread over all parts.
func upstreamPart(tests []string, part, count int) (some []string) {
	for i := part - 1; i < len(tests); i += count {
		some = append(some, tests[i])
	}
	return some
}

// upstreamLeft are expressions for the tests that are not run with so many nodes: two are Neutron's.
func upstreamLeft(nodes int) (not []string) {
	for _, s := range upstreamSkipped {
		if s.because == oneNode && nodes > 1 || (s.because == byNodes || s.because == noOctavia) && nodes == 1 {
			continue
		}
		not = append(not, s.test)
	}
	return not
}

// upstreamChosen returns ginkgo's expressions of the tests to run and of those to skip. focusEnv
// says what chosen may be. count is the number of tests, 0 if chosen does not tell.
func upstreamChosen(t *testing.T, programs, chosen string, nodes int) (focus, skip string, count int) {
	t.Helper()
	skip = strings.Join(upstreamLeft(nodes), "|")
	var some []string
	part := regexp.MustCompile(`^([1-9][0-9]*)/([1-9][0-9]*)$`).FindStringSubmatch(cmp.Or(chosen, "1/1"))
	switch {
	case chosen == "ci":
		for _, name := range upstreamCI {
			some = append(some, regexp.QuoteMeta(name))
		}
		count = len(some)
	case part != nil:
		number, _ := strconv.Atoi(part[1])
		parts, _ := strconv.Atoi(part[2])
		_, runs := upstreamTests(t, programs, nodes)
		for _, name := range upstreamPart(runs, number, parts) {
			some = append(some, regexp.QuoteMeta(name)+" ?$") // the list has lost the space at some names' end
		}
		if count = len(some); number > parts || count == 0 {
			t.Fatalf("invalid %s %q: no such part of %d tests", focusEnv, chosen, len(runs))
		}
	default:
		return chosen, skip, 0
	}
	return strings.Join(some, "|"), skip, count
}
