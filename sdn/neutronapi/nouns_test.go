package neutronapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// Callers of the tests below.
var (
	root  = Caller{Role: Admin}
	alice = Caller{Role: Member, Project: "alice"}
	bob   = Caller{Role: Member, Project: "bob"}
	guest = Caller{Role: Reader, Project: "alice"}
)

// do asks, wants the status and the error type ("" for a success), and gives what is under the member, or the whole body where that is "".
func (w *world) do(t *testing.T, c Caller, method, path, body string, status int, kind, member string) map[string]any {
	t.Helper()
	got, answer := w.ask(t, c, method, "/v2.0/"+path, body)
	out, _ := answer.(map[string]any)
	refusal, _ := out["NeutronError"].(map[string]any)
	said, _ := refusal["type"].(string)
	if got != status || said != kind {
		t.Fatalf("%s %s %s: %d %v; want %d %q", method, path, body, got, out, status, kind)
	}
	if kind != "" && (refusal["message"] == "" || reflect.DeepEqual(refusal["detail"], nil)) {
		t.Errorf("%s %s: the refusal %v has no message or no detail", method, path, refusal)
	}
	if kind != "" || member == "" {
		return out
	}
	inside, ok := out[member].(map[string]any)
	if !ok {
		t.Fatalf("%s %s: no %q in %v", method, path, member, out)
	}
	return inside
}

// refused is a table of requests that are refused.
type refused []struct {
	name         string
	caller       Caller
	method, path string
	body         string
	status       int
	kind         string
}

func (table refused) run(t *testing.T, w *world) {
	t.Helper()
	for _, tc := range table {
		t.Run(tc.name, func(t *testing.T) {
			w.do(t, tc.caller, tc.method, tc.path, tc.body, tc.status, tc.kind, "")
		})
	}
}

// shows wants attributes to be as they are in JSON.
func shows(t *testing.T, got map[string]any, want string) {
	t.Helper()
	var wanted map[string]any
	decoder := json.NewDecoder(strings.NewReader(want))
	decoder.UseNumber()
	must(t, decoder.Decode(&wanted))
	for name, value := range wanted {
		if is, there := got[name]; !there || !reflect.DeepEqual(is, value) {
			t.Errorf("%s is %v (there: %v), want %v", name, is, there, value)
		}
	}
}

// listed gives the objects of a list.
func (w *world) found(t *testing.T, c Caller, path, collection string) []map[string]any {
	t.Helper()
	out := w.do(t, c, "GET", path, "", 200, "", "")
	items, ok := out[collection].([]any)
	if !ok {
		t.Fatalf("%s: no %s in %v", path, collection, out)
	}
	all := make([]map[string]any, len(items))
	for i, item := range items {
		all[i] = item.(map[string]any)
	}
	return all
}

// names gives one attribute of each.
func names(all []map[string]any, attribute string) (out []string) {
	for _, o := range all {
		out = append(out, fmt.Sprint(o[attribute]))
	}
	return out
}

// network makes a network and a subnet for a project.
func (w *world) wired(t *testing.T, c Caller, cidr string) (network, subnet string) {
	t.Helper()
	network = w.do(t, c, "POST", "networks", `{"network": {"name": "n"}}`, 201, "", "network")["id"].(string)
	subnet = w.do(t, c, "POST", "subnets", fmt.Sprintf(`{"subnet": {"network_id": %q, "ip_version": %d, "cidr": %q}}`, network, 4+2*strings.Count(cidr, "::"), cidr), 201, "", "subnet")["id"].(string)
	return network, subnet
}

func (w *world) madePort(t *testing.T, c Caller, network, more string) string {
	t.Helper()
	return w.do(t, c, "POST", "ports", fmt.Sprintf(`{"port": {"network_id": %q%s}}`, network, more), 201, "", "port")["id"].(string)
}
