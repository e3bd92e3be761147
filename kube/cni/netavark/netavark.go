//go:build linux

// Package netavark is the plugin of netavark, podman's network stack, for networks with
// the driver "kuryr": the subcommands create, setup, teardown and info of netavark's
// plugin API.
//
// It owns the translation between netavark's JSON and CNI's. The call itself is package
// plugin's, so the daemon is asked as kuryr-cni asks it.
package netavark

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/kube/cni/plugin"
)

// apiVersion is that of netavark's plugin API.
const apiVersion = "1.0.0"

// maxPort is the highest port.
const maxPort = 65535

// maxPorts bounds the ports that one container publishes: netavark passes ranges. So many
// are more than a CNI configuration carries, which has over 50 bytes for each.
const maxPorts = cni.MaxInput / 50

// Plugin is the executable's surroundings.
type Plugin struct {
	Version string
	Stdin   io.Reader
	Stdout  io.Writer
}

// Run runs the subcommand that args name, writes its JSON, and returns the exit status.
func (p Plugin) Run(ctx context.Context, args []string) int {
	out, err := p.run(ctx, args)
	if err == nil {
		if _, err = p.Stdout.Write(out); err == nil {
			return 0
		}
	}
	data, _ := json.Marshal(struct { // a text always has a JSON form
		Error string `json:"error"`
	}{err.Error()})
	_, _ = p.Stdout.Write(data) // the exit status says it too
	return 1
}

func (p Plugin) run(ctx context.Context, args []string) ([]byte, error) {
	if len(args) == 0 || args[0] == "info" {
		return json.Marshal(map[string]string{"version": p.Version, "api_version": apiVersion})
	}
	verbs := map[string]string{"setup": cni.Add, "teardown": cni.Del}
	switch verb, called := verbs[args[0]]; {
	case args[0] != "create" && !called:
		return nil, fmt.Errorf("subcommand %q is none of create, setup, teardown and info", args[0])
	case called && len(args) != 2:
		return nil, fmt.Errorf("%s: want the path of a network namespace", args[0])
	default:
		input, err := io.ReadAll(io.LimitReader(p.Stdin, cni.MaxInput+1))
		if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
		if len(input) > cni.MaxInput {
			return nil, fmt.Errorf("standard input: more than %d bytes", cni.MaxInput)
		}
		if !called {
			return create(ctx, input)
		}
		return exec(ctx, verb, args[1], input)
	}
}

// network is what is read of netavark's type of that name.
type network struct {
	Name        string            `json:"name"`
	ID          string            `json:"id"`
	Driver      string            `json:"driver"`
	Internal    bool              `json:"internal"`
	Interface   string            `json:"network_interface"`
	Options     map[string]string `json:"options"`
	IPAMOptions map[string]string `json:"ipam_options"`
	Subnets     []json.RawMessage `json:"subnets"`
	Routes      []json.RawMessage `json:"routes"`
	DNSServers  []netip.Addr      `json:"network_dns_servers"`
}

// The options of a network. They have the names of a CNI configuration's fields.
const (
	optionNetwork = "network" // the SDN's network by id or name; "" is the name
	optionSocket  = "socket"
	optionState   = "state"
)

// ipamNone is the IPAM driver of networks whose addresses netavark does not choose.
const ipamNone = "none"

// check refuses what the SDN decides, and options that are unknown.
func (n network) check() error {
	switch driver := n.IPAMOptions["driver"]; {
	case n.Name == "":
		return errors.New("name: missing")
	case driver != "" && driver != ipamNone:
		return fmt.Errorf("ipam_options.driver %q: addresses come from the SDN; leave it out", driver)
	case len(n.Subnets) > 0:
		return errors.New("subnets: the SDN's network has them; leave them out")
	case len(n.Routes) > 0:
		return errors.New("routes: the SDN's subnets have them; leave them out")
	case len(n.DNSServers) > 0:
		return errors.New("network_dns_servers: the SDN's subnets have them; leave them out")
	case n.Internal:
		return errors.New("internal: the SDN's network decides it; leave it out")
	case n.Interface != "":
		return errors.New("network_interface: there is none on the host; leave it out")
	}
	known := []string{optionNetwork, optionSocket, optionState}
	for name := range n.Options {
		if !slices.Contains(known, name) {
			return fmt.Errorf("options.%s: unknown; known are %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// config is the CNI configuration of the network.
func (n network) config(runtime map[string]any) ([]byte, error) {
	return json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": n.Name, "type": cni.Type, "network": n.Options[optionNetwork],
		"socket": n.Options[optionSocket], "state": n.Options[optionState], "runtimeConfig": runtime,
	})
}

// create checks a network that is being created, and that the SDN has it. The answer is
// the network as it came, without DNS and address management of netavark's own.
func create(ctx context.Context, input []byte) ([]byte, error) {
	var n network
	var fields map[string]json.RawMessage // also those that this plugin does not read
	if err := errors.Join(json.Unmarshal(input, &n), json.Unmarshal(input, &fields)); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	if err := n.check(); err != nil {
		return nil, fmt.Errorf("network %s: %w", n.Name, err)
	}
	config, err := n.config(nil)
	if err != nil {
		return nil, err
	}
	if _, err := call(ctx, cni.Call{Verb: cni.Status, Config: config}); err != nil {
		return nil, err
	}
	fields["dns_enabled"] = json.RawMessage("false")
	fields["ipam_options"] = json.RawMessage(`{"driver": "` + ipamNone + `"}`)
	return json.Marshal(fields)
}

// attachment has the fields of netavark's NetworkPluginExec that are read.
type attachment struct {
	Container    string        `json:"container_id"`
	PortMappings []portMapping `json:"port_mappings"`
	Network      network       `json:"network"`
	Options      struct {
		Interface string            `json:"interface_name"`
		IPs       []string          `json:"static_ips"`
		MAC       string            `json:"static_mac"`
		Options   map[string]string `json:"options"`
	} `json:"network_options"`
}

type portMapping struct {
	ContainerPort int    `json:"container_port"`
	HostIP        string `json:"host_ip"`
	HostPort      int    `json:"host_port"`
	Protocol      string `json:"protocol"` // several, by commas
	Range         int    `json:"range"`
}

// exec does ADD or DEL for a container, and returns the status block of an ADD.
func exec(ctx context.Context, verb, namespace string, input []byte) ([]byte, error) {
	var a attachment
	if err := json.Unmarshal(input, &a); err != nil {
		return nil, fmt.Errorf("container: %w", err)
	}
	runtime := map[string]any{}
	if verb == cni.Add { // DEL finds the port by its container
		for name := range a.Options.Options {
			return nil, fmt.Errorf("network_options.options.%s: unknown; there are none", name)
		}
		mappings, err := mappings(a.PortMappings)
		if err != nil {
			return nil, err
		}
		runtime = map[string]any{"ips": a.Options.IPs, "mac": a.Options.MAC, "portMappings": mappings}
	}
	config, err := a.Network.config(runtime)
	if err != nil {
		return nil, err
	}
	if len(config) > cni.MaxInput {
		return nil, fmt.Errorf("port_mappings: more ports than a configuration of %d bytes has room for", cni.MaxInput)
	}
	out, err := call(ctx, cni.Call{
		Verb: verb, Container: a.Container, Namespace: namespace, Interface: a.Options.Interface, Config: config,
	})
	if err != nil || verb == cni.Del {
		return nil, err
	}
	return status(out, a.Options.Interface)
}

// check refuses ports that do not exist. A range of 0 is a single port. A host port of 0
// publishes nothing.
func (m portMapping) check() error {
	last := maxPort - max(m.Range, 1) + 1 // where a range of this size can begin
	switch {
	case m.Range < 0 || m.Range > maxPort:
		return fmt.Errorf("range: %d is not within 0 and %d", m.Range, maxPort)
	case m.ContainerPort < 1 || m.ContainerPort > last:
		return fmt.Errorf("container_port: %d with range %d is not within 1 and %d", m.ContainerPort, m.Range, maxPort)
	case m.HostPort < 0 || m.HostPort > last:
		return fmt.Errorf("host_port: %d with range %d is not within 0 and %d", m.HostPort, m.Range, maxPort)
	case m.HostPort == 0 && m.Range > 1:
		return fmt.Errorf("host_port: 0 has no range, and this one is %d", m.Range)
	}
	return nil
}

// mappings are the container's published ports one by one.
func mappings(all []portMapping) ([]cni.PortMapping, error) {
	list := []cni.PortMapping{}
	for i, m := range all {
		if err := m.check(); err != nil {
			return nil, fmt.Errorf("port_mappings[%d].%w", i, err)
		}
		size := max(m.Range, 1)
		for protocol := range strings.SplitSeq(m.Protocol, ",") {
			if len(list)+size > maxPorts {
				return nil, fmt.Errorf("port_mappings[%d]: more than %d ports", i, maxPorts)
			}
			for n := range size {
				list = append(list, cni.PortMapping{
					HostPort: m.HostPort + n, ContainerPort: m.ContainerPort + n, Protocol: protocol, HostIP: m.HostIP,
				})
			}
		}
	}
	return list, nil
}

// call runs the CNI plugin in this process.
func call(ctx context.Context, c cni.Call) ([]byte, error) {
	environ := map[string]string{
		"CNI_COMMAND": c.Verb, "CNI_CONTAINERID": c.Container, "CNI_NETNS": c.Namespace, "CNI_IFNAME": c.Interface,
	}
	var out bytes.Buffer
	p := plugin.Plugin{
		Getenv: func(name string) string { return environ[name] }, Stdin: bytes.NewReader(c.Config), Stdout: &out,
	}
	if p.Run(ctx) == 0 {
		return out.Bytes(), nil
	}
	var e types.Error
	if err := json.Unmarshal(out.Bytes(), &e); err != nil {
		return nil, fmt.Errorf("answer of the CNI plugin: %w", err)
	}
	return nil, fmt.Errorf("%s (code %d): %s", e.Msg, e.Code, e.Details)
}

// statusBlock is netavark's type of that name.
type statusBlock struct {
	SearchDomains []string                `json:"dns_search_domains"`
	Servers       []string                `json:"dns_server_ips"`
	Interfaces    map[string]netInterface `json:"interfaces"`
}

type netInterface struct {
	MAC     string       `json:"mac_address"`
	Subnets []netAddress `json:"subnets"`
}

type netAddress struct {
	Gateway string `json:"gateway,omitempty"`
	Address string `json:"ipnet"`
}

// status translates the result of an ADD.
func status(result []byte, name string) ([]byte, error) {
	var r types100.Result
	if err := json.Unmarshal(result, &r); err != nil {
		return nil, fmt.Errorf("result of the CNI plugin: %w", err)
	}
	made := netInterface{Subnets: []netAddress{}}
	for _, i := range r.Interfaces {
		if i.Name == name && i.Sandbox != "" {
			made.MAC = i.Mac
		}
	}
	for _, ip := range r.IPs {
		at := netAddress{Address: ip.Address.String()}
		if ip.Gateway != nil {
			at.Gateway = ip.Gateway.String()
		}
		made.Subnets = append(made.Subnets, at)
	}
	return json.Marshal(statusBlock{
		SearchDomains: orEmpty(r.DNS.Search), Servers: orEmpty(r.DNS.Nameservers),
		Interfaces: map[string]netInterface{name: made},
	})
}

// orEmpty is the list, which JSON never has as null.
func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
