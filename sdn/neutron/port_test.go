package neutron

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

var (
	getPorts    = neutrontest.Call{Method: "GET", Collection: "ports"}
	postPorts   = neutrontest.Call{Method: "POST", Collection: "ports"}
	putPorts    = neutrontest.Call{Method: "PUT", Collection: "ports"}
	deletePorts = neutrontest.Call{Method: "DELETE", Collection: "ports"}
)

// portSpec is a port as a container's.
func portSpec(name string) sdn.PortSpec {
	return sdn.PortSpec{Base: sdn.Base{Key: testKey(name), Name: name}, Network: doubleNet, DeviceOwner: sdn.OwnerContainer}
}

// macSpec is a port whose Key names its MAC.
func macSpec(n byte) sdn.PortSpec {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, n}
	spec := portSpec(doubleNet + "/" + mac.String())
	spec.MAC = mac
	return spec
}

func ensurePort(t *testing.T, p *Provider, spec sdn.PortSpec) sdn.Port {
	t.Helper()
	ports, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{spec})
	if err != nil {
		t.Fatal(err)
	}
	return ports[0]
}

func wantCalls(t *testing.T, proxy *neutrontest.Proxy, what string, want ...neutrontest.Call) {
	t.Helper()
	if got := proxy.Calls(); !slices.Equal(got, want) {
		t.Errorf("%s: the calls are %v, want %v", what, got, want)
	}
	proxy.Reset()
}

// Finding 1 and 2: no id, the Key is in the description of the creating call, device fields are no identity.
func TestFinding1And2ThePortsKeyIsInTheCreatingCall(t *testing.T) {
	d := newPortDouble(100)
	p, _, _ := onPorts(t, d)
	specs := []sdn.PortSpec{portSpec("a"), portSpec("b"), macSpec(1)}
	if _, err := p.EnsurePorts(t.Context(), specs); err != nil {
		t.Fatal(err)
	}
	var carried []string
	for _, body := range d.bodies {
		carried = append(carried, fmt.Sprint(body["description"]))
		if _, there := body["id"]; there {
			t.Errorf("the body %v has an id", body)
		}
	}
	for _, spec := range specs {
		if !slices.Contains(carried, spec.Key.String()) {
			t.Errorf("the key %v is in none of %q", spec.Key, carried)
		}
	}
}

// Finding 2: a port with a device id cannot be attached, and the error says so; no call gives it one on its own.
func TestFinding2ADeviceIDHoldsASubportBack(t *testing.T) {
	d := newPortDouble(100)
	p, _, _ := onPorts(t, d)
	port := ensurePort(t, p, portSpec("a"))
	d.refuse = func(r *http.Request, _ []byte) (int, string) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/add_subports"):
			return http.StatusConflict, neutronError("PortInUse", "Unable to complete operation on port x for network y. Port already has an attached device d2.")
		case strings.Contains(r.URL.Path, "/trunks/"):
			return http.StatusOK, `{"trunk": {"id": "t", "port_id": "parent", "sub_ports": [], "admin_state_up": true}}`
		}
		return 0, ""
	}
	_, err := p.AttachSubports(t.Context(), "t", []sdn.Subport{{Port: port.ID}})
	if !sdn.IsConflict(err) || sdn.ReasonOf(err) != sdn.InUse || !strings.Contains(err.Error(), "attached device") {
		t.Errorf("the error is %v", err)
	}
}

// Finding 3: tags are not sent with the port but after it, and a repeat writes those that are missing.
func TestFinding3TagsOfPortsAreWrittenAfter(t *testing.T) {
	d := newPortDouble(100)
	p, proxy, _ := onPorts(t, d)
	spec := portSpec("a")
	spec.Tags = []string{"one", "two"}
	proxy.Say(neutrontest.Call{Method: "PUT", Collection: "ports"}, 1, neutrontest.Answer{Status: 409, Body: neutronError("Conflict", "no")})
	if _, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{spec}); err == nil {
		t.Error("tags that were not written are not missed")
	}
	got := ensurePort(t, p, spec)
	if !slices.Equal(got.Tags, spec.Tags) || d.count() != 1 {
		t.Errorf("there are %d ports, this one with the tags %v", d.count(), got.Tags)
	}
	if _, there := d.bodies[0]["tags"]; there {
		t.Error("tags are in the creating call")
	}
	if err := p.DeletePort(t.Context(), got.ID, got.Revision); err != nil {
		t.Errorf("the revision after tags is not good: %v", err)
	}
}

// Finding 4: an answer that was lost is looked for, never asked for again.
func TestFinding4ALostAnswerMakesNoTwin(t *testing.T) {
	for name, spec := range map[string]sdn.PortSpec{"by key": portSpec("a"), "by MAC": macSpec(1)} {
		t.Run(name, func(t *testing.T) {
			d := newPortDouble(100)
			p, proxy, _ := onPorts(t, d)
			proxy.Cut(postPorts, 1)
			port := ensurePort(t, p, spec)
			if n := proxy.Count(postPorts); n != 1 || d.count() != 1 || port.Key != spec.Key {
				t.Errorf("%d POSTs made %d ports; the answer is %v", n, d.count(), port.Key)
			}
		})
	}
}

// Finding 4: of two that two processes make at once the younger is taken back.
func TestFinding4OfTwinPortsTheYoungerGoes(t *testing.T) {
	d := newPortDouble(100)
	p, proxy, _ := onPorts(t, d)
	older := &portWire{meta: meta{ID: "older", Project: p.ownProject(), Description: testKey("a").String(), Created: stamp{d.now.Add(-2 * time.Second)}}, Network: doubleNet, MAC: "02:00:00:00:00:99"}
	d.refuse = func(r *http.Request, _ []byte) (int, string) {
		if r.Method == http.MethodPost {
			d.ports["older"] = older // which the look before did not see
		}
		return 0, ""
	}
	port := ensurePort(t, p, portSpec("a"))
	if port.ID != "older" || d.count() != 1 || proxy.Count(deletePorts) != 1 {
		t.Errorf("the answer is port %s of %d", port.ID, d.count())
	}
}

// Finding 7: where a bulk could use the last addresses up, ports are asked for one by one; where one is refused all the same, it is halved.
func TestFinding7ABulkOnlyWhereThereIsRoom(t *testing.T) {
	specs := []sdn.PortSpec{portSpec("a"), portSpec("b"), portSpec("c"), portSpec("d")}
	d := newPortDouble(3)
	p, _, _ := onPorts(t, d)
	ports, err := p.EnsurePorts(t.Context(), specs)
	if !sdn.IsExhausted(err) || sdn.ReasonOf(err) != sdn.NoAddresses {
		t.Errorf("the error is %v", err)
	}
	made := slices.DeleteFunc(slices.Clone(ports), func(p sdn.Port) bool { return p.ID == "" })
	if len(made) != 3 || d.count() != 3 || slices.Max(d.bulks) != 1 {
		t.Errorf("%d of %d ports were answered; the POSTs were for %v", len(made), d.count(), d.bulks)
	}

	d = newPortDouble(100)
	p, _, _ = onPorts(t, d)
	d.refuse = func(r *http.Request, body []byte) (int, string) {
		if r.Method == http.MethodPost && strings.Contains(string(body), testKey("c").String()) {
			return http.StatusConflict, neutronError("OverQuota", "Quota exceeded for resources: ['port'].")
		}
		return 0, ""
	}
	ports, err = p.EnsurePorts(t.Context(), specs)
	var each *sdn.BulkError
	if !errors.As(err, &each) || len(each.Errs) != 4 || sdn.ReasonOf(each.Errs[2]) != sdn.NoQuota {
		t.Fatalf("the error is %v", err)
	}
	for i, port := range ports {
		if (port.ID == "") != (i == 2) || (each.Errs[i] == nil) != (i != 2) {
			t.Errorf("port %d is %q with error %v", i, port.ID, each.Errs[i])
		}
	}
}

// Finding 8: a bulk is one slow request, so it is cut up.
func TestFinding8BulksAreCutUp(t *testing.T) {
	d := newPortDouble(200)
	p, _, _ := onPorts(t, d)
	var specs []sdn.PortSpec
	for i := range 45 {
		specs = append(specs, portSpec(fmt.Sprint("p", i)))
	}
	ports, err := p.EnsurePorts(t.Context(), specs)
	if err != nil {
		t.Fatal(err)
	}
	for i, port := range ports {
		if port.Key != specs[i].Key {
			t.Errorf("answer %d is %v, want %v", i, port.Key, specs[i].Key)
		}
	}
	slices.Sort(d.bulks)
	if !slices.Equal(d.bulks, []int{5, 20, 20}) {
		t.Errorf("the POSTs were for %v ports", d.bulks)
	}
}

// Finding 10: a plain member may choose little on a network of another project; the error names what.
func TestFinding10ADenialNamesTheField(t *testing.T) {
	for field, c := range map[string]struct {
		rule   string
		change func(*sdn.PortSpec)
	}{
		"mac":  {"(rule:create_port and rule:create_port:mac_address)", func(s *sdn.PortSpec) { s.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 1} }},
		"host": {"((rule:create_port and rule:create_port:binding:host_id) and rule:create_port:mac_address)", func(s *sdn.PortSpec) { s.Host = doubleHost }},
		"allowed_pairs": {"(rule:create_port and rule:create_port:allowed_address_pairs)", func(s *sdn.PortSpec) {
			s.AllowedPairs = []sdn.AllowedPair{{Prefix: netip.MustParsePrefix("10.0.0.0/24")}}
		}},
		"addresses[0]": {
			"(rule:create_port and (rule:create_port:fixed_ips and (rule:create_port:fixed_ips:subnet_id and rule:create_port:fixed_ips:ip_address)))",
			func(s *sdn.PortSpec) {
				s.Addresses = []sdn.Address{{Subnet: doubleSubnet, Addr: netip.MustParseAddr("10.0.0.9")}}
			},
		},
	} {
		d := newPortDouble(100)
		p, _, _ := onPorts(t, d)
		d.refuse = func(r *http.Request, _ []byte) (int, string) {
			if r.Method == http.MethodPost {
				return http.StatusForbidden, neutronError("PolicyNotAuthorized", c.rule+" is disallowed by policy")
			}
			return 0, ""
		}
		spec := portSpec("a")
		c.change(&spec)
		if _, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{spec}); !sdn.IsDenied(err) || sdn.FieldOf(err) != field {
			t.Errorf("the error %v names the field %q, want %q", err, sdn.FieldOf(err), field)
		}
	}
}

// Finding 11: a host that Neutron does not know is an error that names it, and the port is taken back.
func TestFinding11AnUnknownHost(t *testing.T) {
	d := newPortDouble(100)
	p, _, _ := onPorts(t, d)
	spec := portSpec("a")
	spec.Host = "nowhere"
	_, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{spec})
	if sdn.FieldOf(err) != "host" || !strings.Contains(err.Error(), "nowhere") || d.count() != 0 {
		t.Errorf("the error is %v; %d ports are left", err, d.count())
	}
	port := ensurePort(t, p, portSpec("b"))
	host, device, name := "nowhere", "endpoint", "new"
	_, err = p.UpdatePort(t.Context(), port.ID, sdn.PortPatch{Host: &host, DeviceID: &device, Patch: sdn.Patch{Name: &name}})
	if sdn.FieldOf(err) != "host" {
		t.Errorf("the error is %v", err)
	}
	now, err := p.Port(t.Context(), port.ID)
	if err != nil || now.Host != "" || now.DeviceID != "" || now.Name != port.Name || now.VIF.Type != sdn.VIFUnbound {
		t.Errorf("after it the port is %+v, %v", now, err)
	}
}

// Finding 12: what SLAAC adds is there besides what was asked for, and no difference.
func TestFinding12AddressesOfTheMAC(t *testing.T) {
	d := newPortDouble(100)
	d.slaac = netip.MustParsePrefix("fd00:2::/64")
	p, proxy, _ := onPorts(t, d)
	spec := portSpec("a")
	spec.Addresses = []sdn.Address{{Subnet: doubleSubnet}}
	port := ensurePort(t, p, spec)
	if len(port.Addresses) != 2 || port.Addresses[0].Subnet != doubleSubnet {
		t.Errorf("the addresses are %v", port.Addresses)
	}
	ensurePort(t, p, spec)
	if n := proxy.Count(putPorts); n != 0 {
		t.Errorf("a second Ensure changed it, in %d requests", n)
	}
}

// A MAC that the Key names is guarded by Neutron: one request where it is free, a look where it is not.
func TestAMACInTheKeySavesTheLook(t *testing.T) {
	d := newPortDouble(100)
	p, proxy, _ := onPorts(t, d)
	first := ensurePort(t, p, macSpec(1))
	wantCalls(t, proxy, "a new port", postPorts)
	again := ensurePort(t, p, macSpec(1))
	wantCalls(t, proxy, "the port again", postPorts, getPorts)
	if again.ID != first.ID || d.count() != 1 {
		t.Errorf("there are %d ports", d.count())
	}
	other := macSpec(1)
	other.Key.Name += "/other"
	if _, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{other}); sdn.ReasonOf(err) != sdn.MACInUse {
		t.Errorf("another's MAC: the error is %v", err)
	}
	changed := portSpec("by-another-name")
	changed.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 9}
	ensurePort(t, p, changed)
	changed.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 10}
	if got := ensurePort(t, p, changed); d.count() != 2 || got.MAC.String() != changed.MAC.String() {
		t.Errorf("another MAC for a key that names none: there are %d ports, this one with %v", d.count(), got.MAC)
	}
}

// What a container's start and stop cost of ports.
func TestCallsOfAContainersPort(t *testing.T) {
	d := newPortDouble(100)
	p, proxy, now := onPorts(t, d)
	spec := macSpec(1)
	spec.Addresses = []sdn.Address{{Subnet: doubleSubnet}}
	port := ensurePort(t, p, spec)
	at := sdn.PortQuery{Subnets: []sdn.ID{doubleSubnet}, Addresses: []netip.Addr{port.Addresses[0].Addr}}
	find := func(q sdn.PortQuery) sdn.Port {
		t.Helper()
		found, err := sdn.All(p.FindPorts(t.Context(), q))
		if err != nil || len(found) != 1 || found[0].ID != port.ID {
			t.Fatalf("found %v, %v", found, err)
		}
		return found[0]
	}
	endpoint, host, none, name := "endpoint", doubleHost, "", "endpoint-port"
	found := find(at)
	bound, err := p.UpdatePort(t.Context(), found.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: found.Revision, Name: &name}, DeviceID: &endpoint, Host: &host})
	if err != nil {
		t.Fatal(err)
	}
	find(sdn.PortQuery{Devices: []string{endpoint}})
	find(sdn.PortQuery{Match: sdn.Match{Keys: []sdn.Key{port.Key}}})
	find(sdn.PortQuery{Match: sdn.Match{IDs: []sdn.ID{port.ID, port.ID}}})
	wantCalls(t, proxy, "the start", postPorts, putPorts)

	*now = now.Add(time.Hour)
	d.change(bound.ID, func(w *portWire) { w.Status = sdn.PortActive })
	found = find(sdn.PortQuery{Devices: []string{endpoint}})
	if _, err := p.UpdatePort(t.Context(), found.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: found.Revision}, DeviceID: &none, Host: &none}); err != nil {
		t.Fatal(err)
	}
	found = find(at)
	if err := p.DeletePort(t.Context(), found.ID, found.Revision); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, proxy, "the stop", getPorts, putPorts, deletePorts)
	if left, err := sdn.All(p.FindPorts(t.Context(), at)); err != nil || len(left) != 0 {
		t.Errorf("after it there are %v, %v", left, err)
	}
}

// Neutron's own counting does not make a revision stale, another's change does.
func TestRevisionsBehindTheirAnswer(t *testing.T) {
	d := newPortDouble(100)
	p, proxy, _ := onPorts(t, d)
	host, device := doubleHost, "x"
	port := ensurePort(t, p, portSpec("a"))
	bound, err := p.UpdatePort(t.Context(), port.ID, sdn.PortPatch{Host: &host})
	if err != nil {
		t.Fatal(err)
	}
	d.change(port.ID, func(w *portWire) { w.Status = sdn.PortActive })
	proxy.Reset()
	named, err := p.UpdatePort(t.Context(), port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: bound.Revision}, DeviceID: &device})
	if err != nil || named.DeviceID != device {
		t.Errorf("a change after Neutron's own: %+v, %v", named, err)
	}
	wantCalls(t, proxy, "a change after Neutron's own", putPorts, getPorts, putPorts)

	d.change(port.ID, func(w *portWire) { w.DeviceID = "another's" })
	if err := p.DeletePort(t.Context(), port.ID, named.Revision); sdn.ReasonOf(err) != sdn.Stale || d.count() != 1 {
		t.Errorf("a deletion after another's change: %v", err)
	}
	if _, err := p.UpdatePort(t.Context(), port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: bound.Revision}, DeviceID: &device}); sdn.ReasonOf(err) != sdn.Stale {
		t.Errorf("a change at an old revision: %v", err)
	}
}

// What another does to the groups at the same time is not lost.
func TestGroupsAreChangedAsTheyAre(t *testing.T) {
	d := newPortDouble(100)
	p, _, _ := onPorts(t, d)
	spec := portSpec("a")
	spec.Groups = []sdn.ID{"mine"}
	port := ensurePort(t, p, spec)
	d.change(port.ID, func(w *portWire) { w.Groups = append(w.Groups, "theirs") })
	if err := p.AddGroups(t.Context(), port.ID, []sdn.ID{"more", "mine"}); err != nil {
		t.Fatal(err)
	}
	if err := p.RemoveGroups(t.Context(), port.ID, []sdn.ID{"mine", "absent"}); err != nil {
		t.Fatal(err)
	}
	got, err := p.Port(t.Context(), port.ID)
	if err != nil || !sameSet(got.Groups, []sdn.ID{"more", "theirs"}) {
		t.Errorf("the groups are %v, %v", got.Groups, err)
	}
	if err := p.AddGroups(t.Context(), "absent", []sdn.ID{"more"}); !sdn.IsNotFound(err) {
		t.Errorf("of an absent port: %v", err)
	}
}

func TestWaitPorts(t *testing.T) {
	d := newPortDouble(100)
	p, proxy, _ := onPorts(t, d)
	a, b := ensurePort(t, p, portSpec("a")), ensurePort(t, p, portSpec("b"))
	proxy.Reset()
	reads := 0
	d.refuse = func(r *http.Request, _ []byte) (int, string) {
		if reads++; reads == 2 {
			d.ports[string(a.ID)].Status, d.ports[string(b.ID)].Status = sdn.PortActive, sdn.PortActive
		}
		return 0, ""
	}
	if err := p.WaitPorts(t.Context(), []sdn.ID{a.ID, b.ID, a.ID}, sdn.PortActive); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, proxy, "waiting", getPorts, getPorts)
	d.change(b.ID, func(w *portWire) { w.Status = sdn.PortError })
	if err := p.WaitPorts(t.Context(), []sdn.ID{a.ID, b.ID}, sdn.PortDown); !sdn.IsUnavailable(err) {
		t.Errorf("of a port in error: %v", err)
	}
	if err := p.WaitPorts(t.Context(), []sdn.ID{a.ID, "absent"}, sdn.PortActive); !sdn.IsNotFound(err) {
		t.Errorf("of an absent port: %v", err)
	}
}

func TestDeletePortsTellsEach(t *testing.T) {
	d := newPortDouble(100)
	p, _, _ := onPorts(t, d)
	a, b := ensurePort(t, p, portSpec("a")), ensurePort(t, p, portSpec("b"))
	d.refuse = func(r *http.Request, _ []byte) (int, string) {
		if strings.HasSuffix(r.URL.Path, string(a.ID)) {
			return http.StatusConflict, neutronError("PortInUseAsSubPort", "Port is currently a subport for trunk t.")
		}
		return 0, ""
	}
	err := p.DeletePorts(t.Context(), []sdn.ID{a.ID, "", b.ID, "absent", b.ID})
	var each *sdn.BulkError
	if !errors.As(err, &each) || sdn.ReasonOf(each.Errs[0]) != sdn.InUse || slices.ContainsFunc(each.Errs[1:], func(err error) bool { return err != nil }) {
		t.Errorf("the error is %v", err)
	}
	if d.count() != 1 {
		t.Errorf("%d ports are left", d.count())
	}
}

// Neutron takes an address away that a floating IP leads to; the contract does not.
func TestAnAddressThatAFloatingIPLeadsToStays(t *testing.T) {
	d := newPortDouble(100)
	p, proxy, _ := onPorts(t, d)
	spec := portSpec("a")
	spec.DeviceID = "endpoint"
	port := ensurePort(t, p, spec)
	addr := port.Addresses[0].Addr
	d.refuse = func(r *http.Request, _ []byte) (int, string) {
		if strings.HasSuffix(r.URL.Path, "/floatingips") {
			return http.StatusOK, fmt.Sprintf(`{"floatingips": [{"id": "f", "floating_ip_address": "192.0.2.7", "port_id": %q, "fixed_ip_address": %q, "router_id": "r"}]}`, port.ID, addr)
		}
		return 0, ""
	}
	_, err := p.UpdatePort(t.Context(), port.ID, sdn.PortPatch{Addresses: &[]sdn.Address{}})
	if sdn.ReasonOf(err) != sdn.InUse || proxy.Count(putPorts) != 0 {
		t.Errorf("taking it away: %v", err)
	}
	more := []sdn.Address{port.Addresses[0], address(doubleSubnet, "10.0.0.77")}
	if _, err := p.UpdatePort(t.Context(), port.ID, sdn.PortPatch{Addresses: &more}); err != nil {
		t.Errorf("giving it another: %v", err)
	}
}

// An address is one port's on the subnets of one network; of two networks that overlap it may be two ports'.
func TestAddressesOnSeveralSubnets(t *testing.T) {
	d := newPortDouble(100)
	p, proxy, _ := onPorts(t, d)
	port := ensurePort(t, p, portSpec("a"))
	for network, want := range map[string]int{doubleNet: 0, "another": 1} {
		p.cache.subnets.put(&subnetWire{meta: meta{ID: "other"}, Network: network})
		proxy.Reset()
		q := sdn.PortQuery{Subnets: []sdn.ID{"other", doubleSubnet}, Addresses: []netip.Addr{port.Addresses[0].Addr}}
		found, err := sdn.All(p.FindPorts(t.Context(), q))
		if err != nil || len(found) != 1 || proxy.Count(getPorts) != want {
			t.Errorf("with a subnet of %s: %d found by %d requests, %v", network, len(found), proxy.Count(getPorts), err)
		}
	}
}
