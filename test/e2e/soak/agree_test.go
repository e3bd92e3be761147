//go:build e2e

package soak_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/backoff"
)

// verdict is one comparison of the three.
type verdict struct {
	engine *engineWorld
	store  *store
	kernel *kernel
	wrong  []string
	// forgotten is what Docker's API does not know any more: the engine ignores that its
	// cleaning calls fail when a daemon is killed in them. By noun, ids.
	forgotten map[string][]string
	// contradicted are endpoints of Kuryr's that a running container has, and Docker has not, or not consistently.
	contradicted map[string]bool
}

func (v *verdict) bad(format string, args ...any) {
	v.wrong = append(v.wrong, fmt.Sprintf(format, args...))
}

func (v *verdict) forget(noun string, o object) {
	v.forgotten[noun] = append(v.forgotten[noun], o.text("id"))
}

// patience is longer than it takes until a network that no engine was seen to have may be removed.
const patience = 3 * time.Minute

// agree compares until nothing differs: links are deleted behind the callers' backs, and
// what Docker has forgotten goes after a grace.
func (s *soak) agree(when string) {
	s.t.Helper()
	var v *verdict
	start := time.Now()
	wait := backoff.Backoff{Min: 200 * time.Millisecond, Max: 2 * time.Second}
	for {
		var err error
		v, err = s.compare() // it may fail because something goes while it is looked at
		late := time.Since(start) > patience
		if err != nil && late {
			s.t.Fatalf("compare %s: %v", when, err)
		}
		if err == nil && (late || len(v.wrong)+len(v.forgotten) == 0) {
			break
		}
		time.Sleep(wait.Next())
	}
	for _, w := range v.wrong {
		s.bad("%s: %s", when, w)
	}
	for noun, ids := range v.forgotten {
		for _, id := range ids {
			s.bad("%s: Docker does not know %s %s", when, noun, id)
		}
	}
	s.t.Logf(
		"%s: after %s Docker knows %d endpoints, %d networks, %d published ports, Kuryr has "+
			"plugged %d; contradictions %d, of them on endpoints %d",
		when, time.Since(start).Round(time.Second), len(v.engine.endpoints), len(v.engine.networks),
		len(v.engine.published), len(v.kernel.taps),
		len(v.engine.contradictions), len(v.contradicted))
	for _, c := range v.engine.contradictions {
		s.t.Logf("Docker contradicts itself about %s", c)
	}
	s.doctor(when, v)
}

// doctor asks kuryr doctor: it names what stays although Docker does not have it, and nothing else.
func (s *soak) doctor(when string, v *verdict) {
	s.t.Helper()
	text := s.sh(kuryr, "doctor").Stdout
	for endpoint := range v.contradicted {
		if !v.engine.denied[endpoint] && !strings.Contains(text, endpoint) {
			s.bad(
				"%s: kuryr doctor does not name endpoint %s, which a container has and Docker "+
					"has not:\n%s",
				when, endpoint, text,
			)
		}
	}
	if len(v.contradicted) == 0 && strings.Contains(text, "is forgotten") || strings.Contains(text, "should be gone") {
		s.bad("%s: kuryr doctor finds what Docker has forgotten:\n%s", when, text)
	}
}

func (s *soak) compare() (*verdict, error) {
	v := &verdict{forgotten: map[string][]string{}, contradicted: map[string]bool{}}
	var err error
	if v.engine, err = s.askEngine(); err != nil {
		return nil, err
	}
	if v.store, err = s.askStore(); err != nil {
		return nil, err
	}
	if v.kernel, err = s.askKernel(); err != nil {
		return nil, err
	}
	for _, c := range v.engine.contradictions {
		// An engine that was killed may have a container run whose endpoint it has
		// forgotten: the container keeps it, and nothing can be compared with that.
		if s.calm {
			v.bad("Docker contradicts itself about %s", c)
		}
	}
	v.networks()
	v.pools()
	s.ports(v)
	v.published()
	if r := s.sh(kuryr, "sdn", "check"); !r.OK() {
		v.bad("kuryr sdn check: %s", r)
	}
	if r := s.sh(kuryr, "status"); !r.OK() {
		v.bad("kuryr status: %s", r)
	}
	return v, nil
}

// networks compares networks, subnets, routers and namespaces.
func (v *verdict) networks() {
	there := map[string]bool{}
	spaces := map[string]bool{}
	shared := map[string]bool{}
	routed := map[string]string{} // network → router
	for _, p := range v.store.ports {
		if p.text("device_owner") == "network:router_interface" {
			routed[p.text("network_id")] = p.text("device_id")
		}
	}
	for id, n := range v.store.networks {
		kind, name := n.key()
		switch _, known := v.engine.networks[name]; {
		case kind != "docker-network":
			v.bad("a network that no one asked for: %v", n)
		case !known:
			v.forget("network", n)
		case there[name]:
			v.bad("two networks for Docker's %s", name)
		default:
			there[name] = true
		}
		spaces[id] = routed[id] == ""
		tags, _ := n["tags"].([]any)
		for _, tag := range tags {
			if _, router, ok := strings.Cut(fmt.Sprint(tag), "kuryr.docker.router="); ok {
				shared[router] = true
			}
		}
	}
	for id, name := range v.engine.networks {
		if !there[id] {
			v.bad("Kuryr has not network %s", name)
		}
	}
	var uplinks []string
	for id, r := range v.store.routers {
		kind, name := r.key()
		_, known := v.engine.networks[name]
		switch {
		case kind == "docker-router" && !known:
			v.forget("router", r)
		case kind == "docker-shared-router" && !shared[name], kind != "docker-router" && kind != "docker-shared-router":
			v.bad("a router that no network is on: %v", r)
		}
		spaces[id] = true
		if r["external_gateway_info"] != nil {
			uplinks = append(uplinks, "kr"+id[:11])
		}
	}
	for id, wanted := range spaces {
		if wanted != v.kernel.namespaces[id] {
			v.bad("namespace of %s: wanted %v, there %v", id, wanted, !wanted)
		}
	}
	for ns := range v.kernel.namespaces {
		if !spaces[ns] {
			v.bad("namespace %s is of nothing in the store", ns)
		}
	}
	slices.Sort(uplinks)
	slices.Sort(v.kernel.uplinks)
	if !slices.Equal(uplinks, v.kernel.uplinks) {
		v.bad("uplinks of routers: the store wants %v, the kernel has %v", uplinks, v.kernel.uplinks)
	}
}

// pools compares subnet pools with the ranges of Docker's networks.
func (v *verdict) pools() {
	left := map[string]int{}
	for cidr, n := range v.engine.ranges {
		left[cidr] += n
	}
	for _, p := range v.store.pools {
		prefixes, _ := p["prefixes"].([]any)
		cidr := fmt.Sprint(prefixes...)
		if left[cidr] == 0 {
			v.forget("subnetpool", p)
			continue
		}
		left[cidr]--
	}
	for cidr, n := range left {
		if n > 0 {
			v.bad("%d pools of range %s are missing", n, cidr)
		}
	}
}

// ports compares ports with Docker's endpoints, and with what is plugged.
func (s *soak) ports(v *verdict) {
	taps := map[string]bool{}   // that must be there
	excuse := map[string]bool{} // that may be
	guarded := map[string]bool{}
	there := map[string]bool{}
	for id, p := range v.store.ports {
		switch owner := p.text("device_owner"); {
		case strings.HasPrefix(owner, "network:"):
			continue
		case p.text("network_id") == v.store.outside:
			continue
		}
		tap := "tap" + id[:11]
		if p.text("binding:host_id") != "" {
			guarded[tap+" "+p.text("mac_address")] = true
		}
		e, known := v.engine.endpoints[p.text("device_id")]
		if !known {
			excuse[tap] = true
			if s.contradicts(v, p) {
				v.contradicted[p.text("device_id")] = true
			} else {
				v.forget("port", p)
			}
			continue
		}
		if there[e.id] {
			v.bad("two ports for endpoint %s of %s", e.id, e.container)
		}
		there[e.id] = true
		_, network := v.store.networks[p.text("network_id")].key()
		if network != e.network || p.text("mac_address") != e.mac || !slices.Equal(p.addresses(), e.addresses) {
			v.bad("endpoint %+v of Docker is in Kuryr %s %s %v", e, network, p.text("mac_address"), p.addresses())
		}
		if e.pid == 0 {
			excuse[tap] = true
			continue
		}
		taps[tap] = true
		if got, err := s.inside(e.pid, e.mac); err != nil {
			v.bad("endpoint %+v in its container: %v", e, err)
		} else if !slices.Equal(got, e.addresses) {
			v.bad("endpoint %+v has %v in its container", e, got)
		}
	}
	for _, e := range v.engine.endpoints {
		if !there[e.id] {
			v.bad("Kuryr has no port for endpoint %+v", e)
		}
	}
	for tap := range taps {
		if v.kernel.taps[tap] == "" {
			v.bad("%s is not plugged", tap)
		}
	}
	for tap, ns := range v.kernel.taps {
		if !taps[tap] && !excuse[tap] {
			v.bad("%s in %s is of no endpoint", tap, ns)
		}
	}
	for element := range guarded {
		if !v.kernel.guarded[element] {
			v.bad("the guard does not know %s", element)
		}
	}
	for element := range v.kernel.guarded {
		if !guarded[element] {
			v.bad("the guard has %s, which is no port", element)
		}
	}
}

// contradicts tells whether a port that Docker's networks do not know is a running
// container's, by what Docker says of the container: it names the endpoint, or it names
// none on a network where it has the interface.
func (s *soak) contradicts(v *verdict, p object) bool {
	if v.engine.denied[p.text("device_id")] {
		return true
	}
	_, network := v.store.networks[p.text("network_id")].key()
	return slices.ContainsFunc(v.engine.bereft[network], func(pid int) bool {
		_, err := s.inside(pid, p.text("mac_address"))
		return err == nil
	})
}

// published compares floating IPs and the host's published ports with the bindings of running containers.
func (v *verdict) published() {
	for _, f := range v.store.floating {
		kind, name := f.key()
		endpoint, _, _ := strings.Cut(name, "/")
		if _, known := v.engine.endpoints[endpoint]; kind != "docker-publish" {
			v.bad("a floating IP that no one asked for: %v", f)
		} else if !known && !v.contradicted[endpoint] {
			v.forget("floatingip", f)
		}
	}
	has := map[string]bool{}
	for _, p := range v.kernel.published["4"] {
		has[p] = true
	}
	for p := range v.engine.published {
		if !has[p] {
			v.bad("port %s is not published", p)
		}
	}
	for p := range has {
		if !v.engine.published[p] && len(v.forgotten["floatingip"]) == 0 && len(v.contradicted) == 0 {
			v.bad("port %s is published for no container", p)
		}
	}
	for _, p := range v.kernel.published["6"] {
		if !has[p] {
			v.bad("port %s is published in IPv6 only", p)
		}
	}
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
