package docker

import (
	"encoding/json"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/internal/spelling"
	"github.com/kuryr/kuryr/sdn"
)

// Keys of options (moby: daemon/libnetwork/netlabel).
const (
	optGeneric  = "com.docker.network.generic" // the -o options of docker network create
	optInternal = "com.docker.network.internal"
	optMTU      = "com.docker.network.driver.mtu"
	optMAC      = "com.docker.network.endpoint.macaddress"
	optExposed  = "com.docker.network.endpoint.exposedports"
	optPortMap  = "com.docker.network.portmap"
	optDNS      = "com.docker.network.endpoint.dnsservers"

	// Ours, given by -o.
	ownPrefix = "kuryr."
	optRouter = "kuryr.router" // name of a router that networks share
)

var ownOptions = []string{optRouter}

// networkOptions are what a network was asked to be.
type networkOptions struct {
	internal bool
	mtu      int    // 0: the SDN's
	router   string // "": one of its own
	unknown  string // the first option in our name that we do not know
}

var routerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

func parseNetworkOptions(o options) (networkOptions, error) {
	var n networkOptions
	if err := o.get(optInternal, &n.internal); err != nil {
		return n, err
	}
	var generic map[string]json.RawMessage
	if err := o.get(optGeneric, &generic); err != nil {
		return n, err
	}
	for name, raw := range generic {
		field := "Options." + optGeneric + "." + clip(name, 100)
		if strings.HasPrefix(name, ownPrefix) && !slices.Contains(ownOptions, name) && (n.unknown == "" || name < n.unknown) {
			n.unknown = name
		}
		if name != optMTU && name != optRouter {
			continue
		}
		var value string
		if err := unmarshal(field, raw, &value); err != nil {
			return n, err
		}
		switch name {
		case optMTU:
			mtu, err := strconv.Atoi(value)
			if err != nil || mtu < 68 || mtu > 65535 {
				return n, malformed(field, "must be a number from 68 to 65535, not %q", clip(value, 40))
			}
			n.mtu = mtu
		case optRouter:
			if !routerName.MatchString(value) {
				return n, malformed(field, "must be 1 to 64 letters, digits, '_', '.' or '-', not %q", clip(value, 100))
			}
			n.router = value
		}
	}
	return n, nil
}

// refuseUnknown is the refusal of an option in our name that we do not know: a slip of the pen must not pass unseen.
func (n networkOptions) refuseUnknown() error { return unknownOption(n.unknown, ownOptions) }

func unknownOption(name string, known []string) error {
	if name == "" {
		return nil
	}
	nearest := slices.MinFunc(known, func(a, b string) int { return spelling.Distance(name, a) - spelling.Distance(name, b) })
	return refuse("option %s is not known; did you mean %s?", clip(name, 100), nearest)
}

// endpointOptions are what an endpoint was asked to be.
type endpointOptions struct {
	mac       net.HardwareAddr
	published []portMap
}

// portMap is one -p (moby: types.PortBinding).
type portMap struct {
	Proto                 sdn.Protocol
	IP                    string
	Port                  uint16
	HostIP                string
	HostPort, HostPortEnd uint16
}

// exposedPort is one --expose (moby: types.TransportPort).
type exposedPort struct {
	Proto sdn.Protocol
	Port  uint16
}

func parseEndpointOptions(o options) (endpointOptions, error) {
	var e endpointOptions
	var mac []byte // encoding/json reads base64 into it
	if err := o.get(optMAC, &mac); err != nil {
		return e, err
	}
	if mac != nil {
		e.mac = net.HardwareAddr(mac)
		if err := checkMAC("Options."+optMAC, e.mac); err != nil {
			return e, err
		}
	}
	var exposed []exposedPort
	if err := o.get(optExposed, &exposed); err != nil {
		return e, err
	}
	var dns []string
	if err := o.get(optDNS, &dns); err != nil {
		return e, err
	}
	if err := o.get(optPortMap, &e.published); err != nil {
		return e, err
	}
	for _, m := range e.published {
		field := "Options." + optPortMap
		if m.Port == 0 {
			return e, malformed(field+".Port", "must be from 1 to 65535")
		}
		if m.HostPortEnd != 0 && m.HostPortEnd < m.HostPort {
			return e, malformed(field+".HostPortEnd", "%d is before %d", m.HostPortEnd, m.HostPort)
		}
		if _, err := parseAddr(field+".HostIP", m.HostIP); err != nil {
			return e, err
		}
	}
	return e, nil
}

// get decodes one option; one that is absent or null leaves v as it is.
func (o options) get(name string, v any) error {
	raw, ok := o[name]
	if !ok {
		return nil
	}
	return unmarshal("Options."+name, raw, v)
}
