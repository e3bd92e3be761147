//go:build e2e

package soak_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// endpoint is what Docker's API says of one.
type endpoint struct {
	id, network string // network is Docker's id
	mac         string
	addresses   []string // sorted, without length
	pid         int      // 0: no running container has it
	container   string
}

// engineWorld is what Docker knows: all that Kuryr is there for.
type engineWorld struct {
	networks  map[string]string // id → name, of Kuryr's
	ranges    map[string]int    // CIDR of networks with Kuryr's IPAM → how many
	endpoints map[string]endpoint
	published map[string]bool // "tcp 8080", of running containers on a network with a way out
	// contradictions are running containers whose own list of endpoints is not the networks'.
	contradictions []string
	denied         map[string]bool  // endpoints that a running container has and its network has not
	bereft         map[string][]int // network → pids of containers that run on it and have no endpoint there
}

func (s *soak) get(path string, into any) error {
	resp, err := s.UnixClient(privatehost.DockerSocket).Get("http://docker" + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != 200 {
		return fmt.Errorf("%s: status %d: %s", path, resp.StatusCode, text)
	}
	return json.Unmarshal(text, into)
}

type settings struct {
	EndpointID, NetworkID, IPAddress, GlobalIPv6Address, MacAddress, Gateway string
}

func bareAddress(s string) string {
	bare, _, _ := strings.Cut(s, "/")
	return bare
}

func sorted(addresses ...string) []string {
	return slices.Sorted(slices.Values(slices.DeleteFunc(addresses, func(a string) bool { return a == "" })))
}

// told is why a command's output is no good.
func told(err error, r privatehost.Result) error { return errors.Join(err, errors.New(r.String())) }

// askEngine reads Docker's view.
func (s *soak) askEngine() (*engineWorld, error) {
	w := &engineWorld{
		networks: map[string]string{}, ranges: map[string]int{}, endpoints: map[string]endpoint{},
		published: map[string]bool{},
		denied:    map[string]bool{}, bereft: map[string][]int{}}
	var networks []struct{ ID, Name, Driver string }
	if err := s.get("/networks", &networks); err != nil {
		return nil, err
	}
	for _, n := range networks {
		if n.Driver != "kuryr" {
			continue
		}
		var one struct {
			IPAM struct {
				Driver string
				Config []struct{ Subnet string }
			}
			Containers map[string]struct{ Name, EndpointID, MacAddress, IPv4Address, IPv6Address string }
		}
		if err := s.get("/networks/"+n.ID, &one); err != nil {
			return nil, err
		}
		w.networks[n.ID] = n.Name
		if one.IPAM.Driver == "kuryr" {
			for _, c := range one.IPAM.Config {
				w.ranges[c.Subnet]++
			}
		}
		for _, e := range one.Containers {
			w.endpoints[e.EndpointID] = endpoint{id: e.EndpointID, network: n.ID, mac: e.MacAddress, container: e.Name,
				addresses: sorted(bareAddress(e.IPv4Address), bareAddress(e.IPv6Address))}
		}
	}
	return w, s.askContainers(w)
}

func (s *soak) askContainers(w *engineWorld) error {
	var containers []struct{ ID string }
	if err := s.get("/containers/json?all=1", &containers); err != nil {
		return err
	}
	for _, c := range containers {
		var one struct {
			Name       string
			State      struct{ Pid int }
			HostConfig struct {
				PortBindings map[string][]struct{ HostPort string }
			}
			NetworkSettings struct{ Networks map[string]settings }
		}
		if err := s.get("/containers/"+c.ID+"/json", &one); err != nil {
			return err
		}
		out := false
		for _, n := range one.NetworkSettings.Networks {
			if _, ours := w.networks[n.NetworkID]; !ours || one.State.Pid == 0 {
				continue // of one that does not run a killed engine leaves what was
			}
			e, known := w.endpoints[n.EndpointID]
			if !known {
				w.denied[n.EndpointID] = true
				w.bereft[n.NetworkID] = append(w.bereft[n.NetworkID], one.State.Pid)
			}
			if !known || e.mac != n.MacAddress || !slices.Equal(e.addresses, sorted(n.IPAddress, n.GlobalIPv6Address)) {
				w.contradictions = append(w.contradictions, fmt.Sprintf("%s: %+v, but the network says %+v", one.Name, n, e))
				continue
			}
			e.pid = one.State.Pid
			w.endpoints[n.EndpointID] = e
			out = out || n.Gateway != ""
		}
		for port, bindings := range one.HostConfig.PortBindings {
			_, protocol, _ := strings.Cut(port, "/")
			for _, b := range bindings {
				if out && one.State.Pid > 0 {
					w.published[protocol+" "+b.HostPort] = true
				}
			}
		}
	}
	return nil
}

// object is one of Kuryr's, in the form its commands print.
type object map[string]any

func (o object) text(name string) string { return fmt.Sprint(o[name]) }

// key is the part of an object's Key after the installation: its kind and name.
func (o object) key() (kind, name string) {
	parts := strings.SplitN(o.text("description"), "/", 4)
	if len(parts) < 4 || parts[0] != "kuryr" {
		return "", ""
	}
	return parts[2], parts[3]
}

func (o object) addresses() (all []string) {
	fixed, _ := o["fixed_ips"].([]any)
	for _, f := range fixed {
		if m, ok := f.(map[string]any); ok {
			all = append(all, fmt.Sprint(m["ip_address"]))
		}
	}
	slices.Sort(all)
	return all
}

// store is what Kuryr's store has, without the network that stands for the outside.
type store struct {
	networks, subnets, ports, routers, pools, floating map[string]object // by id
	outside                                            string
}

func (s *soak) askStore() (*store, error) {
	w := &store{}
	for noun, into := range map[string]*map[string]object{
		"network": &w.networks, "subnet": &w.subnets, "port": &w.ports, "router": &w.routers,
		"subnetpool": &w.pools, "floatingip": &w.floating,
	} {
		r := s.sh(kuryr, noun, "list", "-o", "json")
		var list []object
		if err := json.Unmarshal([]byte(r.Stdout), &list); err != nil || !r.OK() {
			return nil, told(err, r)
		}
		*into = map[string]object{}
		for _, o := range list {
			(*into)[o.text("id")] = o
		}
	}
	for id, n := range w.networks {
		if n["router:external"] == true {
			w.outside = id
			delete(w.networks, id)
		}
	}
	for id, o := range w.subnets {
		if o.text("network_id") == w.outside {
			delete(w.subnets, id)
		}
	}
	return w, nil
}

// kernel is what the kernel has of Kuryr.
type kernel struct {
	namespaces map[string]bool     // by name
	taps       map[string]string   // port's host end → namespace
	uplinks    []string            // the host's ends of routers
	published  map[string][]string // "4" and "6" → "tcp 8080"
	guarded    map[string]bool     // "tap… fa:16:…" in the sets of the guard
}

func (s *soak) askKernel() (*kernel, error) {
	k := &kernel{
		namespaces: map[string]bool{}, taps: map[string]string{}, published: map[string][]string{},
		guarded: map[string]bool{},
	}
	links := func(prefix string, argv ...string) (names []string, err error) {
		r := s.sh(append(argv, "ip", "-j", "link")...)
		var list []struct{ Ifname string }
		if err := json.Unmarshal([]byte(r.Stdout), &list); err != nil || !r.OK() {
			return nil, told(err, r)
		}
		for _, l := range list {
			if strings.HasPrefix(l.Ifname, prefix) {
				names = append(names, l.Ifname)
			}
		}
		return names, nil
	}
	var err error
	if k.uplinks, err = links("kr"); err != nil {
		return nil, err
	}
	stray, err := links("tap")
	if err != nil {
		return nil, err
	}
	for _, name := range stray {
		k.taps[name] = "the host"
	}
	for _, ns := range strings.Fields(s.sh("ls", "/run/kuryr/netns").Stdout) {
		k.namespaces[ns] = true
		enter := []string{"nsenter", "--net=/run/kuryr/netns/" + ns, "--"}
		taps, err := links("tap", enter...)
		if err != nil {
			return nil, err
		}
		for _, name := range taps {
			k.taps[name] = ns
		}
		macs, err := s.elements(enter, "set", "bridge", "kuryr", "macs")
		if err != nil {
			return nil, err
		}
		for _, e := range macs {
			k.guarded[strings.Join(e, " ")] = true
		}
	}
	for _, family := range []string{"4", "6"} {
		list, err := s.elements(nil, "map", "inet", "kuryr", "published"+family)
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			k.published[family] = append(k.published[family], e[0]+" "+e[1])
		}
	}
	return k, nil
}

// elements lists the concatenated keys of an nftables set or map.
func (s *soak) elements(enter []string, what ...string) (keys [][]string, err error) {
	r := s.sh(append(append(slices.Clone(enter), "nft", "-j", "list"), what...)...)
	if !r.OK() {
		return nil, fmt.Errorf("%s", r)
	}
	// The first item is the version, of another form.
	var out struct{ Nftables []map[string]json.RawMessage }
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
		return nil, fmt.Errorf("%w: %s", err, r)
	}
	for _, item := range out.Nftables {
		text, ok := item[what[0]]
		if !ok {
			continue
		}
		var set struct{ Elem []json.RawMessage }
		if err := json.Unmarshal(text, &set); err != nil {
			return nil, fmt.Errorf("%w: %s", err, r)
		}
		for _, e := range set.Elem {
			keys = append(keys, concat(e))
		}
	}
	return keys, nil
}

// concat reads the key of an element: {"concat": […]}, or [key, value] in a map.
func concat(raw json.RawMessage) (parts []string) {
	var pair []json.RawMessage
	if json.Unmarshal(raw, &pair) == nil && len(pair) == 2 {
		return concat(pair[0])
	}
	var key struct{ Concat []any }
	if json.Unmarshal(raw, &key) != nil {
		return []string{string(raw)}
	}
	for _, p := range key.Concat {
		parts = append(parts, fmt.Sprint(p))
	}
	return parts
}

// inside reads a link of a container: by its MAC, the addresses that are not link-local.
func (s *soak) inside(pid int, mac string) (addresses []string, err error) {
	r := s.sh("nsenter", "-t", fmt.Sprint(pid), "-n", "--", "ip", "-j", "addr")
	var links []struct {
		Address  string
		Flags    []string
		AddrInfo []struct{ Local string } `json:"addr_info"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &links); err != nil || !r.OK() {
		return nil, told(err, r)
	}
	for _, l := range links {
		if l.Address != mac {
			continue
		}
		if !slices.Contains(l.Flags, "LOWER_UP") {
			return nil, fmt.Errorf("the link is down: %s", r)
		}
		for _, a := range l.AddrInfo {
			if addr, err := netip.ParseAddr(a.Local); err == nil && !addr.IsLinkLocalUnicast() {
				addresses = append(addresses, a.Local)
			}
		}
		slices.Sort(addresses)
		return addresses, nil
	}
	return nil, fmt.Errorf("no link with MAC %s: %s", mac, r)
}
