package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func loadRavenText(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "raven.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(Source{Path: "/absent", Raven: path, RavenMust: true})
}

func TestRavenFile(t *testing.T) {
	t.Parallel()
	c, err := loadRavenText(t, `
[DEFAULT]
debug = yes
[kubernetes]
api_root = https://10.0.0.1:6443
token_file = /run/token
ssl_ca_crt_file = /etc/ca.pem
ssl_verify_server_crt = False
pod_subnets_driver = namespace
vif_pool_driver = neutron
pod_vif_driver = nested-vlan
[pod_vif_nested]
worker_nodes_subnets = w1,w2
link_iface = ens3
[neutron]
auth_url = http://keystone:5000/v3
username = kuryr
password = secret
[neutron_defaults]
project = p1
pod_security_groups = g1,g2
external_svc_net = ext
pod_subnet = s1
ovs_bridge = br-int
[namespace_subnet]
pod_router = r1
pod_subnet_pool = sp1
[vif_pool]
ports_pool_min = 3
ports_pool_max = 40
ports_pool_batch = 7
ports_pool_update_frequency = 20
`)
	if err != nil {
		t.Fatal(err)
	}
	k, o := c.Kubernetes, c.Controller
	if c.Provider != ProviderNeutron || k.APIServer != "https://10.0.0.1:6443" ||
		k.TokenFile != "/run/token" || k.CAFile != "/etc/ca.pem" || c.Neutron.Project != "p1" ||
		c.Neutron.Credentials.Username != "kuryr" {
		t.Errorf("%s, %+v, %+v", c.Provider, k, c.Neutron)
	}
	if o.Router != "r1" || o.PublicNetwork != "ext" || !slices.Equal(o.SubnetPools, []string{"sp1"}) ||
		!slices.Equal(o.SecurityGroups, []string{"g1", "g2"}) ||
		o.Nested != "vlan" || !slices.Equal(o.WorkerNodesSubnets, []string{"w1", "w2"}) ||
		o.PoolMinimum != 3 || o.PoolMaximum != 40 || o.PoolBatch != 7 {
		t.Errorf("%+v", o)
	}
	for _, want := range []string{
		"[kubernetes] ssl_verify_server_crt is false, and the certificate is verified nevertheless",
		"[neutron_defaults] ovs_bridge is not served",
		"[neutron_defaults] pod_subnet is not served: one network for all namespaces is " +
			"controller.network", "[kubernetes] vif_pool_driver is not served: there are always pools",
		"[pod_vif_nested] link_iface is not served: a node's daemon finds the interface by its MAC",
	} {
		if !slices.ContainsFunc(c.Ignored, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("nobody is warned: %q\n%s", want, strings.Join(c.Ignored, "\n"))
		}
	}
	if slices.ContainsFunc(
		c.Ignored,
		func(s string) bool {
			return strings.Contains(s, "secret") || strings.Contains(s, "update_frequency")
		},
	) {
		t.Errorf("warned of %q", c.Ignored)
	}
}

func TestRavenFileErrors(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"[vif_pool]\nports_pool_min = many\n":          "[vif_pool] ports_pool_min: controller.pool_minimum: want a number",
		"[kubernetes]\nssl_ca_crt_file = ca\n":         "[kubernetes] ssl_ca_crt_file: kubernetes.ca_file: want a whole path",
		"no section\n":                                 "is not of kuryr.conf's form",
		"[kubernetes]\npod_vif_driver = nested-vlan\n": "controller.worker_nodes_subnets: is needed with controller.nested",
	} {
		if _, err := loadRavenText(t, text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
	if _, err := Load(Source{Path: "/absent", Raven: "/absent.conf", RavenMust: true}); err == nil {
		t.Error("an absent file that was asked for is no error")
	}
}

// The peer's other drivers of pods' interfaces: one is how it is anyway, the rest are warned of.
func TestRavenFileDrivers(t *testing.T) {
	t.Parallel()
	for driver, warned := range map[string]bool{"neutron-vif": false, "nested-macvlan": true, "nested-dpdk": true} {
		c, err := loadRavenText(t, "[kubernetes]\npod_vif_driver = "+driver+"\n")
		says := slices.ContainsFunc(c.Ignored, func(s string) bool {
			return strings.Contains(s, "pod_vif_driver is "+driver+", which is not served")
		})
		if err != nil || c.Controller.Nested != "" || says != warned {
			t.Errorf("%s: %v, nested %q, warned of %q", driver, err, c.Controller.Nested, c.Ignored)
		}
	}
}

func TestControllerSettings(t *testing.T) {
	t.Parallel()
	for key, values := range map[string]map[string]string{
		"controller.pod_ranges": {
			"10.0.0.0/8,fd00::/48": "", "10.0.0.0/8,11.0.0.0/8": "one range of each family",
			"10.0.0.1/8": "bits set",
		},
		"controller.security_groups": {"a,b": "", "a,a": "given twice"},
		"controller.audit":           {"0": "", "1h": "", "1s": "at least 1m"},
		"kubernetes.api_server":      {"https://a:6443": "", "a:6443": "want http"},
	} {
		for value, says := range values {
			_, err := Load(Source{Path: "/absent", Flags: map[string]string{key: value}})
			if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
				t.Errorf("%s=%s: %v, want %q", key, value, err, says)
			}
		}
	}
	if _, err := Load(Source{Path: "/absent", Flags: map[string]string{
		"kubernetes.token_file": "/t",
	}}); err == nil || !strings.Contains(err.Error(), "kubernetes.api_server") {
		t.Errorf("a token for no server: %v", err)
	}
	isolated := map[string]string{"controller.underlay_isolation": "true"}
	if _, err := Load(Source{Path: "/absent", Flags: isolated}); err == nil ||
		!strings.Contains(err.Error(), "controller.node_networks") {
		t.Errorf("isolation from no network: %v", err)
	}
	isolated["controller.node_networks"] = "192.0.2.0/24,2001:db8::/64"
	if c, err := Load(Source{Path: "/absent", Flags: isolated}); err != nil ||
		!c.Controller.UnderlayIsolation || len(c.Controller.NodeNetworks) != 2 {
		t.Errorf("isolation: %+v, %v", c.Controller, err)
	}
	isolated["controller.security_groups"] = "a"
	if _, err := Load(Source{Path: "/absent", Flags: isolated}); err == nil ||
		!strings.Contains(err.Error(), "controller.security_groups") {
		t.Errorf("isolation beside groups: %v", err)
	}
}
