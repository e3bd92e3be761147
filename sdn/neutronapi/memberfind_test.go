package neutronapi

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// noting is a provider that notes what is asked of it.
type noting struct {
	sdn.Provider
	ports    []sdn.PortQuery
	subnets  []sdn.SubnetQuery
	networks []sdn.NetworkQuery
	pools    []sdn.SubnetPoolQuery
	others   []sdn.Match
}

func (p *noting) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	p.ports = append(p.ports, q)
	return p.Provider.FindPorts(ctx, q)
}

func (p *noting) FindSubnets(ctx context.Context, q sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	p.subnets = append(p.subnets, q)
	return p.Provider.FindSubnets(ctx, q)
}

func (p *noting) FindNetworks(ctx context.Context, q sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	p.networks = append(p.networks, q)
	return p.Provider.FindNetworks(ctx, q)
}

func (p *noting) FindSubnetPools(ctx context.Context, q sdn.SubnetPoolQuery) iter.Seq2[sdn.SubnetPool, error] {
	p.pools = append(p.pools, q)
	return p.Provider.FindSubnetPools(ctx, q)
}

func (p *noting) FindRouters(ctx context.Context, q sdn.RouterQuery) iter.Seq2[sdn.Router, error] {
	p.others = append(p.others, q.Match)
	return p.Provider.FindRouters(ctx, q)
}

func (p *noting) FindSecurityGroups(ctx context.Context, q sdn.SecurityGroupQuery) iter.Seq2[sdn.SecurityGroup, error] {
	p.others = append(p.others, q.Match)
	return p.Provider.FindSecurityGroups(ctx, q)
}

// A list of a member's has what its project has and what is on its networks, page by page, each once and in order, and looks at nothing that others have.
func TestMembersLists(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := Caller{Project: "a", Role: Member}
	network := func(c Caller, body string) sdn.ID {
		return sdn.ID(w.made(t, c, "POST", "/v2.0/networks", `{"network":`+body+`}`, "network.id"))
	}
	own := []sdn.ID{network(a, `{}`), network(a, `{}`)}
	shared := network(root, `{"shared":true,"project_id":"c"}`)
	port := func(network sdn.ID, project string) string {
		return w.made(t, root, "POST", "/v2.0/ports", `{"port":{"network_id":"`+string(network)+`","project_id":"`+project+`"}}`, "port.id")
	}
	var onOwn, onShared, ofOthers []string
	for range 4 {
		onOwn = append(onOwn, port(own[0], "a"), port(own[1], "a"))
		ofOthers = append(ofOthers, port(own[0], "b"))
		onShared = append(onShared, port(shared, "a"))
		port(shared, "c")
	}
	asked := &noting{Provider: w.sdn}
	w.handler = NewHandler(asked, Options{})
	for _, tc := range []struct {
		query string
		want  []string
	}{
		{"ports", slices.Concat(onOwn, onShared, ofOthers)}, {"ports?project_id=a", slices.Concat(onOwn, onShared)}, {"ports?project_id=b", ofOthers}, {"ports?project_id=c", nil},
		{"ports?network_id=" + string(shared), onShared}, {"ports?network_id=" + string(shared) + "&network_id=" + string(own[1]), slices.Concat(onShared, onOwn[1:2], onOwn[3:4], onOwn[5:6], onOwn[7:])},
		{"ports?network_id=none", nil}, {"ports?id=" + onOwn[0], onOwn[:1]}, {"ports?name=none", nil},
	} {
		slices.Sort(tc.want)
		if got := w.listed(t, a, tc.query, "id"); !slices.Equal(got, tc.want) && len(got)+len(tc.want) > 0 {
			t.Errorf("%s: %v, want %v", tc.query, got, tc.want)
		}
	}
	all := slices.Concat(onOwn, onShared, ofOthers)
	slices.Sort(all)
	var paged []string
	for page := w.listed(t, a, "ports?limit=3", "id"); len(page) > 0; page = w.listed(t, a, "ports?limit=3&marker="+page[len(page)-1], "id") {
		paged = append(paged, page...)
	}
	if !slices.Equal(paged, all) {
		t.Errorf("page by page: %v, want %v", paged, all)
	}
	for _, q := range asked.ports {
		onlyOwn := len(q.Networks) > 0 && !slices.ContainsFunc(q.Networks, func(id sdn.ID) bool { return !slices.Contains(own, id) })
		if len(q.IDs) == 0 && !slices.Equal(q.Projects, []string{"a"}) && !onlyOwn {
			t.Errorf("the ports of others are looked through: %+v", q)
		}
	}
	for _, query := range []string{"routers", "routers?project_id=c", "routers?name=r", "security-groups?project_id=c", "security-group-rules?project_id=c"} {
		_, out := w.ask(t, a, "GET", "/v2.0/"+query, "")
		if got := at(out, "routers.#") + at(out, "security_groups.#") + at(out, "security_group_rules.#"); got != "0absentabsent" && got != "absent0absent" && got != "absentabsent0" {
			t.Errorf("%s: %v", query, out)
		}
	}
	for _, m := range asked.others {
		if !slices.Equal(m.Projects, []string{"a"}) {
			t.Errorf("what others have is looked through: %+v", m)
		}
	}
}

// So do lists of networks, subnets and subnet pools: what is the project's, on its networks, and what is shared with it or leads out.
func TestMembersListsOfWhatIsShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := Caller{Project: "a", Role: Member}
	builtIn, err := sdn.All(w.sdn.FindNetworks(t.Context(), sdn.NetworkQuery{}))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"subnets": nil, "subnetpools": nil, "networks": nil}
	for _, n := range builtIn {
		if n.Shared || n.External {
			want["networks"] = append(want["networks"], string(n.ID))
		}
		for _, id := range n.Subnets {
			if !n.Shared {
				continue
			}
			want["subnets"] = append(want["subnets"], string(id))
		}
	}
	subnets := 0
	for i, c := range []struct {
		attributes       string
		network, subnets bool // are seen
	}{
		{`"project_id":"a"`, true, true}, {`"project_id":"b"`, false, false}, {`"project_id":"b","shared":true`, true, true}, {`"project_id":"a","shared":true`, true, true},
		{`"project_id":"b","router:external":true`, true, false},
	} {
		network := w.made(t, root, "POST", "/v2.0/networks", `{"network":{`+c.attributes+`}}`, "network.id")
		if c.network {
			want["networks"] = append(want["networks"], network)
		}
		for _, project := range []string{"a", "b"} {
			subnets++
			id := w.made(t, root, "POST", "/v2.0/subnets", fmt.Sprintf(`{"subnet":{"network_id":%q,"project_id":%q,"ip_version":4,"cidr":"10.%d.0.0/24"}}`, network, project, subnets), "subnet.id")
			if c.subnets || project == "a" {
				want["subnets"] = append(want["subnets"], id)
			}
		}
		if i == 4 { // subnet pools are not external
			continue
		}
		pool := w.made(t, root, "POST", "/v2.0/subnetpools", `{"subnetpool":{"name":"p","prefixes":["10.0.0.0/16"],`+c.attributes+`}}`, "subnetpool.id")
		if c.network {
			want["subnetpools"] = append(want["subnetpools"], pool)
		}
	}
	asked := &noting{Provider: w.sdn}
	w.handler = NewHandler(asked, Options{})
	for noun, ids := range want {
		slices.Sort(ids)
		if got := w.listed(t, a, noun, "id"); !slices.Equal(got, ids) {
			t.Errorf("%s: %v, want %v", noun, got, ids)
		}
		var paged []string
		for page := w.listed(t, a, noun+"?limit=2", "id"); len(page) > 0; page = w.listed(t, a, noun+"?limit=2&marker="+page[len(page)-1], "id") {
			paged = append(paged, page...)
		}
		if !slices.Equal(paged, ids) {
			t.Errorf("%s page by page: %v, want %v", noun, paged, ids)
		}
		if got := w.listed(t, a, noun+"?project_id=c", "id"); len(got) > 0 {
			t.Errorf("%s of nobody: %v", noun, got)
		}
	}
	own := func(m sdn.Match) bool { return len(m.IDs) > 0 || slices.Equal(m.Projects, []string{"a"}) }
	is := func(b *bool) bool { return b != nil && *b }
	for _, q := range asked.networks {
		if !own(q.Match) && !is(q.Shared) && !is(q.External) {
			t.Errorf("the networks of others are looked through: %+v", q)
		}
	}
	for _, q := range asked.subnets {
		if !own(q.Match) && len(q.Networks) == 0 {
			t.Errorf("the subnets of others are looked through: %+v", q)
		}
	}
	for _, q := range asked.pools {
		if !own(q.Match) && !is(q.Shared) {
			t.Errorf("the subnet pools of others are looked through: %+v", q)
		}
	}
}
