//go:build e2e

package kubernetes_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// upstreamFocus are Kubernetes' tests of sig-network: all of them, but for what upstreamSkipped names.
const upstreamFocus = `^\[sig-network\]`

// Reasons that several tests share.
const (
	oneNode  = "wants two nodes, and the embedded SDN serves one machine; with KURYR_E2E_UPSTREAM_NEUTRON it runs on two of Neutron's"
	measures = "measures, and judges nothing"
	internet = "wants the Internet"
	ofProxy  = "is about kube-proxy, which does not run"
)

// upstreamSkipped are the tests of sig-network that are not run, each class with its reason. Each matches some; what skips itself must be here, too.
var upstreamSkipped = []struct{ test, because string }{
	{`Netpol .*NetworkPolicy between server and client`, "Kuryr does not enforce NetworkPolicy yet"},
	{`SCTP`, "the kernels of small machines have no SCTP, and its servers do not start there; datapath/lb writes the rules in its tests"},
	{`LoadBalancers .*Feature:LoadBalancer`, "wants a cloud's load balancers, and node ports by SSH; TestServices has floating IPs of the embedded SDN"},
	{`recreate its iptables rules if they are deleted`, "deletes rules of iptables by SSH; Kuryr's are of nftables, and TestServices deletes them"},
	{`Services should work after restarting (kube-proxy|apiserver)`, "wants both to be pods of the cluster; TestServicesKilled does so with Kuryr's parts"},
	{`KubeProxy should|should check kube-proxy urls`, ofProxy},
	{`Feature:Networking-IPv[46]|Feature:Networking-DNS`, internet},
	{`Networking IPerf2|Feature:PerformanceDNS`, measures},
	{`should provide DNS for the cluster \[Provider:GCE\]`, "asks for names of Google's, of its cloud alone"},
	{`Feature:OffByDefault`, "wants a feature gate that is off by default"},
	{`Proxy version v1 should proxy logs on node`, "wants the kubelet's /var/log, which is not in the nodes of this lab"},
	{`via ExternalIP when the external IP is not assigned to a node`, "claims an address that no range of node.external_ips allows, which is CVE-2020-8554; TestServices claims one that is allowed"},
	{`(Topology Hints|Traffic Distribution) should`, "wants three zones of nodes, the first with equal processors; TestServices has hints"},
	{`implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes`, "wants three nodes; TestServices changes it on one"},
	{`Conntrack should be able to|Conntrack proxy implementation`, oneNode},
	{`Services should (fail health check|fallback to|respect internalTrafficPolicy|support externalTrafficPolicy|preserve source pod IP)`, oneNode},
	{`unready endpoints if PublishNotReadyAddresses is`, oneNode},
}

// upstreamCI are the tests that .ci/run has time for: of each part of Services and of the network one or two with packets.
var upstreamCI = []string{
	`Services should be rejected when no endpoints exist`,
}

// TestUpstreamList holds the lists against the tests that there are.
func TestUpstreamList(t *testing.T) {
	t.Parallel()
	focus := regexp.MustCompile(upstreamFocus)
	var all, runs []string
	for line := range strings.Lines(output(t, filepath.Join(upstreamPrograms(t), "e2e.test"), "--list-tests")) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if !focus.MatchString(name) {
			continue
		}
		all = append(all, name)
		if !slices.ContainsFunc(upstreamSkipped, func(s struct{ test, because string }) bool { return regexp.MustCompile(s.test).MatchString(name) }) {
			runs = append(runs, name)
		}
	}
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
	t.Logf("%d of %d tests of sig-network run", len(runs), len(all))
}

// upstreamChosen are the expressions for ginkgo: the tests to run, and those not to run. A focus of "ci" stands for CI's list.
func upstreamChosen(chosen string, nodes int) (focus, skip string) {
	var not, some []string
	for _, s := range upstreamSkipped {
		if nodes == 1 || s.because != oneNode {
			not = append(not, s.test)
		}
	}
	switch chosen {
	case "":
		chosen = upstreamFocus
	case "ci":
		for _, name := range upstreamCI {
			some = append(some, regexp.QuoteMeta(name))
		}
		chosen = strings.Join(some, "|")
	}
	return chosen, strings.Join(not, "|")
}
