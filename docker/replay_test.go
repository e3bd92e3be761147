package docker

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
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

	box int // which of a set's engines called
}

func (e exchange) method() string { return e.Request.URI[1:] }

// fault is what the recorded driver was told to do wrong, "" if nothing.
func (e exchange) fault() string {
	if e.Fault == nil {
		return ""
	}
	return fmt.Sprint(e.Fault)
}

func recorded(t *testing.T, name string, box int) []exchange {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".jsonl.gz")
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
		e := exchange{box: box}
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

// Why a recorded call is not played.
const (
	toldToFail  = "the recorded driver was told to fail: the engine took the call for one that did nothing"
	afterReplay = "Kuryr does not ask for replays, so no engine sends them"
	noGateway   = "Kuryr gave the endpoint no gateway, so the engine publishes by another"
	ofReplay    = "the recorded driver refused a replayed gateway, and the engine gave the pool up"
)

// set is one recording: some engines, each with its driver.
type set struct {
	name   string
	global bool
	files  []string
	skip   map[string]int // how many calls are not played, by the reason
	left   []string       // ranges of the networks that the engine deleted while its driver was down
}

// TestReplay plays all that Docker 20.10 and 29 sent in every recorded set, from nothing
// to nothing. The plugins of a recording are one Kuryr, which is killed and started again
// whenever the engine asked who it is.
func TestReplay(t *testing.T) {
	t.Parallel()
	for _, s := range []set{
		{name: "20.10", files: []string{"v1-20.10"}, left: []string{"10.62.0.0/24"},
			skip: map[string]int{toldToFail: 20, afterReplay: 8, ofReplay: 2}},
		{name: "29", files: []string{"v1-29"},
			skip: map[string]int{toldToFail: 21, afterReplay: 20, ofReplay: 2, noGateway: 1}},
		{name: "compose", files: []string{"v1-20.10-compose"}, skip: map[string]int{noGateway: 3}},
		{name: "20.10 in swarm mode", files: []string{"v1-20.10-swarm"}},
		{name: "swarm 20.10", files: []string{"managed-20.10-swarm"}, global: true},
		{name: "swarm 29", files: []string{"managed-29-swarm"}, global: true},
		{name: "swarm of two", files: []string{"2node-manager-20.10", "2node-worker-29"}, global: true},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.play(t)
		})
	}
}

func (s set) play(t *testing.T) {
	var boxes []*box
	switch {
	case s.global:
		boxes = newSwarm(t, slices.Repeat([]string{"two"}, len(s.files)-1)...)
	default:
		boxes = []*box{newBox(t)}
	}
	var list []exchange
	for i, file := range s.files {
		list = append(list, recorded(t, file, i)...)
	}
	if len(s.files) > 1 { // each engine has a clock of its own: go by the numbers of the steps
		slices.SortStableFunc(list, func(a, b exchange) int { return stepNumber(a.Step) - stepNumber(b.Step) })
	}
	r := newReplayer(boxes)
	for _, e := range list {
		r.play(e)
	}
	played := 0
	for _, method := range slices.Sorted(maps.Keys(r.sent)) {
		played += r.sent[method]
	}
	t.Logf("%d calls, %d played", len(list), played)
	for _, reason := range []string{toldToFail, afterReplay, ofReplay, noGateway} {
		steps := r.skipped[reason]
		if len(steps) > 0 {
			t.Logf("%d not played, %s: %v", len(steps), reason, steps)
		}
		if len(steps) != s.skip[reason] {
			t.Errorf("%d calls were not played, want %d: %s", len(steps), s.skip[reason], reason)
		}
	}
	for _, b := range boxes {
		b.restart()
		b.reconcile()
	}
	if left := boxes[0].removeLost(); !slices.Equal(left, s.left) {
		t.Errorf("the networks of %v were left, want %v", left, s.left)
	}
	for _, b := range boxes {
		b.clean()
	}
}

// removeLost removes the networks that are there, as their user would by hand, and gives their ranges.
func (b *box) removeLost() (ranges []string) {
	b.t.Helper()
	subnets, err := sdn.All(b.provider.FindSubnets(b.t.Context(), sdn.SubnetQuery{
		Match: sdn.Match{Owner: b.provider.Installation(), Kind: identity.KindSubnet},
	}))
	b.must(err)
	for _, s := range subnets {
		ranges = append(ranges, s.CIDR.String())
		id, _, _ := strings.Cut(s.Key.Name, "/")
		b.ok("IpamDriver.ReleasePool", m{"PoolID": string(s.Pool)})
		b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": id})
	}
	slices.Sort(ranges)
	return ranges
}

// stepNumber is what a step's name begins with; "boot" is before all.
func stepNumber(step string) int {
	end := strings.IndexFunc(step, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(step)
	}
	n, _ := strconv.Atoi(step[:end])
	return n
}

// replayer sends recorded calls to our driver, with what the other driver chose replaced by what ours did.
type replayer struct {
	*box
	boxes     []*box
	pools     map[string]string          // recorded pool id → ours
	rangeOf   map[string]string          // recorded pool id → recorded range
	ranges    map[string]string          // recorded range → ours, where they differ
	addresses map[string]string          // recorded range, a space, recorded address → ours
	shared    map[string]bool            // keys of addresses that a swarm's manager took
	held      map[string]map[string]bool // recorded pool id → the addresses that the recorded engine holds
	refused   map[string]bool            // recorded pool ids whose replay was refused
	inside    map[string]bool            // endpoints that got no gateway
	sent      map[string]int             // by method
	skipped   map[string][]string        // steps, by the reason
}

func newReplayer(boxes []*box) *replayer {
	return &replayer{
		box: boxes[0], boxes: boxes, pools: map[string]string{}, rangeOf: map[string]string{},
		ranges:    map[string]string{},
		addresses: map[string]string{}, shared: map[string]bool{},
		held: map[string]map[string]bool{}, refused: map[string]bool{}, inside: map[string]bool{},
		sent: map[string]int{}, skipped: map[string][]string{}}
}

func (r *replayer) play(e exchange) {
	r.t.Helper()
	r.box = r.boxes[e.box]
	method := e.method()
	var body, theirs map[string]any
	_ = json.Unmarshal(e.Request.Body, &body) // "" for calls without arguments
	_ = json.Unmarshal(e.Response.Body, &theirs)
	if why := r.unplayable(e, body, theirs); why != "" {
		r.skipped[why] = append(r.skipped[why], e.Step+" "+method)
		return
	}
	if method == "Plugin.Activate" || method == "NetworkDriver.GetCapabilities" {
		r.restart()
		r.reconcile()
	}
	r.substitute(method, body)
	status, raw := r.send(method, encodeOrEmpty(body))
	r.sent[method]++
	where := fmt.Sprintf("%s %s %v answered %d %s", e.Step, method, body, status, raw)
	if body == nil && slices.Contains(withArguments(), method) {
		// The engine repeated the call with the body it had used up.
		if err := answeredError(method, status, raw); err != nil {
			r.t.Fatalf("%s: %v", where, err)
		}
		return
	}
	// 404: that driver did not have the method
	if failed(e) && e.fault() == "" && e.Response.Status != http.StatusNotFound {
		if err := answeredError(method, status, raw); err != nil {
			r.t.Fatalf("%s: %v; the recorded driver %s", where, err, e.Response.Body)
		}
		return
	}
	if status != http.StatusOK {
		r.t.Fatal(where)
	}
	for _, engine := range engines {
		if err := engine.judge(method, body, raw); err != nil {
			r.t.Errorf("%s, which engine %s takes for an error: %v", where, engine.version, err)
		}
	}
	if !r.t.Failed() {
		r.learn(e, body, theirs, raw)
	}
}

// unplayable tells why a call is not to be played, "" if it is.
func (r *replayer) unplayable(e exchange, body, theirs map[string]any) string {
	id, _ := body["PoolID"].(string)
	address, _ := body["Address"].(string)
	held, live := r.held[r.heldKey(id)]
	switch method := e.method(); {
	case e.fault() != "" && e.fault() != "close" && failed(e):
		return toldToFail
	case method == "IpamDriver.RequestPool":
		theirID, _ := theirs["PoolID"].(string)
		if _, live := r.held[r.heldKey(theirID)]; live {
			return afterReplay
		}
	case method == "IpamDriver.RequestAddress" && live && held[address]:
		if isGateway(body) && failed(e) {
			r.refused[id] = true
			return afterReplay
		}
		if !failed(e) {
			return afterReplay
		}
	case method == "NetworkDriver.ProgramExternalConnectivity" && r.inside[fmt.Sprint(body["EndpointID"])]:
		return noGateway
	case method == "IpamDriver.ReleasePool" && r.refused[id]:
		delete(r.refused, id)
		return ofReplay
	}
	return ""
}

func isGateway(body map[string]any) bool {
	o, _ := body["Options"].(map[string]any)
	return o[optAddressType] == addressGateway
}

// failed reports whether an engine takes the recorded answer for an error.
func failed(e exchange) bool {
	if e.Response.Status != http.StatusOK {
		return true
	}
	var theirs map[string]any
	if json.Unmarshal(e.Response.Body, &theirs) != nil {
		return true // no JSON, or text in quotes, as what was none was recorded
	}
	key := "Err"
	if strings.HasPrefix(e.method(), "IpamDriver.") {
		key = "Error"
	}
	if text, _ := theirs[key].(string); text != "" {
		return true
	}
	text := func(key string) string { s, _ := theirs[key].(string); return s }
	switch e.method() {
	case "IpamDriver.RequestPool":
		p, err := netip.ParsePrefix(text("Pool"))
		return err != nil || p.Masked() != p
	case "IpamDriver.RequestAddress":
		_, err := netip.ParsePrefix(text("Address"))
		return err != nil
	}
	return false
}

// send is post for the bytes of the answer.
func (r *replayer) send(method, body string) (int, []byte) {
	r.t.Helper()
	q := httptest.NewRequestWithContext(r.t.Context(), http.MethodPost, "/"+method, strings.NewReader(body))
	q.Host = ""
	w := httptest.NewRecorder()
	r.driver.Handler().ServeHTTP(w, q)
	return w.Code, bytes.TrimSpace(w.Body.Bytes())
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
		if ours := r.ranges[fmt.Sprint(body["Pool"])]; ours != "" && space == "lablocal" &&
			method == "IpamDriver.RequestPool" {
			body["Pool"] = ours // a node asks for what its manager was given
		}
	}
	if id, ok := body["PoolID"].(string); ok {
		a, _ := body["Address"].(string)
		key := r.rangeOf[id] + " " + a
		if ours := r.addresses[key]; ours != "" && (method == "IpamDriver.ReleaseAddress" || r.shared[key]) {
			body["Address"] = ours
		}
		if method == "IpamDriver.ReleaseAddress" {
			delete(r.held[r.heldKey(id)], a)
		}
		if method == "IpamDriver.ReleasePool" {
			delete(r.held, r.heldKey(id))
		}
		if ours := r.pools[id]; ours != "" {
			body["PoolID"] = ours
		}
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
	ours := r.addresses[p.Masked().String()+" "+p.Addr().String()]
	if ours == "" {
		return recorded
	}
	length := p.Bits()
	if own, err := netip.ParsePrefix(r.ranges[p.Masked().String()]); err == nil {
		length = own.Bits()
	}
	return fmt.Sprintf("%s/%d", ours, length)
}

// learn remembers what we chose where the recorded driver chose, and what the engine holds.
func (r *replayer) learn(e exchange, body, theirs map[string]any, raw []byte) {
	if failed(e) {
		return
	}
	var request, ours map[string]any
	_ = json.Unmarshal(e.Request.Body, &request)
	_ = json.Unmarshal(raw, &ours)
	switch e.method() {
	case "IpamDriver.RequestPool":
		id, cidr := theirs["PoolID"].(string), theirs["Pool"].(string)
		r.pools[id], r.ranges[cidr] = ours["PoolID"].(string), ours["Pool"].(string)
		r.rangeOf[id], r.held[r.heldKey(id)] = cidr, map[string]bool{}
	case "IpamDriver.RequestAddress":
		id, a := request["PoolID"].(string), bareAddress(r.box, theirs["Address"])
		key := r.rangeOf[id] + " " + a
		r.addresses[key] = bareAddress(r.box, ours["Address"])
		r.shared[key] = r.shared[key] || strings.Contains(id, "/labglobal/")
		r.held[r.heldKey(id)][a] = true
	case "NetworkDriver.Join":
		r.inside[request["EndpointID"].(string)] = ours["Gateway"] == nil && ours["GatewayIPv6"] == nil
	}
}

// heldKey keeps the engines of a set apart, whose drivers chose the same ids.
func (r *replayer) heldKey(id string) string { return r.config.Host + " " + id }
