//go:build e2e

package neutron_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// peer answers a host's engine in Kuryr's stead as kuryr-libnetwork does, so that the
// engine's networks and endpoints are that one's. It plugs nothing, and what it has in
// Neutron the test makes by hand.
type peer struct {
	pools map[string]string // ids of Neutron's subnet pools, by range

	mu        sync.Mutex
	endpoints []string // in the order they were created
}

func (p *peer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var body struct {
		Pool, Address, PoolID, EndpointID string
	}
	_ = json.NewDecoder(req.Body).Decode(&body)
	answer := object{}
	switch strings.TrimPrefix(req.URL.Path, "/") {
	case "Plugin.Activate":
		answer["Implements"] = []string{"NetworkDriver", "IpamDriver"}
	case "NetworkDriver.GetCapabilities":
		answer["Scope"] = "local"
	case "IpamDriver.GetCapabilities":
		answer["RequiresMACAddress"] = true
	case "IpamDriver.GetDefaultAddressSpaces":
		answer["LocalDefaultAddressSpace"], answer["GlobalDefaultAddressSpace"] = "no_address_space", "no_address_space"
	case "IpamDriver.RequestPool":
		answer["PoolID"], answer["Pool"] = p.pools[body.Pool], body.Pool
	case "IpamDriver.RequestAddress":
		answer["Address"] = body.Address + "/24"
	case "NetworkDriver.CreateEndpoint":
		p.mu.Lock()
		p.endpoints = append(p.endpoints, body.EndpointID)
		p.mu.Unlock()
		answer["Interface"] = object{}
	case "NetworkDriver.Join":
		answer["DisableGatewayService"] = true
	}
	w.Header().Set("Content-Type", "application/vnd.docker.plugins.v1+json")
	_ = json.NewEncoder(w).Encode(answer)
}

// last is the endpoint that was created last.
func (p *peer) last() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endpoints[len(p.endpoints)-1]
}

// underPeer runs do while the peer has the host's engine, and then has Kuryr take over.
func (h host) underPeer(p *peer, do func()) {
	h.rig.Helper()
	if err := h.KillKuryr(syscall.SIGTERM); err != nil {
		h.rig.Fatal(err)
	}
	listener, err := net.Listen("unix", h.Path(privatehost.PluginSocket))
	if err != nil {
		h.rig.Fatal(err)
	}
	server := &http.Server{Handler: p}
	go func() { _ = server.Serve(listener) }()
	defer func() {
		_ = server.Close()
		if err := h.StartKuryr(h.rig.ctx); err != nil {
			h.rig.Fatal(err)
		}
	}()
	do()
}

// tag gives an object in Neutron these tags and no others.
func (r *rig) tag(nouns string, o object, tags ...string) {
	r.Helper()
	if err := r.api.Act(r.ctx, nouns+"/"+o.ID()+"/tags", object{"tags": tags}); err != nil {
		r.Fatal(err)
	}
}

// wears checks the tags of an object in Neutron, in whatever order.
func (r *rig) wears(nouns string, o object, want ...string) {
	r.Helper()
	r.until("the tags are others", func(context.Context) error {
		now := r.get(nouns, o.ID())
		if err := tagged(now, want...); err != nil {
			return err
		}
		if tags, _ := now["tags"].([]any); len(tags) != len(want) {
			return fmt.Errorf("%s has tags %v, not %v", o.ID(), tags, want)
		}
		return nil
	})
}

// What was there before, and the Python kuryr-libnetwork used: a network that two of
// Docker's are, its subnet, a subnet pool and a port. Kuryr goes on to use all of it, and
// gives it back in the end as that program would: not renamed, not deleted, without its
// tags.
func TestTakeOverUsed(t *testing.T) {
	r := shared(t)
	const idTag = "kuryr.net.uuid"
	network, subnets := r.ownNetwork("peers", "10.58.0.0/24")
	tenants := r.create("subnetpools", object{
		"name": "tenants", "prefixes": []string{"10.59.0.0/24"}, "default_prefixlen": 24,
	})
	port := r.create("ports", object{"name": "theirs", "description": "a port of somebody's", "network_id": network.ID(),
		"fixed_ips": []object{{"subnet_id": subnets[0].ID(), "ip_address": "10.58.0.20"}}})
	pool := r.create("subnetpools", object{
		"name": "kuryrPool-10.58.0.0/24", "prefixes": []string{"10.58.0.0/24"},
		"default_prefixlen": 24,
	})
	r.tag("subnetpools", pool, subnets[0].ID())
	r.tag("subnets", subnets[0], pool.ID())
	r.tag("subnetpools", tenants, "kuryr.subnetpool.existing")

	p := &peer{pools: map[string]string{"10.58.0.0/24": pool.ID(), "10.59.0.0/24": tenants.ID()}}
	ids := map[string]string{}
	used := func(name string) []string {
		return append(halves(idTag, ids[name]), "kuryr.net.existing:"+ids[name][:12])
	}
	var made object
	r.h1.underPeer(p, func() {
		r.h1.use("used-a", network, subnets)
		r.h1.use("used-b", network, subnets)
		r.h1.network(
			"pooled", "--subnet", "10.59.0.0/24", "--gateway", "10.59.0.1", "-o",
			"neutron.pool.uuid="+tenants.ID(), "--ipam-opt", "neutron.pool.uuid="+tenants.ID(),
		)
		for _, name := range []string{"used-a", "used-b", "pooled"} {
			ids[name] = r.h1.docker("network", "inspect", "-f", "{{.Id}}", name)
		}
		r.tag("networks", network, append(used("used-a"), used("used-b")...)...)
		made = r.create("networks", object{"name": "kuryr-net-" + ids["pooled"][:8]})
		r.tag("networks", made, halves(idTag, ids["pooled"])...)
		subnet := r.create("subnets", object{
			"name": "kuryr-subnet-10.59.0.0/24", "network_id": made.ID(), "ip_version": 4,
			"cidr":          "10.59.0.0/24",
			"subnetpool_id": tenants.ID(), "gateway_ip": "10.59.0.1"})
		r.tag("subnets", subnet, tenants.ID())

		r.h1.run("used-theirs", "used-a", "--ip", "10.58.0.20", "--mac-address", port.Text("mac_address"))
		if _, err := r.api.Update(
			r.ctx, "ports", port.ID(),
			object{"device_owner": "compute:kuryr", "device_id": p.last(), "binding:host_id": "h1"},
		); err != nil {
			t.Fatal(err)
		}
		r.tag("ports", port, append(halves(idTag, p.last()), "kuryr.port.existing")...)
		box := r.h1.run("used-made", "used-a", "--ip", "10.58.0.30")
		own := r.create("ports", object{
			"name": "kuryr-unbound-port", "network_id": network.ID(),
			"device_owner": "compute:kuryr", "device_id": p.last(),
			"binding:host_id": "h1", "mac_address": box.mac, "fixed_ips": []object{
				{"subnet_id": subnets[0].ID(), "ip_address": "10.58.0.30"},
			}})
		r.tag("ports", own, append(halves(idTag, p.last()), "compute:kuryr")...)
	})

	// The containers are stopped, which returns what the peer gave, and started.
	r.h1.docker("restart", "-t", "1", "used-theirs", "used-made")
	a, b := r.h1.look("used-theirs", "used-a"), r.h1.look("used-made", "used-a")
	if id := a.port().ID(); id != port.ID() {
		t.Errorf("the container is on port %s, not %s", id, port.ID())
	}
	r.reaches(b.in, a.ip4, b.ip4)
	c := r.h1.run("used-more", "used-b")
	r.reaches(c.in, a.ip4, c.ip4)
	d, e := r.h1.run("pooled-a", "pooled"), r.h1.run("pooled-b", "pooled")
	if id := d.port().Text("network_id"); id != made.ID() {
		t.Errorf("the container is on network %s, not %s", id, made.ID())
	}
	r.reaches(d.in, e.ip4, d.ip4)

	r.h1.docker("rm", "-f", "used-theirs", "used-made", "pooled-a", "pooled-b")
	r.wears("ports", port)
	if now := r.get("ports", port.ID()); now.Text("name") != "theirs" ||
		now.Text("description") != "a port of somebody's" || now.Text("device_id") != "" ||
		now.Text("device_owner") != "" || now.Text("binding:host_id") != "" {
		t.Errorf("the port is not as it was: %v", now)
	}
	r.h1.docker("network", "rm", "used-a")
	r.wears("networks", network, used("used-b")...)
	r.wears("subnets", subnets[0], pool.ID())
	r.reaches(c.in, c.ip4, netip.Addr{})
	r.h1.docker("rm", "-f", "used-more")
	r.h1.docker("network", "rm", "used-b")
	r.wears("networks", network)
	r.wears("subnets", subnets[0])
	if now := r.get("networks", network.ID()); now.Text("name") != "peers" || now.Text("description") != "" {
		t.Errorf("the network is not as it was: %v", now)
	}
	r.h1.docker("network", "rm", "pooled")
	r.wears("subnetpools", tenants)
	for nouns, o := range map[string]object{"subnetpools": pool, "networks": made} {
		r.until("what the peer had made is still there", func(context.Context) error {
			if left := r.find(nouns, "id="+o.ID()); len(left) > 0 {
				return fmt.Errorf("%v", left)
			}
			return nil
		})
	}
	if now := r.get("subnetpools", tenants.ID()); now.Text("name") != "tenants" {
		t.Errorf("the pool is not as it was: %v", now)
	}
}
