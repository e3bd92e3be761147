package neutronapi

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

// still is a provider that refuses every change of what FuzzParts asks for, so that only what is read and judged counts.
type still struct{ sdn.Provider }

var errStill = sdn.Conflict(sdn.Exists, "object", "", "nothing is changed here")

func (still) ApplySecurityGroup(context.Context, sdn.SecurityGroupSpec) (sdn.SecurityGroup, error) {
	return sdn.SecurityGroup{}, errStill
}

func (still) ApplyAddressGroup(context.Context, sdn.AddressGroupSpec) (sdn.AddressGroup, error) {
	return sdn.AddressGroup{}, errStill
}

func (still) ApplyQoSPolicy(context.Context, sdn.QoSPolicySpec) (sdn.QoSPolicy, error) {
	return sdn.QoSPolicy{}, errStill
}

func (still) EnsureRouter(context.Context, sdn.RouterSpec) (sdn.Router, error) {
	return sdn.Router{}, errStill
}

func (still) UpdateRouter(context.Context, sdn.ID, sdn.RouterPatch) (sdn.Router, error) {
	return sdn.Router{}, errStill
}
func (still) AttachSubnet(context.Context, sdn.ID, sdn.ID, netip.Addr) error { return errStill }
func (still) DetachSubnet(context.Context, sdn.ID, sdn.ID) error             { return errStill }

func (still) EnsureFloatingIP(context.Context, sdn.FloatingIPSpec) (sdn.FloatingIP, error) {
	return sdn.FloatingIP{}, errStill
}

func (still) UpdateFloatingIP(context.Context, sdn.ID, sdn.FloatingIPPatch) (sdn.FloatingIP, error) {
	return sdn.FloatingIP{}, errStill
}

func (still) EnsureForwards(context.Context, sdn.ID, []sdn.Forward) ([]sdn.Forward, error) {
	return nil, errStill
}

func (still) Publish(context.Context, sdn.PublicationSpec) (sdn.Publication, error) {
	return sdn.Publication{}, errStill
}
func (still) Unpublish(context.Context, sdn.Key) error { return errStill }

// FuzzParts: whatever is sent to the paths of what is made of parts, the answer is a refusal that says why, never a failure of the server.
func FuzzParts(f *testing.F) {
	seeds := []string{
		`{"security_group_rule": {"security_group_id": "%s", "direction": "ingress", "protocol": 6, "port_range_min": "1", "port_range_max": 2, "remote_ip_prefix": "0.0.0.0/0"}}`,
		`{"security_group_rules": [{"security_group_id": "%s", "direction": "egress"}, {"security_group_rule": {}}]}`,
		`{"security_group": {"name": "a", "stateful": "yes"}}`,
		`{"router": {"external_gateway_info": {"network_id": "%s", "external_fixed_ips": [{"ip_address": null}]}, "routes": [{"destination": "10.0.0.0/8", "nexthop": "10.0.0.1"}]}}`,
		`{"floatingip": {"floating_network_id": "%s", "port_id": "%s", "fixed_ip_address": "10.0.0.1"}}`,
		`{"port_forwarding": {"protocol": "tcp", "external_port_range": "1:2", "internal_port": 3, "internal_port_id": "%s"}}`,
		`{"publication": {"description": "kuryr/a/b/c", "ports": [{"host_ip_address": "::", "protocol": "udp",
			"external_port": 1, "internal_port_range": "1:0", "internal_port_id": "%s"}]}}`,
		`{"bandwidth_limit_rule": {"max_kbps": "1e9", "direction": "x"}}`, `{"dscp_marking_rule": {"dscp_mark": 8}}`, `{"policy": []}`,
		`{"address_group": {"addresses": ["%s", {}]}}`, `{"subnet_id": "%s", "port_id": {}}`, `{"addresses": null}`, `null`,
	}
	for i, seed := range seeds {
		f.Add(uint(i), uint(i), seed)
	}
	ctx := context.Background()
	must := func(err error) {
		f.Helper()
		if err != nil {
			f.Fatal(err)
		}
	}
	p, err := local.Open(ctx, local.Options{Path: filepath.Join(f.TempDir(), "k.db"), Host: "h"})
	must(err)
	f.Cleanup(func() { _ = p.Close() })
	outside := p.Capabilities().ExternalNetwork
	group, err := p.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{Base: sdn.Base{Name: "g"}, Rules: egressRules()})
	must(err)
	set, err := p.ApplyAddressGroup(ctx, sdn.AddressGroupSpec{Base: sdn.Base{Name: "s"}})
	must(err)
	policy, err := p.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{Base: sdn.Base{Name: "q"}})
	must(err)
	router, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: outside, SNAT: true}})
	must(err)
	network, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: netip.MustParsePrefix("10.1.0.0/24")}}})
	must(err)
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: network.ID}})
	must(err)
	fip, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: outside})
	must(err)
	h := As(root, NewHandler(still{p}, Options{}))
	known := []string{string(group.ID), string(outside), string(ports[0].ID), string(network.Subnets[0]), string(set.ID)}
	at := func(format string, id sdn.ID) string { return fmt.Sprintf(format, id) }
	requests := []string{
		"POST security-group-rules", "POST security-groups", at("PUT security-groups/%s", group.ID), "POST routers", at("PUT routers/%s", router.ID),
		at("PUT routers/%s/add_router_interface", router.ID), at("PUT routers/%s/remove_router_interface", router.ID), at("PUT routers/%s/add_extraroutes", router.ID),
		"POST floatingips", at("PUT floatingips/%s", fip.ID), at("POST floatingips/%s/port_forwardings", fip.ID), "POST qos/policies", at("PUT qos/policies/%s", policy.ID),
		at("POST qos/policies/%s/bandwidth_limit_rules", policy.ID), at("POST qos/policies/%s/dscp_marking_rules", policy.ID), "POST address-groups", at("PUT address-groups/%s/add_addresses", set.ID),
		"PUT kuryr-publications",
	}
	f.Fuzz(func(t *testing.T, which, id uint, body string) {
		body = strings.ReplaceAll(body, "%s", known[id%uint(len(known))])
		for n := range uint(len(requests)) {
			if which < uint(len(requests)) && n != which {
				continue
			}
			method, path, _ := strings.Cut(requests[n], " ")
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), method, "/v2.0/"+path, strings.NewReader(body)))
			said := fmt.Sprintf("%s %q: %d %s", requests[n], body, answer.Code, answer.Body)
			switch {
			case answer.Code >= 500 && answer.Code != http.StatusNotImplemented:
				t.Error(said)
			case answer.Code >= 400 && !strings.Contains(answer.Body.String(), `"message":"`):
				t.Error("no message: " + said)
			}
		}
	})
}
