package neutron

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// Tags that are taken off another's port right after it was changed cost one request, on the tags that it had by then: one that its owner has added since
// the caller had read it stays.
func TestTagsTakenOffAnothersPort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		late string // a tag that comes before the first change
		want []neutrontest.Call
	}{
		{"", []neutrontest.Call{{Method: "PUT", Collection: "ports"}, {Method: "PUT", Collection: "ports"}}},
		{"theirs", []neutrontest.Call{{Method: "PUT", Collection: "ports"}, {Method: "DELETE", Collection: "ports"}, {Method: "DELETE", Collection: "ports"}}},
	} {
		d := newDouble()
		tags := []any{"a", "b"}
		d.add("ports", map[string]any{"id": "p", "network_id": "n", "mac_address": "fa:16:3e:00:00:01", "device_id": "ours", "revision_number": 7.0, "tags": tags})
		p, proxy := onDouble(t, d, nil)
		if _, err := p.Port(t.Context(), "p"); err != nil {
			t.Fatal(err)
		}
		var left []string
		if c.late != "" {
			left = []string{c.late}
			d.mu.Lock()
			d.objects["ports"][0]["tags"] = append(tags, c.late)
			d.mu.Unlock()
		}
		proxy.Reset()
		none := ""
		now, err := p.UpdatePort(t.Context(), "p", sdn.PortPatch{DeviceID: &none})
		if err != nil {
			t.Fatal(err)
		}
		stay := slices.DeleteFunc(slices.Clone(now.Tags), func(tag string) bool { return tag == "a" || tag == "b" })
		now, err = p.UpdatePort(t.Context(), "p", sdn.PortPatch{Patch: sdn.Patch{IfRevision: now.Revision, Tags: &stay}})
		if err != nil || !slices.Equal(now.Tags, left) || now.DeviceID != "" {
			t.Errorf("the port is %+v, error %v", now, err)
		}
		if got := proxy.Calls(); !slices.Equal(got, c.want) {
			t.Errorf("with the tag %q: %v, want %v", c.late, got, c.want)
		}
		d.mu.Lock()
		if got := d.objects["ports"][0]["tags"].([]any); len(got) != len(left) || len(left) > 0 && got[0] != c.late {
			t.Errorf("the tags are %q", got)
		}
		d.mu.Unlock()
	}
}

// What is not known to be as it was last told is read first.
func TestTagsTakenOffAnothersOldPort(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("ports", map[string]any{"id": "p", "network_id": "n", "mac_address": "fa:16:3e:00:00:01", "revision_number": 7.0, "tags": []any{"a"}})
	p, proxy := onDouble(t, d, nil)
	now, err := p.Port(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	if _, err := p.UpdatePort(t.Context(), "p", sdn.PortPatch{Patch: sdn.Patch{IfRevision: now.Revision - 1, Tags: &[]string{}}}); sdn.ReasonOf(err) != sdn.Stale {
		t.Errorf("the error is %v", err)
	}
	if got := proxy.Calls(); !slices.Equal(got, []neutrontest.Call{{Method: "GET", Collection: "ports"}}) {
		t.Errorf("asked for %v", got)
	}
}

// What nobody waits for says so to Neutron, and a policy that refuses a tag is told as that.
func TestTagThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n", "tags": []any{}})
	var agents []string
	d.refuse = func(r *http.Request) (int, string) {
		if !strings.Contains(r.URL.Path, "/tags") {
			return 0, ""
		}
		agents = append(agents, r.UserAgent())
		return http.StatusForbidden, `{"NeutronError": {"type": "PolicyNotAuthorized", "message": "no", "detail": ""}}`
	}
	p, _ := onDouble(t, d, nil)
	tags := []string{"a"}
	for _, ctx := range []context.Context{t.Context(), sdn.Unawaited(t.Context())} {
		if _, err := p.UpdateNetwork(ctx, "n", sdn.NetworkPatch{Patch: sdn.Patch{Tags: &tags}}); !sdn.IsDenied(err) {
			t.Errorf("the error is %v", err)
		}
	}
	if len(agents) != 2 || agents[0] == BackgroundAgent || agents[1] != BackgroundAgent {
		t.Errorf("the agents are %q", agents)
	}
}
