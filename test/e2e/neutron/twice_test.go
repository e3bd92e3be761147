//go:build e2e

package neutron_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// call sends the host's Kuryr a call of libnetwork's, as an engine does.
func (h host) call(method string, body object) (answer object, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(h.rig.ctx, http.MethodPost, "http://kuryr/"+method, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	resp, err := h.UnixClient(privatehost.PluginSocket).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	if text := answer.Text("Err"); text != "" {
		return nil, errors.New(text)
	}
	return answer, nil
}

// The same endpoint id twice: an engine repeats its calls, several at once, and the
// engine of another host, which was cloned, has the same ids. Each host has one port for
// it, and neither takes the other's.
func TestSameEndpointTwice(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("twice", "10.66.0.0/24")
	id, endpoint := strings.Repeat("7e", 32), strings.Repeat("e7", 32)
	do := func(h host, method string, body object) object {
		t.Helper()
		answer, err := h.call(method, body)
		if err != nil {
			t.Fatalf("%s on %s: %v", method, h.Name, err)
		}
		return answer
	}
	existing := object{"neutron.net.uuid": network.ID(), "neutron.subnet.uuid": subnets[0].ID()}
	hosts, pools, interfaces := []host{r.h1, r.h2}, map[string]string{}, map[string]object{}
	for i, h := range hosts {
		pools[h.Name] = do(h, "IpamDriver.RequestPool", object{
			"AddressSpace": "local_scope", "Pool": "10.66.0.0/24", "Options": existing,
		}).Text("PoolID")
		do(h, "NetworkDriver.CreateNetwork", object{
			"NetworkID": id, "Options": object{"com.docker.network.generic": existing},
			"IPv6Data": []object{},
			"IPv4Data": []object{{"AddressSpace": "local_scope", "Pool": "10.66.0.0/24", "Gateway": "10.66.0.1/24"}}})
		mac := fmt.Sprintf("02:42:0a:42:00:0%d", i+1)
		address := do(h, "IpamDriver.RequestAddress", object{
			"PoolID":  pools[h.Name],
			"Options": object{"com.docker.network.endpoint.macaddress": mac},
		}).Text("Address")
		interfaces[h.Name] = object{"Address": address, "MacAddress": mac}
	}
	create := func(h host, with object) error {
		_, err := h.call("NetworkDriver.CreateEndpoint", object{
			"NetworkID": id, "EndpointID": endpoint, "Options": object{}, "Interface": with,
		})
		return err
	}
	results := make(chan error)
	for _, h := range hosts {
		for range 3 {
			go func() { results <- create(h, interfaces[h.Name]) }()
		}
	}
	for range 3 * len(hosts) {
		if err := <-results; err != nil {
			t.Errorf("one of the calls: %v", err)
		}
	}
	ports := map[string]object{}
	for _, h := range hosts {
		ports[h.Name] = r.one("ports", "device_id="+endpoint+"&binding:host_id="+h.Name)
	}
	if all := r.find("ports", "device_id="+endpoint); len(all) != len(hosts) {
		t.Errorf("the endpoint has %d ports", len(all))
	}
	if err := create(r.h1, interfaces["h2"]); err == nil {
		t.Error("one host's endpoint was given the address of the other's")
	}
	for i, h := range hosts {
		for range 2 {
			do(h, "NetworkDriver.DeleteEndpoint", object{"NetworkID": id, "EndpointID": endpoint})
			address, _, _ := strings.Cut(interfaces[h.Name].Text("Address"), "/")
			do(h, "IpamDriver.ReleaseAddress", object{"PoolID": pools[h.Name], "Address": address})
		}
		if left := r.find("ports", "id="+ports[h.Name].ID()); len(left) > 0 {
			t.Errorf("the port of %s is still there", h.Name)
		}
		for _, other := range hosts[i+1:] {
			if now := r.get("ports", ports[other.Name].ID()); now.Text("device_id") != endpoint ||
				now.Text("binding:host_id") != other.Name {
				t.Errorf("%s lost its port to %s: %v", other.Name, h.Name, now)
			}
		}
		for range 2 {
			do(h, "NetworkDriver.DeleteNetwork", object{"NetworkID": id})
			do(h, "IpamDriver.ReleasePool", object{"PoolID": pools[h.Name]})
		}
	}
}
