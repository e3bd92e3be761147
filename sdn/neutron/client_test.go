package neutron

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// A redirect is not followed: the token would go elsewhere.
func TestRedirect(t *testing.T) {
	t.Parallel()
	p, proxy := onDouble(t, newDouble(), nil)
	elsewhere := neutrontest.NewBefore(t, newDouble())
	proxy.Say(neutrontest.Call{}, 100, neutrontest.Answer{Status: http.StatusFound, Header: map[string]string{"Location": elsewhere.URL}})
	if err := p.Ping(t.Context()); err == nil {
		t.Error("a redirect was followed")
	}
	if n := elsewhere.Count(neutrontest.Call{}); n != 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

func TestAnswerTooLarge(t *testing.T) {
	t.Parallel()
	body := &boundedBody{http.NoBody, 0}
	if _, err := body.Read(make([]byte, 1)); !errors.Is(err, errTooLarge) {
		t.Errorf("the error is %v", err)
	}
}

func TestListPages(t *testing.T) {
	t.Parallel()
	d := newDouble()
	for range 2*pageSize + 10 {
		d.add("networks", map[string]any{})
	}
	p, proxy := onDouble(t, d, nil)
	seen := map[sdn.ID]bool{}
	for n, err := range p.FindNetworks(t.Context(), sdn.NetworkQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if seen[n.ID] {
			t.Fatalf("%s was found twice", n.ID)
		}
		seen[n.ID] = true
		if err := p.DeleteNetwork(t.Context(), n.ID); err != nil { // also those that pages follow
			t.Fatal(err)
		}
	}
	if len(seen) != 2*pageSize+10 || d.count("networks") != 0 {
		t.Errorf("%d were found, %d are left", len(seen), d.count("networks"))
	}
	if n := proxy.Count(getNetworks); n != 3 {
		t.Errorf("%d pages were asked for, want 3", n)
	}
}

// A page follows an object that somebody else has deleted meanwhile.
func TestListPageAfterTheDeleted(t *testing.T) {
	t.Parallel()
	d := newDouble()
	for range pageSize + 2 {
		d.add("networks", map[string]any{})
	}
	p, _ := onDouble(t, d, nil)
	pages := 0
	d.arriving = func(r *http.Request) {
		if r.URL.Path == "/v2.0/networks" {
			if pages++; pages == 2 {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.objects["networks"] = append(d.objects["networks"][:pageSize-1:pageSize-1], d.objects["networks"][pageSize:]...)
			}
		}
	}
	found, err := sdn.All(p.FindNetworks(t.Context(), sdn.NetworkQuery{}))
	if err != nil || len(found) != pageSize+2 {
		t.Errorf("found %d, error %v", len(found), err)
	}
}

// Long lists of ids go in several URLs, none longer than servers in front of Neutron take.
func TestListManyIDs(t *testing.T) {
	t.Parallel()
	d := newDouble()
	var ids []sdn.ID
	for range 350 {
		o := map[string]any{}
		d.add("networks", o)
		ids = append(ids, sdn.ID(o["id"].(string)))
	}
	longest := 0
	d.arriving = func(r *http.Request) { longest = max(longest, len(r.URL.String())) }
	p, proxy := onDouble(t, d, nil)
	found, err := sdn.All(p.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{IDs: append(ids, ids[0])}}))
	if err != nil || len(found) != len(ids) {
		t.Errorf("found %d, error %v", len(found), err)
	}
	if n := proxy.Count(getNetworks); n < 4 || longest > 4000 {
		t.Errorf("%d requests, the longest URL %d bytes", n, longest)
	}
}

func TestMandatoryExtensionMissing(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.aliases = []string{"router"}
	p, _ := onDouble(t, d, nil)
	err := p.Ping(t.Context())
	if !sdn.IsUnsupported(err) || !strings.Contains(err.Error(), "standard-attr-description") {
		t.Errorf("the error is %v", err)
	}
}

// Capabilities follow the extensions; before Neutron was asked they are what is usual.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.aliases = []string{"standard-attr-description", "trunk", "address-group", "security-groups-remote-address-group"}
	p, _ := onDouble(t, d, nil)
	if before := p.Capabilities(); !before.Routers || before.Trunks {
		t.Errorf("before Neutron was asked: %+v", before)
	}
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := p.Capabilities(); after.Routers || !after.Trunks || after.WatchPorts {
		t.Errorf("after Neutron was asked: %+v", after)
	}
}

// Finding 9: before release 26 a rule with an address group let everyone in with ML2/OVN, under the same aliases.
func TestFinding09AddressGroups(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.aliases = append(d.aliases, "address-group", "security-groups-remote-address-group")
	for _, safe := range []bool{false, true} {
		if safe {
			d.aliases = append(d.aliases, "quota-check-limit-default")
		}
		p, _ := onDouble(t, d, nil)
		if err := p.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := p.Capabilities().AddressGroups; got != safe {
			t.Errorf("address groups are offered: %v, want %v", got, safe)
		}
	}
}

// Finding 14: whether a load balancer keeps the client's address depends on its driver, so nothing is promised of any before it is known.
func TestFinding14NoLoadBalancerIsPromised(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.aliases = append(d.aliases, "lbaasv2")
	p, _ := onDouble(t, d, nil)
	for _, asked := range []bool{false, true} {
		if can := p.Capabilities().LoadBalancer; can.ClientIPKept || len(can.Protocols) > 0 {
			t.Errorf("asked %t: %+v", asked, can)
		}
		if err := p.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
