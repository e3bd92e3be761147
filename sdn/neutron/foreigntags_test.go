package neutron

import (
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// Tags of a network that is somebody else's are written one by one, for others write theirs, but in one request where Neutron can add several, and without
// reading the network again where it is known.
func TestTagsOfAnothersNetwork(t *testing.T) {
	t.Parallel()
	put, post, del := neutrontest.Call{Method: "PUT", Collection: "networks"}, neutrontest.Call{Method: "POST", Collection: "networks"}, neutrontest.Call{Method: "DELETE", Collection: "networks"}
	for _, c := range []struct {
		aliases []string
		want    []neutrontest.Call
	}{{nil, []neutrontest.Call{put, put, put, del, del}}, {[]string{"tag-creation"}, []neutrontest.Call{post, del, del}}} {
		d := newDouble()
		d.aliases = append(d.aliases, c.aliases...)
		d.add("networks", map[string]any{"id": "n", "tags": []any{"theirs"}})
		p, proxy := onDouble(t, d, nil)
		n, err := p.Network(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		proxy.Reset()
		for _, tags := range [][]string{{"theirs", "a", "b", "c"}, {"theirs", "b"}} {
			n, err = p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision, Tags: &tags}})
			if err != nil || !slices.Equal(n.Tags, tags) && len(n.Tags) != len(tags) {
				t.Errorf("the tags are %q, error %v", n.Tags, err)
			}
		}
		if got := proxy.Calls(); !slices.Equal(got, c.want) {
			t.Errorf("with %q: %v, want %v", c.aliases, got, c.want)
		}
		d.mu.Lock()
		if got := d.objects["networks"][0]["tags"].([]any); !slices.Equal(got, []any{"theirs", "b"}) {
			t.Errorf("the tags are %q", got)
		}
		d.mu.Unlock()
	}
}

// A network that is gone is not remembered because a tag was taken from it.
func TestTagOfANetworkThatIsGone(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n", "tags": []any{"a", "b"}})
	p, _ := onDouble(t, d, nil)
	if _, err := p.Network(t.Context(), "n"); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.objects["networks"] = nil
	d.mu.Unlock()
	if _, err := p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{Tags: &[]string{}}}); !sdn.IsNotFound(err) {
		t.Errorf("the error is %v", err)
	}
	if _, err := p.Network(t.Context(), "n"); !sdn.IsNotFound(err) {
		t.Errorf("the network is remembered: %v", err)
	}
}

// A port that somebody else made has one user: its tags are written as a set, unless it has its owner's.
func TestTagsOfAnothersPort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		theirs []string
		want   int // requests that write tags: two on, two off
	}{{nil, 2}, {[]string{"theirs"}, 4}} {
		d := newDouble()
		var tags []any
		for _, t := range c.theirs {
			tags = append(tags, t)
		}
		d.add("ports", map[string]any{"id": "p", "network_id": "n", "mac_address": "fa:16:3e:00:00:01", "tags": tags})
		p, proxy := onDouble(t, d, nil)
		for _, add := range [][]string{{"a", "b"}, nil} {
			want := slices.Concat(c.theirs, add)
			got, err := p.UpdatePort(t.Context(), "p", sdn.PortPatch{Patch: sdn.Patch{Tags: &want}})
			if err != nil || len(got.Tags) != len(want) {
				t.Errorf("the tags are %q, error %v", got.Tags, err)
			}
		}
		writes := proxy.Count(neutrontest.Call{Method: "PUT", Collection: "ports"}) + proxy.Count(neutrontest.Call{Method: "DELETE", Collection: "ports"})
		if writes != c.want {
			t.Errorf("of a port with the tags %q: %d requests wrote tags, want %d", c.theirs, writes, c.want)
		}
	}
}
