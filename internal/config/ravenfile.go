package config

import (
	"errors"
	"slices"
	"strings"
)

// ravenOptions are those of kuryr-kubernetes' controller that mean something: its file
// names the same things for one and the same cluster.
var ravenOptions = []peerOption{
	{"DEFAULT.debug", "log.level", debugLevel},
	{"kubernetes.api_root", "kubernetes.api_server", nil},
	{"kubernetes.token_file", "kubernetes.token_file", nil},
	{"kubernetes.ssl_ca_crt_file", "kubernetes.ca_file", nil},
	{"kubernetes.ssl_client_crt_file", "kubernetes.cert_file", nil},
	{"kubernetes.ssl_client_key_file", "kubernetes.key_file", nil},
	{"kubernetes.ssl_verify_server_crt", "", func(_ *Config, v string) (string, error) {
		if v, err := oslobool(nil, v); err != nil || v == "true" {
			return "", err
		}
		return "", errors.New("is false, and the certificate is verified nevertheless: see kubernetes.insecure")
	}},
	{"neutron_defaults.project", "neutron.project", nil},
	{"neutron_defaults.pod_security_groups", "controller.security_groups", nil},
	{"neutron_defaults.external_svc_net", "controller.public_network", nil},
	{"namespace_subnet.pod_router neutron_defaults.pod_router", "controller.router", nil},
	{"namespace_subnet.pod_subnet_pool", "controller.subnet_pools", nil},
	{"kubernetes.pod_vif_driver", "controller.nested", func(_ *Config, v string) (string, error) {
		switch v {
		case "nested-vlan":
			return "vlan", nil
		case "neutron-vif", "":
			return "", nil
		}
		return "", errors.New("is " + v + ", which is not served: nodes have neutron-vif or nested-vlan")
	}},
	{"pod_vif_nested.worker_nodes_subnets pod_vif_nested.worker_nodes_subnet", "controller.worker_nodes_subnets", nil},
	{"kubernetes.endpoints_driver_octavia_provider", "neutron.load_balancer_provider",
		func(_ *Config, v string) (string, error) {
			if v == "default" {
				return "", nil
			}
			return v, nil
		}},
	{"vif_pool.ports_pool_min", "controller.pool_minimum", nil},
	{"vif_pool.ports_pool_max", "controller.pool_maximum", nil},
	{"vif_pool.ports_pool_batch", "controller.pool_batch", nil},
	{
		"prometheus_exporter.controller_exporter_port", "controller.listen",
		func(_ *Config, v string) (string, error) { return "127.0.0.1:" + v, nil },
	},
}

// ravenPassedOver are the options that need no warning: what they ask for is so in any case.
var ravenPassedOver = []string{
	"kubernetes.controller_ha", "kubernetes.use_events", "kubernetes.pod_project_driver",
	"kubernetes.namespace_project_driver",
	"vif_pool.ports_pool_update_frequency", "kubernetes.watch_retry_timeout",
	"kubernetes.watch_connection_timeout", "kubernetes.watch_read_timeout",
	"kubernetes.watch_reconcile_period", "DEFAULT.bindir", "kubernetes.service_project_driver",
	"kubernetes.service_public_ip_driver", "kubernetes.service_subnets_driver",
	"kubernetes.endpoints_lbaas_driver", "kubernetes.lb_members_driver", "neutron_defaults.lbaas_activation_timeout",
}

// ravenMeant tells what in place of an option that is not served.
var ravenMeant = map[string]string{
	"kubernetes.pod_subnets_driver": "every namespace has its own network, unless " +
		"controller.network names one for all",
	"neutron_defaults.pod_subnet": "one network for all namespaces is controller.network, " +
		"with controller.subnets",
	"neutron_defaults.service_subnet": "the VIP network is made of controller.service_ranges",
	"octavia_defaults.lb_algorithm":   "a Service says so by its annotation loadbalancer.openstack.org/lb-method",
	"octavia_defaults.timeout_client_data": "a Service says so by its annotation " +
		"loadbalancer.openstack.org/timeout-client-data",
	"octavia_defaults.timeout_member_data": "a Service says so by its annotation " +
		"loadbalancer.openstack.org/timeout-member-data",
	"octavia_defaults.member_mode":         "a member's subnet follows from its address",
	"octavia_defaults.enforce_sg_rules":    "a Service says who may connect by spec.loadBalancerSourceRanges",
	"neutron_defaults.external_svc_subnet": "the SDN chooses the subnet of controller.public_network",
	"kubernetes.vif_pool_driver":           "there are always pools; controller.pool_minimum 0 keeps nothing ready",
	"pod_vif_nested.link_iface": "a node's daemon finds the interface by its MAC, " +
		"unless its bind.link_interface names one",
	"kubernetes.multi_vif_drivers":   "pods have one interface",
	"neutron_defaults.resource_tags": "what Kuryr makes has its Key and its tag",
}

// loadRaven lays the file of the Kubernetes controller over c.
func loadRaven(c *Config, src Source) error {
	data, err := readPeer(src.Raven, src.RavenMust)
	if err != nil || data == nil {
		return err
	}
	values, err := readOptions(src.Raven, data)
	if err != nil {
		return err
	}
	if err := layOptions(
		c, src.Raven, values, slices.Concat(ravenOptions, neutronOptions()), ravenPassedOver,
	); err != nil {
		return err
	}
	for i := range c.Ignored {
		for name, meant := range ravenMeant {
			if strings.HasSuffix(c.Ignored[i], shownOption(name)+" is not served") {
				c.Ignored[i] += ": " + meant
			}
		}
	}
	return nil
}

// RavenSecrets names the options of a file in kuryr-kubernetes' form that hold a
// password, a secret or a token, such as "[neutron] password", in order. name is what
// errors call the file.
func RavenSecrets(name, text string) ([]string, error) {
	values, err := readOptions(name, []byte(text))
	if err != nil {
		return nil, err
	}
	var secrets []string
	for option, value := range values {
		ends := func(word string) bool { return strings.HasSuffix(strings.ToLower(option), word) }
		if value != "" && slices.ContainsFunc([]string{"password", "secret", "token"}, ends) {
			secrets = append(secrets, shownOption(option))
		}
	}
	slices.Sort(secrets)
	return secrets, nil
}

// neutronOptions are those of the section neutron, which both peers' files have alike.
func neutronOptions() (all []peerOption) {
	for _, o := range peerOptions {
		if strings.HasPrefix(o.names, "neutron.") {
			all = append(all, o)
		}
	}
	return all
}

func debugLevel(_ *Config, v string) (string, error) {
	if v, err := oslobool(nil, v); err != nil || v == "false" {
		return "", err
	}
	return "debug", nil
}
