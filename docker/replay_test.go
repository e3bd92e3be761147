package docker

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
)

// exchange is one recorded call of a real engine to another driver, and that driver's answer.
type exchange struct {
	Step    string
	Plugin  string
	Request struct {
		URI  string
		Body json.RawMessage
	}
	Response struct {
		Status int
		Body   json.RawMessage
	}
	Fault any
}

func recorded(t *testing.T, name string) []exchange {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var list []exchange
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e exchange
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

// replayer sends recorded calls to our driver, with what the other driver chose replaced by what ours did.
type replayer struct {
	*box
	pools     map[string]string // recorded pool id → ours
	ranges    map[string]string // recorded range → ours, where they differ
	addresses map[string]string // recorded pool id, a space, recorded address → ours
	poolOf    map[string]string // recorded range → recorded pool id
	sent      int
}

// TestReplay plays what Docker 20.10 and 29 sent in the main flow, one plugin's whole story from nothing to nothing.
func TestReplay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file, name string
		from, to   string // first and last step
		least      int    // calls that must be played
	}{
		{"v1-20.10.jsonl.gz", "main flow", "01create-full", "37net-prune", 140},
		{"v1-20.10.jsonl.gz", "MACs required", "190r-create", "192r-run-mac", 20},
		{"v1-20.10.jsonl.gz", "restart", "94mk", "128lr-netrm", 40},
		{"v1-20.10.jsonl.gz", "restart without live-restore", "141mk", "187nolr-netrm", 80},
		{"v1-29.jsonl.gz", "main flow", "01create-full", "37net-prune", 130},
		{"v1-29.jsonl.gz", "MACs required, automatic", "188rr-create", "201rr-netrm", 60},
		{"v1-29.jsonl.gz", "gateway priorities", "202gw-create1", "214gw-netrm", 50},
		{"v1-29.jsonl.gz", "restarts", "134mk", "180nolr-netrm", 120},
		{"v1-29.jsonl.gz", "IPAM alone", "233ipam-opt-only", "238macvlan-run", 10},
	} {
		t.Run(strings.TrimSuffix(c.file, ".jsonl.gz")+" "+c.name, func(t *testing.T) {
			t.Parallel()
			r := &replayer{box: newBox(t), pools: map[string]string{}, ranges: map[string]string{},
				addresses: map[string]string{}, poolOf: map[string]string{}}
			for _, e := range between(recorded(t, c.file), c.from, c.to) {
				r.play(e)
			}
			if r.sent < c.least {
				t.Errorf("only %d calls were played", r.sent)
			}
		})
	}
}

// between is the calls of the first step, of the last one, and of all in between.
func between(list []exchange, first, last string) []exchange {
	from := slices.IndexFunc(list, func(e exchange) bool { return e.Step == first })
	to := from
	for i, e := range list {
		if e.Step == last {
			to = i
		}
	}
	return list[from : to+1]
}

func (r *replayer) play(e exchange) {
	r.t.Helper()
	method := e.Request.URI[1:]
	var body, answer map[string]any
	_ = json.Unmarshal(e.Request.Body, &body) // "" for calls without arguments
	_ = json.Unmarshal(e.Response.Body, &answer)
	r.substitute(method, body)
	status, got := r.post(method, encodeOrEmpty(body))
	r.sent++
	theirs, _ := answer["Err"].(string)
	if text, _ := answer["Error"].(string); text != "" {
		theirs = text
	}
	ours, _ := got["Err"].(string)
	if status != http.StatusOK {
		r.t.Fatalf("%s %s %v: status %d %v", e.Step, method, body, status, got)
	}
	if (theirs == "") != (ours == "") {
		r.t.Fatalf("%s %s %v: answered %q; the recorded driver %q", e.Step, method, body, ours, theirs)
	}
	if ours == "" {
		r.judge(e.Step, method, body, got)
		r.learn(method, e, body, answer, got)
	}
}

func encodeOrEmpty(body map[string]any) string {
	if body == nil {
		return ""
	}
	return encode(body)
}

// substitute puts our choices into a recorded request.
func (r *replayer) substitute(method string, body map[string]any) {
	if space, ok := body["AddressSpace"].(string); ok {
		body["AddressSpace"] = ourSpace(space)
	}
	if id, ok := body["PoolID"].(string); ok {
		if a, _ := body["Address"].(string); method == "IpamDriver.ReleaseAddress" {
			if ours := r.addresses[id+" "+a]; ours != "" {
				body["Address"] = ours
			}
		}
		body["PoolID"] = r.pools[id]
	}
	for _, key := range []string{"IPv4Data", "IPv6Data"} {
		list, _ := body[key].([]any)
		for _, element := range list {
			data := element.(map[string]any)
			data["AddressSpace"] = ourSpace(data["AddressSpace"].(string))
			data["Gateway"] = r.address(data["Gateway"])
			if ours := r.ranges[data["Pool"].(string)]; ours != "" {
				data["Pool"] = ours
			}
			if data["Gateway"] == "" {
				delete(data, "Gateway")
			}
		}
	}
	// What is published on one address of the host is refused (TestPublishRefused): play it as for all.
	if o, ok := body["Options"].(map[string]any); ok {
		published, _ := o[optPortMap].([]any)
		for _, element := range published {
			element.(map[string]any)["HostIP"] = ""
		}
	}
	if i, ok := body["Interface"].(map[string]any); ok {
		i["Address"], i["AddressIPv6"] = r.address(i["Address"]), r.address(i["AddressIPv6"])
	}
}

func ourSpace(s string) string {
	switch s {
	case "lablocal":
		return localSpace
	case "labglobal":
		return globalSpace
	}
	return s
}

// address is what we gave for a recorded address with its length.
func (r *replayer) address(v any) string {
	recorded, _ := v.(string)
	p, err := netip.ParsePrefix(recorded)
	if err != nil {
		return ""
	}
	ours := r.addresses[r.poolOf[p.Masked().String()]+" "+p.Addr().String()]
	if ours == "" {
		return recorded
	}
	length := p.Bits()
	if own, err := netip.ParsePrefix(r.ranges[p.Masked().String()]); err == nil {
		length = own.Bits()
	}
	return fmt.Sprintf("%s/%d", ours, length)
}

// learn remembers what we chose where the recorded driver chose.
func (r *replayer) learn(method string, e exchange, body, theirs, ours map[string]any) {
	var request map[string]any
	_ = json.Unmarshal(e.Request.Body, &request)
	switch method {
	case "IpamDriver.RequestPool":
		id := theirs["PoolID"].(string)
		r.pools[id] = ours["PoolID"].(string)
		r.ranges[theirs["Pool"].(string)] = ours["Pool"].(string)
		r.poolOf[theirs["Pool"].(string)] = id
	case "IpamDriver.RequestAddress":
		r.addresses[request["PoolID"].(string)+" "+bareAddress(r.box, theirs["Address"])] = bareAddress(r.box, ours["Address"])
	}
}

// judge holds an answer against what engines decode and check (moby: libnetwork/drivers/remote, ipams/remote).
func (r *replayer) judge(step, method string, body, got map[string]any) {
	r.t.Helper()
	bad := func(format string, args ...any) {
		r.t.Helper()
		r.t.Errorf("%s %s %v answered %v: %s", step, method, body, got, fmt.Sprintf(format, args...))
	}
	switch method {
	case "Plugin.Activate":
		if list, _ := got["Implements"].([]any); !slices.Contains(list, any("NetworkDriver")) || !slices.Contains(list, any("IpamDriver")) {
			bad("not both drivers")
		}
	case "NetworkDriver.GetCapabilities":
		if got["Scope"] != "local" && got["Scope"] != "global" {
			bad("scope")
		}
	case "IpamDriver.RequestPool":
		if _, err := netip.ParsePrefix(fmt.Sprint(got["Pool"])); err != nil || got["PoolID"] == "" {
			bad("%v", err)
		}
		if pool, _ := body["Pool"].(string); pool != "" && pool != got["Pool"] {
			bad("another range than asked for")
		}
	case "IpamDriver.RequestAddress":
		p, err := netip.ParsePrefix(fmt.Sprint(got["Address"]))
		if err != nil {
			bad("%v", err)
		}
		if a, _ := body["Address"].(string); a != "" && p.Addr().String() != a {
			bad("another address than asked for")
		}
	case "NetworkDriver.CreateEndpoint":
		given, _ := body["Interface"].(map[string]any)
		answered, _ := got["Interface"].(map[string]any)
		for key, v := range answered {
			if given[key] != "" {
				bad("%s was given and came back", key)
			}
			if _, err := net.ParseMAC(fmt.Sprint(v)); key == "MacAddress" && err != nil {
				bad("%v", err)
			}
		}
		if given["MacAddress"] == "" && answered["MacAddress"] == nil {
			bad("no MAC")
		}
	case "NetworkDriver.Join":
		name, _ := got["InterfaceName"].(map[string]any)
		if src, _ := name["SrcName"].(string); src == "" || len(src) > 15 || name["DstPrefix"] == "" {
			bad("interface name")
		}
		for _, key := range []string{"Gateway", "GatewayIPv6"} {
			if v, ok := got[key]; ok {
				if a, err := netip.ParseAddr(fmt.Sprint(v)); err != nil || a.Is6() != (key == "GatewayIPv6") {
					bad("%s", key)
				}
			}
		}
	case "NetworkDriver.EndpointOperInfo":
		if _, ok := got["Value"].(map[string]any); !ok {
			bad("Value is no object")
		}
	}
}
