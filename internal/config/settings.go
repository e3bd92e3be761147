package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/logging"
)

const envPrefix = "KURYR_"

// Setting is one thing that can be set. Its place in the file is Key; its environment
// variable and its flag follow from that.
type Setting struct {
	Key  string // "docker.capability_scope"
	Help string // one line
	List bool   // a sequence in the file, separated by commas elsewhere
	// Form is what a value is, in one word for help texts: "path", "range", "number". It is
	// "choice" where Choices are all that there are.
	Form    string
	Choices []string

	set func(c *Config, values []string) error // one value, unless List
	get func(c *Config) string                 // as it would be given in the environment
}

// Env is the name of the environment variable: KURYR_ and the key in capitals with
// underscores for dots.
func (s *Setting) Env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.Key, ".", "_"))
}

// Flag is the name of the flag: the key with hyphens for dots and underscores.
func (s *Setting) Flag() string { return hyphens.Replace(s.Key) }

var hyphens = strings.NewReplacer(".", "-", "_", "-")

// defaults are read only: each command asks for those of all its flags.
var defaults = Default()

// Default is the value without any source, as it would be given in the environment; "" is
// said of what is found out when it is needed.
func (s *Setting) Default() string { return s.get(&defaults) }

// Value is what c has, as it would be given in the environment.
func (s *Setting) Value(c Config) string { return s.get(&c) }

// Check reports what is wrong with a value, or with the values of a list.
func (s *Setting) Check(values ...string) error {
	c := Default()
	return s.set(&c, values)
}

func (s *Setting) apply(c *Config, where string, values []string) error {
	if err := s.set(c, values); err != nil {
		return &Error{Where: where, Key: s.Key, Detail: err.Error()}
	}
	return nil
}

// Forms of values that are no text.
const (
	FormBool   = "bool"
	FormNumber = "number"
	FormRange  = "range"

	formChoice = "choice"
)

// Settings are all there are, in the order of the sample.
func Settings() []*Setting { return settings }

// Lookup finds a setting by its key, nil if there is none.
func Lookup(key string) *Setting {
	for _, s := range settings {
		if s.Key == key {
			return s
		}
	}
	return nil
}

func byName(env string) *Setting {
	for _, s := range settings {
		if s.Env() == env {
			return s
		}
	}
	return nil
}

// Default is what holds where nothing is set.
func Default() Config {
	return Config{
		StateDir: "/var/lib/kuryr",
		RunDir:   "/run/kuryr",
		Provider: ProviderLocal,
		Log:      Log{Format: logging.Text},
		Docker: Docker{
			Socket:          "/run/docker/plugins/kuryr.sock",
			CapabilityScope: "local",
			API:             "/var/run/docker.sock",
			DefaultPools:    []netip.Prefix{netip.MustParsePrefix("10.200.0.0/13"), netip.MustParsePrefix("10.224.0.0/13")},
			DefaultPoolLen:  24,
			DefaultPoolsV6:  []netip.Prefix{netip.MustParsePrefix("fd6b:7572:7972::/48")},
			DefaultPoolLen6: 64,
			ForgetAfter:     2 * time.Minute,

			ProcessExternalConnectivity: true,
		},
		Kurma: Kurma{Config: "/etc/kuryr/kurma.json"},
		Node:  Node{WaitActive: 10 * time.Second, LoadBalancers: LoadBalancersSDN, HealthListen: ":10256"},
		SDN: SDN{
			UplinkRanges: []netip.Prefix{
				netip.MustParsePrefix("100.64.0.0/16"),
				netip.MustParsePrefix("100.96.0.0/16"),
				netip.MustParsePrefix("198.18.0.0/16"),
				netip.MustParsePrefix("10.255.0.0/16"),
				netip.MustParsePrefix("192.168.240.0/20"),
			},
			PortsPerNetwork: 1023,
			Tokens:          "/etc/kuryr/tokens",
			Rate:            200,
		},
		Neutron:    Neutron{Timeout: 15 * time.Second},
		Controller: defaultController(),
		Bind: Bind{
			OVSDBSocket:       "/var/run/openvswitch/db.sock",
			IntegrationBridge: "br-int",
			Executables:       "/usr/libexec/kuryr",
		},
	}
}

// The SDNs of this machine: the embedded one in the process that asks for it, and in a
// process of its own.
const (
	ProviderLocal = "local"
	ProviderSDN   = "sdn"
)

// MaxPortsPerNetwork is what the kernel's bridge holds (BR_MAX_PORTS).
const MaxPortsPerNetwork = 1023

var settings = slices.Concat(
	generalSettings, nodeSettings, neutronSettings, bindSettings, servedSettings, kubernetesSettings,
	controllerSettings, kurmaSettings,
)

var generalSettings = []*Setting{
	text(
		"state_dir", "folder of what must survive a restart (the store)", absolute,
		func(c *Config) *string { return &c.StateDir },
	),
	text("run_dir", "folder of sockets and namespaces", absolute, func(c *Config) *string { return &c.RunDir }),
	text(
		"host", "name of this machine in the SDN; empty is the machine's own name", word,
		func(c *Config) *string { return &c.Host },
	),
	text("provider",
		"SDN that `kuryr docker` and `kuryr node` serve: local, the embedded one in the same "+
			"process, sdn, that of a `kuryr sdn` on this machine, or neutron",
		oneOf(ProviderLocal, ProviderSDN, ProviderNeutron), func(c *Config) *string { return &c.Provider }),
	text("installation",
		"name that marks what this installation makes in the SDN; empty is one made up at the first "+
			"start and kept in state_dir", orNone(installation),
		func(c *Config) *string { return &c.Installation }),
	{
		Key: "log.level", Help: "least level that is logged: debug, info, warn or error",
		Form: formChoice, Choices: []string{"debug", "info", "warn", "error"},
		set: func(c *Config, values []string) (err error) {
			c.Log.Level, err = logging.ParseLevel(values[0])
			return err
		},
		get: func(c *Config) string { return strings.ToLower(c.Log.Level.String()) },
	},
	text(
		"log.format", "form of log lines: text or json", oneOf(logging.Text, logging.JSON),
		func(c *Config) *string { return &c.Log.Format },
	),
	text(
		"docker.socket",
		"socket on which the Docker engine calls the plugin; empty, with docker.listen, is none",
		absoluteOrNone, func(c *Config) *string { return &c.Docker.Socket },
	),
	text("docker.listen",
		"tcp://ADDR:PORT where the Docker engine may call the plugin besides, by TLS with client "+
			"certificates; empty is nowhere", tcpURL,
		func(c *Config) *string { return &c.Docker.Listen }),
	text(
		"docker.tls_cert", "file with the plugin's certificate, for docker.listen", absoluteOrNone,
		func(c *Config) *string { return &c.Docker.TLSCert },
	),
	text(
		"docker.tls_key", "file with the plugin's private key, for docker.listen", absoluteOrNone,
		func(c *Config) *string { return &c.Docker.TLSKey },
	),
	text("docker.tls_client_ca",
		"file with the authorities of the Docker engine's certificate, for docker.listen", absoluteOrNone,
		func(c *Config) *string { return &c.Docker.TLSClientCA }),
	list("docker.tls_client_names", "names of which the Docker engine's certificate must have one, as its common name or "+
		"an alternative name; empty allows each certificate by docker.tls_client_ca", printable,
		func(c *Config) *[]string { return &c.Docker.TLSClientNames }),
	text("docker.capability_scope",
		"scope of the networks: local, or global for a Swarm whose managers share this SDN",
		oneOf("local", "global"),
		func(c *Config) *string { return &c.Docker.CapabilityScope }),
	text("docker.connectivity_scope",
		"how far the networks reach, as Docker is told: local or global; empty is as capability_scope",
		orNone(oneOf("local", "global")),
		func(c *Config) *string { return &c.Docker.ConnectivityScope }),
	text("docker.api",
		"socket of the Docker engine's own interface, which is asked for the names of containers and "+
			"for what Docker has forgotten; empty never asks", absoluteOrNone,
		func(c *Config) *string { return &c.Docker.API }),
	prefixes(
		"docker.default_pools", "IPv4 ranges that networks without a --subnet are cut from", is4,
		func(c *Config) *[]netip.Prefix { return &c.Docker.DefaultPools },
	),
	number(
		"docker.default_pool_size", "prefix length of an IPv4 subnet cut from a default pool", 8, 30,
		func(c *Config) *int { return &c.Docker.DefaultPoolLen },
	),
	prefixes(
		"docker.default_pools_v6",
		"IPv6 ranges that networks with --ipv6 and without an IPv6 --subnet are cut from", is6,
		func(c *Config) *[]netip.Prefix { return &c.Docker.DefaultPoolsV6 },
	),
	number(
		"docker.default_pool_size_v6", "prefix length of an IPv6 subnet cut from a default pool", 16, 126,
		func(c *Config) *int { return &c.Docker.DefaultPoolLen6 },
	),
	boolean("docker.delete_empty_subnets",
		"delete a subnet with the last container that had an address of it, and make it again for "+
			"the next",
		func(c *Config) *bool { return &c.Docker.DeleteEmptySubnets }),
	duration("docker.forget_after",
		"how long something must be unknown to Docker before it is removed, such as 2m; 0 never removes",
		time.Second,
		func(c *Config) *time.Duration { return &c.Docker.ForgetAfter }),
	boolean("docker.process_external_connectivity",
		"let the ports that containers expose through the SDN's security groups, where it has them",
		func(c *Config) *bool { return &c.Docker.ProcessExternalConnectivity }),
	duration("docker.wait_active",
		"how long a container's start waits for the SDN to say that its port carries traffic, and "+
			"fails if it does not; 0 does not wait", time.Second,
		func(c *Config) *time.Duration { return &c.Docker.WaitActive }),
	nonEmpty(prefixes("sdn.uplink_ranges",
		"IPv4 ranges, the first that the host has no route to is taken at the first start, for the "+
			"links between routers and the host",
		is4, func(c *Config) *[]netip.Prefix { return &c.SDN.UplinkRanges })),
	number(
		"sdn.ports_per_network", "most ports that one network holds; a Linux bridge takes 1023", 1,
		MaxPortsPerNetwork, func(c *Config) *int { return &c.SDN.PortsPerNetwork },
	),
	text(
		"sdn.socket",
		"socket of the embedded SDN's API, which is root's alone; empty is sdn.sock in run_dir",
		absoluteOrNone, func(c *Config) *string { return &c.SDN.Socket },
	),
	text(
		"sdn.listen",
		"host:port where the embedded SDN's API is served besides, by TLS and with tokens; empty is "+
			"nowhere",
		listenAddr, func(c *Config) *string { return &c.SDN.Listen },
	),
	text(
		"sdn.tls_cert", "file with the API's certificate, for sdn.listen", absoluteOrNone,
		func(c *Config) *string { return &c.SDN.TLSCert },
	),
	text(
		"sdn.tls_key", "file with the API's private key, for sdn.listen", absoluteOrNone,
		func(c *Config) *string { return &c.SDN.TLSKey },
	),
	text(
		"sdn.tokens", "file with the tokens and users that may use the API at sdn.listen, root's alone",
		absolute, func(c *Config) *string { return &c.SDN.Tokens },
	),
	number(
		"sdn.rate",
		"requests a second that the API at sdn.listen serves to one token or user, twice as many at "+
			"once; 0 is no bound",
		0, 1000000, func(c *Config) *int { return &c.SDN.Rate },
	),
}

var nodeSettings = []*Setting{
	text(
		"node.socket", "socket on which kuryr-cni calls `kuryr node`; empty is node.sock in run_dir",
		absoluteOrNone, func(c *Config) *string { return &c.Node.Socket },
	),
	text("node.conflist",
		"file that `kuryr node` writes when it is ready, by which container runtimes find it, such "+
			"as /etc/cni/net.d/10-kuryr.conflist; empty writes none",
		absoluteOrNone, func(c *Config) *string { return &c.Node.Conflist }),
	text(
		"node.network", "name of the network in node.conflist, which is the SDN's", orNone(word),
		func(c *Config) *string { return &c.Node.Network },
	),
	duration("node.wait_active",
		"how long an ADD waits for OVN's controller on this host to wire its port, and fails if it "+
			"does not; 0 does not wait", time.Second,
		func(c *Config) *time.Duration { return &c.Node.WaitActive }),
	boolean("node.services",
		"have the daemon of a cluster's node realise NodePorts, external addresses and what else of "+
			"Services is a node's, in place of kube-proxy",
		func(c *Config) *bool { return &c.Node.Services }),
	text("node.load_balancers",
		"who balances ClusterIPs, with node.services: sdn, or node, the kernel of each node, where "+
			"the SDN cannot", oneOf(LoadBalancersSDN, LoadBalancersNode),
		func(c *Config) *string { return &c.Node.LoadBalancers }),
	prefixes("node.node_port_addresses",
		"ranges of the node's addresses at which NodePorts and health checks of Services answer; "+
			"empty is all of its addresses", anyFamily,
		func(c *Config) *[]netip.Prefix { return &c.Node.NodePortAddresses }),
	text("node.health_listen",
		"host:port where load balancers ask, with node.services, whether a node is to have "+
			"connections (/healthz); empty is nowhere", listenAddr,
		func(c *Config) *string { return &c.Node.HealthListen }),
	prefixes(
		"node.external_ips",
		"ranges that externalIPs of Services may be of; empty allows none (CVE-2020-8554)", anyFamily,
		func(c *Config) *[]netip.Prefix { return &c.Node.ExternalIPs },
	),
	prefixes("node.load_balancer_ips",
		"ranges that load balancers' addresses in the status of Services may be of; empty allows all. "+
			"ClusterIPs of other Services are never allowed",
		anyFamily, func(c *Config) *[]netip.Prefix { return &c.Node.LoadBalancerIPs }),
}

func anyFamily(netip.Addr) error { return nil }

var servedSettings = []*Setting{
	text(
		"admin.socket", "socket of the kuryr command and of the API; empty is kuryr.sock in run_dir",
		absoluteOrNone, func(c *Config) *string { return &c.Admin.Socket },
	),
	text("metrics.listen",
		"host:port where /metrics, /healthz and /readyz are served besides the admin socket; empty is "+
			"nowhere", listenAddr,
		func(c *Config) *string { return &c.Metrics.Listen }),
}

// rule is what values of a form must be.
type rule struct {
	form    string
	choices []string
	check   func(string) error
}

func text(key, help string, r rule, field func(*Config) *string) *Setting {
	return &Setting{
		Key: key, Help: help, Form: r.form, Choices: r.choices,
		set: func(c *Config, values []string) error {
			if err := r.check(values[0]); err != nil {
				return err
			}
			*field(c) = values[0]
			return nil
		},
		get: func(c *Config) string { return *field(c) },
	}
}

func boolean(key, help string, field func(*Config) *bool) *Setting {
	return &Setting{
		Key: key, Help: help, Form: FormBool,
		set: func(c *Config, values []string) error {
			if err := oneOf("true", "false").check(values[0]); err != nil {
				return err
			}
			*field(c) = values[0] == "true"
			return nil
		},
		get: func(c *Config) string { return strconv.FormatBool(*field(c)) },
	}
}

func number(key, help string, least, most int, field func(*Config) *int) *Setting {
	return &Setting{
		Key: key, Help: help, Form: FormNumber,
		set: func(c *Config, values []string) error {
			n, err := strconv.Atoi(values[0])
			if err != nil || n < least || n > most {
				return fmt.Errorf("want a number from %d to %d, not %q", least, most, values[0])
			}
			*field(c) = n
			return nil
		},
		get: func(c *Config) string { return strconv.Itoa(*field(c)) },
	}
}

func duration(key, help string, least time.Duration, field func(*Config) *time.Duration) *Setting {
	return &Setting{
		Key: key, Help: help, Form: "duration",
		set: func(c *Config, values []string) error {
			d, err := time.ParseDuration(values[0])
			if err != nil || d != 0 && d < least || d > maxDuration {
				return fmt.Errorf("want a time of at least %s, such as 90s, 2m or 1h, or 0, not %q", least, values[0])
			}
			*field(c) = d
			return nil
		},
		get: func(c *Config) string { return shortDuration(*field(c)) },
	}
}

const maxDuration = 10 * 365 * 24 * time.Hour

// shortDuration is the text without the zeros that time.Duration ends in: 2m, not 2m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

func prefixes(key, help string, family func(netip.Addr) error, field func(*Config) *[]netip.Prefix) *Setting {
	return &Setting{
		Key: key, Help: help, List: true, Form: FormRange,
		set: func(c *Config, values []string) error {
			var all []netip.Prefix
			for _, v := range values {
				p, err := netip.ParsePrefix(v)
				if err != nil {
					return fmt.Errorf("%q is not a range such as 10.0.0.0/16", v)
				}
				if p != p.Masked() {
					return fmt.Errorf("%s has bits set beyond its length; the range is %s", p, p.Masked())
				}
				if err := family(p.Addr()); err != nil {
					return fmt.Errorf("%s: %w", p, err)
				}
				for _, other := range all {
					if other.Overlaps(p) {
						return fmt.Errorf("%s overlaps %s", p, other)
					}
				}
				all = append(all, p)
			}
			*field(c) = all
			return nil
		},
		get: func(c *Config) string {
			var out []string
			for _, p := range *field(c) {
				out = append(out, p.String())
			}
			return strings.Join(out, ",")
		},
	}
}

// nonEmpty refuses an empty list.
func nonEmpty(s *Setting) *Setting {
	set := s.set
	s.set = func(c *Config, values []string) error {
		if len(values) == 0 {
			return errors.New("want at least one")
		}
		return set(c, values)
	}
	return s
}

var installation = rule{form: "name", check: func(s string) error {
	if len(s) > 36 ||
		strings.ContainsFunc(
			s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' },
		) {
		return fmt.Errorf("want at most 36 of a-z, 0-9 and '-', not %q", s)
	}
	return nil
}}

var absolute = rule{form: "path", check: func(s string) error {
	if !filepath.IsAbs(s) || filepath.Clean(s) != s {
		return fmt.Errorf("want a whole path from / on, without . and .., not %q", s)
	}
	return nil
}}

var absoluteOrNone = orNone(absolute)

var word = rule{form: "name", check: func(s string) error {
	if len(s) > 255 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("want at most 255 printable characters without spaces, not %q", s)
	}
	return nil
}}

var printable = rule{form: "name", check: func(s string) error {
	if len(s) > 255 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		return fmt.Errorf("want at most 255 printable characters, not %q", s)
	}
	return nil
}}

// orNone takes nothing too.
func orNone(r rule) rule {
	check := r.check
	r.check = func(s string) error {
		if s == "" {
			return nil
		}
		return check(s)
	}
	if r.choices != nil {
		r.choices = append(slices.Clone(r.choices), "")
	}
	return r
}

func oneOf(choices ...string) rule {
	return rule{form: formChoice, choices: choices, check: func(s string) error {
		if slices.Contains(choices, s) {
			return nil
		}
		return fmt.Errorf("want %s, not %q", strings.Join(choices, " or "), s)
	}}
}

var tcpURL = rule{form: "url", check: func(s string) error {
	if s == "" {
		return nil
	}
	address, ok := strings.CutPrefix(s, "tcp://")
	if !ok || address == "" || listenAddr.check(address) != nil {
		return fmt.Errorf("want tcp://ADDR:PORT such as tcp://127.0.0.1:2378, not %q", s)
	}
	return nil
}}

var listenAddr = rule{form: "host:port", check: func(s string) error {
	if s == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("want host:port such as 127.0.0.1:9464, not %q", s)
	}
	return nil
}}

func is4(a netip.Addr) error {
	if !a.Is4() {
		return errors.New("want IPv4")
	}
	return nil
}

func is6(a netip.Addr) error {
	if !a.Is6() || a.Is4In6() {
		return errors.New("want IPv6")
	}
	return nil
}
