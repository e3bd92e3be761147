//go:build e2e

package crash_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// engine behaves towards the plugin as a Docker engine does, as far as kills are
// concerned: it makes the calls of a command in the engine's order, repeats a call whose
// connection broke with an empty body (Docker has consumed its buffer by then), rolls
// back what Docker rolls back and no more, ignores the errors of cleaning calls, and
// never repeats those.
type engine struct {
	t       *testing.T
	h       *privatehost.Host
	http    *http.Client
	died    bool   // kuryr died at the failpoint
	at      string // the call it died in
	restart func() // starts it again, without the failpoint
}

func newEngine(t *testing.T, h *privatehost.Host) *engine {
	return &engine{t: t, h: h, http: h.UnixClient(privatehost.PluginSocket)}
}

const callLimit = time.Minute

// errAnswer is an error that the plugin answered with.
type errAnswer struct{ method, text string }

func (e errAnswer) Error() string { return e.method + ": " + e.text }

// call makes one call and decodes its answer.
func (e *engine) call(method string, args any, answer any) error {
	e.t.Helper()
	body := []byte{}
	if args != nil {
		var err error
		if body, err = json.Marshal(args); err != nil {
			e.t.Fatal(err)
		}
	}
	text, status, err := e.post(method, body)
	if err != nil {
		if !e.gone() {
			e.t.Fatalf("%s: the connection broke, and kuryr lives: %v", method, err)
		}
		if e.died {
			e.t.Fatalf("kuryr died again, without a failpoint, in %s", method)
		}
		e.died, e.at = true, method
		e.restart()
		var broken *net.OpError
		if !errors.As(err, &broken) || broken.Op != "dial" {
			body = nil // it was read before the connection broke
		}
		if text, status, err = e.post(method, body); err != nil {
			e.t.Fatalf("%s repeated: %v", method, err)
		}
	}
	var both struct{ Err, Error string }
	if err := json.Unmarshal(text, &both); err != nil {
		return errAnswer{method, fmt.Sprintf("status %d: %s", status, text)}
	}
	if both.Err != "" || both.Error != "" {
		if both.Err != both.Error {
			e.t.Errorf("%s: Err %q and Error %q differ", method, both.Err, both.Error)
		}
		return errAnswer{method, both.Err}
	}
	if status != http.StatusOK {
		return errAnswer{method, fmt.Sprintf("status %d: %s", status, text)}
	}
	if answer != nil {
		if err := json.Unmarshal(text, answer); err != nil {
			e.t.Fatalf("%s: %v: %s", method, err, text)
		}
	}
	return nil
}

func (e *engine) post(method string, body []byte) ([]byte, int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://kuryr/"+method, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Accept", "application/vnd.docker.plugins.v1.2+json")
	resp, err := e.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return text, resp.StatusCode, err
}

// gone tells whether kuryr has ended; a broken connection may be seen a moment before the end.
func (e *engine) gone() bool {
	select {
	case <-e.h.KuryrGone():
		return true
	case <-time.After(20 * time.Second):
		return false
	}
}

// ignore makes a call of the cleaning kind: its error is Docker's to log and to forget.
func (e *engine) ignore(method string, args any) {
	e.t.Helper()
	if err := e.call(method, args, nil); err != nil && !e.died {
		e.t.Errorf("nothing was killed, and %v", err)
	}
}

func id(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// network is a Docker network as its user asked for it, and what came of it.
type network struct {
	name     string
	subnets  []string // the pools; empty is an IPv4 pool of the driver's choice
	internal bool
	options  map[string]string
	foreign  bool // the addresses come from another IPAM driver
	ipamOnly bool // the network driver is another

	id    string
	pools []pool
}

type pool struct {
	id      string
	cidr    netip.Prefix
	gateway string // CIDR
}

type m = map[string]any

// create is "docker network create".
func (e *engine) create(n *network) (err error) {
	e.t.Helper()
	n.id, n.pools = id(32), nil
	defer func() {
		if err != nil {
			e.releasePools(n)
		}
	}()
	data := map[bool][]m{false: {}, true: {}}
	for _, subnet := range n.subnets {
		v6 := strings.Contains(subnet, ":")
		p := pool{}
		if n.foreign {
			p.cidr = netip.MustParsePrefix(subnet)
			p.gateway = netip.PrefixFrom(p.cidr.Addr().Next(), p.cidr.Bits()).String()
		} else {
			var got struct{ PoolID, Pool string }
			if err := e.call(
				"IpamDriver.RequestPool",
				m{
					"AddressSpace": "local_scope", "Pool": subnet, "SubPool": "", "Options": nil,
					"V6": v6,
				},
				&got,
			); err != nil {
				return err
			}
			if p.cidr, err = netip.ParsePrefix(got.Pool); err != nil {
				return err
			}
			p.id = got.PoolID
			n.pools = append(n.pools, p)
			var addr struct{ Address string }
			if err := e.call(
				"IpamDriver.RequestAddress",
				m{"PoolID": p.id, "Address": "", "Options": m{
					"RequestAddressType": "com.docker.network.gateway",
				}},
				&addr,
			); err != nil {
				return err
			}
			p.gateway = addr.Address
			n.pools = n.pools[:len(n.pools)-1]
		}
		n.pools = append(n.pools, p)
		space := "local_scope"
		if n.foreign {
			space = "LocalDefault"
		}
		data[v6] = append(data[v6], m{"AddressSpace": space, "Pool": p.cidr.String(), "Gateway": p.gateway})
	}
	if n.ipamOnly {
		return nil
	}
	options := m{"com.docker.network.enable_ipv6": len(data[true]) > 0, "com.docker.network.generic": n.options}
	if n.internal {
		options["com.docker.network.internal"] = true
	}
	return e.call(
		"NetworkDriver.CreateNetwork",
		m{"NetworkID": n.id, "Options": options, "IPv4Data": data[false], "IPv6Data": data[true]},
		nil,
	)
}

func (e *engine) releasePools(n *network) {
	e.t.Helper()
	if n.foreign {
		return
	}
	for _, p := range n.pools {
		if p.gateway != "" {
			addr, _, _ := strings.Cut(p.gateway, "/")
			e.ignore("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": addr})
		}
		e.ignore("IpamDriver.ReleasePool", m{"PoolID": p.id})
	}
	n.pools = nil
}

// remove is "docker network rm": the pools go first.
func (e *engine) remove(n *network) {
	e.t.Helper()
	e.releasePools(n)
	if !n.ipamOnly {
		e.ignore("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	}
}

// container is a container on one network.
type container struct {
	name string
	on   *network
	ip   string // asked for
	mac  string // asked for
	port int    // published, to the same one
	free int    // published, to one of Kuryr's choice
	lost bool   // the calls that undo its endpoint never come, as when the engine gave up on an answer

	endpoint string
	sandbox  string // path in the host
	src      string // the link's name in the host
	addrs    []netip.Prefix
	joined   bool
}

func (c *container) ids() m { return m{"NetworkID": c.on.id, "EndpointID": c.endpoint} }

func (c *container) joinIDs() m {
	return m{"NetworkID": c.on.id, "EndpointID": c.endpoint, "SandboxKey": c.sandbox}
}

// run is "docker run": addresses, endpoint, join, and the engine's own part, which moves the link and configures it.
func (e *engine) run(c *container) (err error) {
	e.t.Helper()
	c.endpoint, c.addrs, c.joined = id(32), nil, false
	defer func() {
		if err == nil {
			return
		}
		// Docker 20.10 undoes what it did, and calls the driver only for what the driver had agreed to.
		if c.joined {
			e.ignore("NetworkDriver.Leave", c.ids())
		}
		e.dropSandbox(c)
		if c.src != "" || c.joined {
			e.ignore("NetworkDriver.DeleteEndpoint", c.ids())
		}
		e.releaseAddresses(c)
	}()
	c.src = ""
	iface := m{"Address": "", "AddressIPv6": "", "MacAddress": c.mac}
	for _, p := range c.on.pools {
		want := ""
		if c.ip != "" && p.cidr.Addr().Is4() {
			want = c.ip
		}
		var got struct{ Address string }
		if c.on.foreign {
			got.Address = netip.PrefixFrom(p.cidr.Addr().Next().Next(), p.cidr.Bits()).String()
		} else if err := e.call(
			"IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": want, "Options": nil}, &got,
		); err != nil {
			return err
		}
		addr, err := netip.ParsePrefix(got.Address)
		if err != nil {
			return err
		}
		c.addrs = append(c.addrs, addr)
		if addr.Addr().Is4() {
			iface["Address"] = got.Address
		} else {
			iface["AddressIPv6"] = got.Address
		}
	}
	if c.on.ipamOnly {
		return nil
	}
	ports, exposed := []m{}, []m{}
	for port, host := range map[int]int{c.port: c.port, c.free: 0} {
		if port != 0 {
			exposed = append(exposed, m{"Proto": 6, "Port": port})
			ports = append(ports, m{"Proto": 6, "IP": "", "Port": port, "HostIP": "", "HostPort": host, "HostPortEnd": host})
		}
	}
	if c.port != 0 { // also on one address, through the same router
		ports = append(ports, m{
			"Proto": 17, "IP": "", "Port": c.port, "HostIP": "127.0.0.1", "HostPort": c.port,
			"HostPortEnd": c.port,
		})
	}
	options := m{"com.docker.network.endpoint.exposedports": exposed, "com.docker.network.portmap": ports}
	endpointOptions := options
	if c.mac != "" {
		hw, err := net.ParseMAC(c.mac)
		if err != nil {
			return err
		}
		endpointOptions = m{"com.docker.network.endpoint.macaddress": base64.StdEncoding.EncodeToString(hw)}
		for k, v := range options {
			endpointOptions[k] = v
		}
	}
	create := c.ids()
	create["Interface"], create["Options"] = iface, endpointOptions
	var made struct{ Interface struct{ MacAddress string } }
	if err := e.call("NetworkDriver.CreateEndpoint", create, &made); err != nil {
		return err
	}
	c.src = "unknown"
	mac := c.mac
	if mac == "" {
		mac = made.Interface.MacAddress
	}
	e.makeSandbox(c)
	join := c.joinIDs()
	join["Options"] = options
	var joined struct {
		InterfaceName        struct{ SrcName, DstPrefix string }
		Gateway, GatewayIPv6 string
	}
	if err := e.call("NetworkDriver.Join", join, &joined); err != nil {
		return err
	}
	c.joined, c.src = true, joined.InterfaceName.SrcName
	if err := e.plug(c, mac, joined.Gateway, joined.GatewayIPv6); err != nil {
		return err
	}
	if joined.Gateway != "" || joined.GatewayIPv6 != "" {
		program := c.ids()
		program["Options"] = options
		if err := e.call("NetworkDriver.ProgramExternalConnectivity", program, nil); err != nil {
			return err
		}
	}
	var info struct{ Value m }
	return e.call("NetworkDriver.EndpointOperInfo", c.ids(), &info)
}

// rm is "docker rm -f".
func (e *engine) rm(c *container) {
	e.t.Helper()
	if !c.on.ipamOnly {
		if !c.lost {
			e.ignore("NetworkDriver.RevokeExternalConnectivity", c.ids())
			e.ignore("NetworkDriver.Leave", c.ids())
		}
		// What the driver left of the link goes back to the host under its first name.
		e.host("nsenter", "--net="+c.sandbox, "ip", "link", "set", "eth0", "down", "name", c.src, "netns", "1")
		e.dropSandbox(c)
		if !c.lost {
			e.ignore("NetworkDriver.DeleteEndpoint", c.ids())
		}
	}
	e.releaseAddresses(c)
}

// stale is what the engine does at its start for a container that a reboot took away.
func (e *engine) stale(c *container) {
	e.t.Helper()
	if !c.on.ipamOnly {
		e.ignore("NetworkDriver.Leave", c.ids())
		e.ignore("NetworkDriver.DeleteEndpoint", c.ids())
	}
	e.releaseAddresses(c)
}

func (e *engine) releaseAddresses(c *container) {
	e.t.Helper()
	if c.on.foreign {
		return
	}
	for i, a := range c.addrs {
		e.ignore("IpamDriver.ReleaseAddress", m{"PoolID": c.on.pools[i].id, "Address": a.Addr().String()})
	}
	c.addrs = nil
}

func (e *engine) makeSandbox(c *container) {
	e.t.Helper()
	c.sandbox = "/run/docker/netns/" + id(6)
	if r := e.host(
		"sh", "-c",
		"mkdir -p /run/docker/netns && touch "+c.sandbox+" && unshare --net="+c.sandbox+
			" ip link set lo up",
	); !r.OK() {
		e.t.Fatal(r)
	}
}

func (e *engine) dropSandbox(c *container) {
	if c.sandbox == "" {
		return
	}
	e.host("umount", c.sandbox)
	_ = os.Remove(e.h.Path(c.sandbox))
	c.sandbox = ""
}

// plug is the engine's part of Join.
func (e *engine) plug(c *container, mac, gateway, gateway6 string) error {
	e.t.Helper()
	script := fmt.Sprintf(
		"set -e; ip link set %s netns %s\nat() { nsenter --net=%s ip \"$@\"; }\nat link set %s "+
			"name eth0\n",
		c.src, c.sandbox, c.sandbox, c.src,
	)
	if mac != "" {
		script += "at link set eth0 address " + mac + "\n"
	}
	for _, a := range c.addrs {
		nodad := ""
		if a.Addr().Is6() {
			nodad = " nodad"
		}
		script += fmt.Sprintf("at addr replace %s dev eth0%s\n", a, nodad)
	}
	script += "at link set eth0 up\n"
	if gateway != "" {
		script += "at route replace default via " + gateway + "\n"
	}
	if gateway6 != "" {
		script += "at -6 route replace default via " + gateway6 + "\n"
	}
	if r := e.host("sh", "-c", script); !r.OK() {
		return errors.New("the engine cannot plug: " + r.String())
	}
	return nil
}

func (e *engine) host(argv ...string) privatehost.Result {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	return e.h.Exec(ctx, argv...)
}

// pings checks that a container reaches an address; a first packet may wait for neighbours to be found.
func (e *engine) pings(c *container, to string) {
	e.t.Helper()
	var r privatehost.Result
	for range 10 {
		if r = e.host("nsenter", "--net="+c.sandbox, "ping", "-n", "-c", "1", "-W", "1", to); r.OK() {
			return
		}
	}
	e.t.Errorf("%s does not reach %s: %s", c.name, to, r)
}
