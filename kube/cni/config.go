package cni

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// Type is the plugin's name in a conflist.
const Type = "kuryr"

// Versions are those of the specification whose results are given.
var Versions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// DefaultVersion is that of a configuration that says none (CNI specification 0.1.0).
const DefaultVersion = "0.1.0"

// Config is the network configuration that a runtime gives by standard input: an entry of the conflist with the list's name and version.
type Config struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`

	Network string `json:"network"` // the SDN's network by id or name; "" is Name
	Socket  string `json:"socket"`  // of the daemon; "" is DefaultSocket
	State   string `json:"state"`   // folder of what kuryr-cni and the daemon keep of containers; "" is DefaultState
	MTU     int    `json:"mtu"`     // refused: an interface's MTU is its network's

	// How kuryr-cni asks Kubernetes itself, where no daemon runs.
	APIToken     string `json:"api_token"`      // the file with the configuration must then have mode 0600
	APITokenFile string `json:"api_token_file"` // read anew at each call
	APIServer    string `json:"api_server"`     // https://HOST:PORT
	APICA        string `json:"api_ca"`
	APITimeout   int    `json:"api_timeout"` // seconds; 0 is 10

	Runtime struct {
		IPs          []string      `json:"ips"`
		MAC          string        `json:"mac"`
		Bandwidth    *Bandwidth    `json:"bandwidth"`
		PortMappings []PortMapping `json:"portMappings"`
	} `json:"runtimeConfig"`
	// Args are the older way to ask for addresses (CNI conventions, "args").
	Args struct {
		CNI struct {
			IPs []string `json:"ips"`
			MAC string   `json:"mac"`
		} `json:"cni"`
	} `json:"args"`

	PrevResult json.RawMessage `json:"prevResult"`

	// Valid are the attachments that GC is to leave; nil where the key is missing, which is not an empty list.
	Valid *[]types.GCAttachment `json:"-"`
}

// maxAPITimeout is the longest wait for Kubernetes, in seconds.
const maxAPITimeout = 60

// Bandwidth is CNI's capability of that name: rates in bits a second, bursts in bits; 0 is no limit.
type Bandwidth struct {
	IngressRate  int64 `json:"ingressRate"`
	IngressBurst int64 `json:"ingressBurst"`
	EgressRate   int64 `json:"egressRate"`
	EgressBurst  int64 `json:"egressBurst"`
}

// PortMapping is an element of CNI's capability portMappings.
type PortMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

// ParseConfig reads the configuration for a verb. Errors are Undecodable, IncompatibleVersion or BadConfig, and name the field.
func ParseConfig(verb string, data []byte) (Config, error) {
	var c Config
	if err := json.Unmarshal(data, &c); err != nil {
		return c, Undecodable.Errorf("configuration: %v", err)
	}
	if c.CNIVersion == "" {
		c.CNIVersion = DefaultVersion
	}
	if !slices.Contains(Versions, c.CNIVersion) {
		return c, IncompatibleVersion.Errorf("cniVersion: %q is none of %s", c.CNIVersion, strings.Join(Versions, ", "))
	}
	if verb == GC {
		if err := c.readValid(data); err != nil {
			return c, err
		}
	}
	return c, c.check(verb)
}

func (c *Config) check(verb string) error {
	if c.Type != "" && c.Type != Type {
		return BadConfig.Errorf("type: %q is another plugin's; want %q", c.Type, Type)
	}
	if since := map[string]string{Check: "0.4.0", GC: "1.1.0", Status: "1.1.0"}[verb]; since != "" && slices.Index(Versions, c.CNIVersion) < slices.Index(Versions, since) {
		return IncompatibleVersion.Errorf("cniVersion: %s is in the specification since %s, not in %s", verb, since, c.CNIVersion)
	}
	if err := checkContainer(c.Name); err != nil || c.Name == "" { // the same letters (specification, section 1)
		return BadConfig.Errorf("name: %q is no network name", c.Name)
	}
	for field, path := range map[string]string{"socket": c.Socket, "state": c.State, "api_token_file": c.APITokenFile, "api_ca": c.APICA} {
		if path == "" {
			continue
		}
		if err := checkPath(path); err != nil {
			return BadConfig.Errorf("%s: %v", field, err)
		}
	}
	if c.APIServer != "" && !strings.HasPrefix(c.APIServer, "https://") {
		return BadConfig.Errorf("api_server: %q does not begin with https://", c.APIServer)
	}
	if c.APITimeout < 0 || c.APITimeout > maxAPITimeout {
		return BadConfig.Errorf("api_timeout: %d is not within 0 and %d seconds", c.APITimeout, maxAPITimeout)
	}
	if c.MTU != 0 {
		return BadConfig.Errorf("mtu: is the network's; set it there")
	}
	for _, ip := range slices.Concat(c.Runtime.IPs, c.Args.CNI.IPs) {
		if err := checkAddress(ip); err != nil {
			return BadConfig.Errorf("runtimeConfig.ips: %v", err)
		}
	}
	for field, mac := range map[string]string{"runtimeConfig.mac": c.Runtime.MAC, "args.cni.mac": c.Args.CNI.MAC} {
		if mac == "" {
			continue
		}
		if _, err := parseMAC(mac); err != nil {
			return BadConfig.Errorf("%s: %v", field, err)
		}
	}
	if b := c.Runtime.Bandwidth; b != nil && min(b.IngressRate, b.IngressBurst, b.EgressRate, b.EgressBurst) < 0 {
		return BadConfig.Errorf("runtimeConfig.bandwidth: rates and bursts are not below 0")
	}
	for i, p := range c.Runtime.PortMappings {
		if err := p.check(); err != nil {
			return BadConfig.Errorf("runtimeConfig.portMappings[%d]: %v", i, err)
		}
	}
	return nil
}

// Beyond names the first field by which the runtime asks for more than a port that is
// known whole, which only the daemon can grant; "" if there is none.
func (c Config) Beyond() string {
	r, old := c.Runtime, c.Args.CNI
	switch {
	case c.Network != "":
		return "network"
	case len(r.IPs) > 0:
		return "runtimeConfig.ips"
	case r.MAC != "":
		return "runtimeConfig.mac"
	case r.Bandwidth != nil && *r.Bandwidth != Bandwidth{}:
		return "runtimeConfig.bandwidth"
	case slices.ContainsFunc(r.PortMappings, func(p PortMapping) bool { return p.HostPort != 0 }):
		return "runtimeConfig.portMappings"
	case len(old.IPs) > 0:
		return "args.cni.ips"
	case old.MAC != "":
		return "args.cni.mac"
	}
	return ""
}

func (p PortMapping) check() error {
	if p.ContainerPort < 1 || p.ContainerPort > 65535 {
		return fmt.Errorf("containerPort: %d is no port", p.ContainerPort)
	}
	if p.HostPort < 0 || p.HostPort > 65535 {
		return fmt.Errorf("hostPort: %d is no port", p.HostPort)
	}
	switch strings.ToLower(p.Protocol) {
	case "", "tcp", "udp", "sctp":
	default:
		return fmt.Errorf("protocol: %q is none of tcp, udp and sctp", p.Protocol)
	}
	if p.HostIP != "" {
		if _, err := netip.ParseAddr(p.HostIP); err != nil {
			return fmt.Errorf("hostIP: %q is no IP address", p.HostIP)
		}
	}
	return nil
}

// readValid reads GC's list. Its name in the specification is cni.dev/valid-attachments, and libcni sends cni.dev/attachments besides. A list that is null is empty; without
// the key nothing is known, and to collect everything then would be wrong.
func (c *Config) readValid(data []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(data, &keys); err != nil {
		return Undecodable.Errorf("configuration: %v", err)
	}
	for _, key := range []string{"cni.dev/valid-attachments", "cni.dev/attachments"} {
		raw, there := keys[key]
		if !there {
			continue
		}
		list := []types.GCAttachment{}
		if err := json.Unmarshal(raw, &list); err != nil {
			return Undecodable.Errorf("%s: %v", key, err)
		}
		c.Valid = &list
		return nil
	}
	return BadConfig.Errorf("cni.dev/valid-attachments: is missing, so what is valid is not known")
}
