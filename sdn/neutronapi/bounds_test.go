package neutronapi

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/ipprefix"
)

// many writes a list of n elements.
func many(n int, element func(i int) string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = element(i)
	}
	return "[" + strings.Join(all, ",") + "]"
}

// What a body may ask for is bounded by more than its size.
func TestBounds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tags := func(n int) string { return many(n, func(i int) string { return fmt.Sprintf(`"t%d"`, i) }) }
	network := "/v2.0/networks/" + string(w.network.ID)
	scattered := many(maxItems, func(i int) string { return fmt.Sprintf(`"fd00:%x::/128"`, i) })
	w.steps(t, root, []step{
		{"POST", "/v2.0/networks", `{"networks":` + many(maxItems+1, func(int) string { return "{}" }) + `}`, 400, "HTTPBadRequest: at most 1024 are made at once"},
		{"PUT", network + "/tags", `{"tags":` + tags(maxTags) + `}`, 200, "tags.#=50"},
		{"PUT", network + "/tags", `{"tags":` + tags(maxTags+1) + `}`, 400, "HTTPBadRequest: at most 50 tags"},
		{"PUT", network + "/tags", `{"tags":` + tags(50_000) + `}`, 400, "HTTPBadRequest: at most 50 tags"},
		{"POST", "/v2.0/networks", `{"network":{"tags":` + tags(maxTags+1) + `}}`, 400, "HTTPBadRequest: at most 50 tags"},
		{"POST", "/v2.0/networks", `{"network":{"tags":` + tags(maxTags) + `}}`, 201, "network.tags.#=50"},
		{"GET", "/v2.0/extensions/kuryr", "", 200, "extension.capabilities.MaxTags=50"},
	})
	pool := w.made(t, root, "POST", "/v2.0/subnetpools", `{"subnetpool":{"name":"p","prefixes":`+scattered+`}}`, "subnetpool.id")
	w.steps(t, root, []step{
		{"PUT", "/v2.0/subnetpools/" + pool, `{"subnetpool":{"prefixes":["fd00::/8"]}}`, 400, "HTTPBadRequest: at most 1024 are taken"},
		{"GET", "/v2.0/subnetpools/" + pool, "", 200, fmt.Sprintf("subnetpool.prefixes.#=%d", maxItems)},
	})
	whole := w.made(t, root, "POST", "/v2.0/subnetpools",
		`{"subnetpool":{"name":"q","prefixes":["fd00::/8"]}}`, "subnetpool.id")
	path := "/v2.0/subnetpools/" + whole
	w.steps(t, root, []step{
		{"PUT", path + "/remove_prefixes", `{"prefixes":` + scattered + `}`, 400,
			"HTTPBadRequest: More than 1024 prefixes would be left"},
		{"GET", path, "", 200, "subnetpool.prefixes.#=1"},
		{"PUT", path + "/remove_prefixes", `{"prefixes":["fd00::/128"]}`, 200, "prefixes.#=120"},
	})
}

// A wide range of ports is an administrator's to forward.
func TestWideForwarding(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := Caller{Project: "a", Role: Member}
	fip := w.made(t, root, "POST", "/v2.0/floatingips", `{"floatingip":{"floating_network_id":"`+string(w.sdn.Capabilities().ExternalNetwork)+`","project_id":"a"}}`, "floatingip.id")
	port := w.made(t, root, "POST", "/v2.0/ports", `{"port":{"network_id":"`+string(w.network.ID)+`","project_id":"a"}}`, "port.id")
	path := "/v2.0/floatingips/" + fip + "/port_forwardings"
	body := func(first, last int) string {
		r := fmt.Sprintf("%d:%d", first, last)
		return `{"port_forwarding":{"protocol":"tcp","internal_port_id":"` + port + `","external_port_range":"` + r + `","internal_port_range":"` + r + `"}}`
	}
	w.steps(t, a, []step{
		{"POST", path, body(10000, 10000+mostForwarded), 400, "BadRequest: at most 4096 are forwarded by one"},
		{"POST", path, body(10000, 10000+mostForwarded-1), 201, "port_forwarding.external_port_range=10000:14095"},
	})
	w.steps(t, root, []step{{"POST", path, body(20000, 20000+mostForwarded), 201, "port_forwarding.external_port_range=20000:24096"}})
}

// An attribute orders a list once, however often it is named.
func TestSortedOnce(t *testing.T) {
	t.Parallel()
	p, err := readPage(url.Values{"sort_key": {"name", "name", "mtu", "name"}, "sort_dir": {"desc", "asc", "asc", "desc"}}, 10, object{"name": "", "mtu": nil})
	must(t, err)
	if want := []sorting{{"name", true}, {"mtu", false}, {"id", false}}; !slices.Equal(p.sorts, want) {
		t.Errorf("%v, want %v", p.sorts, want)
	}
}

// What is left of a range lies beside what was taken out, however much that is.
func TestWithout(t *testing.T) {
	t.Parallel()
	whole := netip.MustParsePrefix("10.0.0.0/8")
	var taken []netip.Prefix
	for i := range 256 {
		taken = append(taken, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 1, byte(i)}), 32))
	}
	left := ipprefix.Without(whole, taken)
	if got := prefixSet(append(left, taken...)).Prefixes(); len(got) != 1 || got[0] != whole {
		t.Errorf("together they are %v", got)
	}
	for _, p := range left {
		for _, out := range taken {
			if p.Overlaps(out) {
				t.Fatalf("%v has %v in it", p, out)
			}
		}
	}
}
