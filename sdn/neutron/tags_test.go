package neutron

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// Finding 3: tags in a creating request are dropped or refused. They are written afterwards, as a set, only where they differ, and not at all where
// Neutron has none.
func TestFinding03Tags(t *testing.T) {
	t.Parallel()
	d := newDouble()
	p, proxy := onDouble(t, d, nil)
	tags := neutrontest.Call{Method: "PUT", Collection: "networks"}
	spec := netSpec()
	spec.Tags = []string{"b", "a", "a"}
	for range 2 {
		n, err := p.EnsureNetwork(t.Context(), spec)
		if err != nil || !slices.Equal(n.Tags, []string{"a", "b"}) {
			t.Errorf("the tags are %q, error %v", n.Tags, err)
		}
	}
	if n := proxy.Count(tags); n != 1 {
		t.Errorf("tags were written %d times, want once", n)
	}
	without := newDouble()
	without.aliases = slices.DeleteFunc(without.aliases, func(a string) bool { return a == "standard-attr-tag" })
	p, proxy = onDouble(t, without, nil)
	if _, err := p.EnsureNetwork(t.Context(), spec); err != nil {
		t.Error(err)
	}
	if n := proxy.Count(tags); n != 0 {
		t.Errorf("tags were written %d times to a Neutron without", n)
	}
}

// Several hosts mark one existing network at once, and take their marks away: none is lost, none is left.
func TestTagsOfOthersObjects(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n", "tags": []any{"the operator's"}})
	mark := func(host string, add bool) error {
		p, _ := onDouble(t, d, nil)
		marks := []string{host + "-lower", host + "-upper"}
		for range 20 {
			n, err := p.Network(t.Context(), "n")
			if err != nil {
				return err
			}
			tags := without(n.Tags, marks)
			if add {
				tags = append(tags, marks...)
			}
			_, err = p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision, Tags: &tags}})
			if sdn.ReasonOf(err) != sdn.Stale {
				return err
			}
		}
		return errors.New("always stale")
	}
	for _, add := range []bool{true, false} {
		var all errgroup.Group
		for _, host := range []string{"h1", "h2", "h3"} {
			all.Go(func() error { return mark(host, add) })
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
		d.mu.Lock()
		left := fmt.Sprint(d.objects["networks"][0]["tags"])
		d.mu.Unlock()
		if n := strings.Count(left, "-lower") + strings.Count(left, "-upper"); add && n != 6 || !add && n != 0 || !strings.Contains(left, "the operator's") {
			t.Errorf("after marks were added (%v) the tags are %s", add, left)
		}
	}
}

// One tag more or less of what is in the cache is one request, which leaves others' tags alone; the condition is checked, and one on what was before such
// a change does not hold after it.
func TestOneTag(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n"})
	p, proxy := onDouble(t, d, nil)
	n, err := p.Network(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	proxy.Say(neutrontest.Call{Method: "PUT", Collection: "networks"}, 1, neutrontest.Answer{Status: 201})
	proxy.Say(neutrontest.Call{Method: "DELETE", Collection: "networks"}, 1, neutrontest.Answer{Status: 204})
	for _, tags := range [][]string{{"a"}, {}} {
		got, err := p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision, Tags: &tags}})
		if err != nil || !slices.Equal(got.Tags, tags) {
			t.Errorf("the tags are %q, error %v", got.Tags, err)
		}
		if now, err := p.Network(t.Context(), "n"); err != nil || now.Revision != got.Revision || got.Revision <= n.Revision {
			t.Errorf("the revision was %d, is told as %d and then as %d, error %v", n.Revision, got.Revision, now.Revision, err)
		}
		n = got
	}
	want := []neutrontest.Call{{Method: "PUT", Collection: "networks"}, {Method: "DELETE", Collection: "networks"}}
	if got := proxy.Calls(); !slices.Equal(got, want) {
		t.Errorf("the requests are %v, want %v", got, want)
	}
	if _, err := p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision + 5, Tags: &[]string{"b"}}}); sdn.ReasonOf(err) != sdn.Stale {
		t.Errorf("the error is %v", err)
	}
}

// A Neutron without tags refuses filters by them: it is not asked, for nothing has any.
func TestNothingIsFoundByTagsWithoutThem(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.aliases = slices.DeleteFunc(d.aliases, func(a string) bool { return a == "standard-attr-tag" })
	d.add("networks", map[string]any{"id": "n"})
	p, proxy := onDouble(t, d, nil)
	found, err := sdn.All(p.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Tags: []string{"a"}}}))
	if n := proxy.Count(getNetworks); err != nil || len(found) != 0 || n != 0 {
		t.Errorf("found %d with %d requests, error %v", len(found), n, err)
	}
	if n := p.Capabilities().MaxTagLen; n != 0 {
		t.Errorf("tags may be %d characters long", n)
	}
}

// A Neutron before release 19 takes tags of 60 characters: the error names the one that is longer.
func TestTagTooLongForAnOldNeutron(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", maxTagLen+1)
	for _, of := range []string{"", "kuryr/test/t/net"} { // another's, whose tags are written one by one, and ours
		d := newDouble()
		d.add("networks", map[string]any{"id": "n", "description": of, "tags": []any{"one"}})
		d.refuse = func(r *http.Request) (int, string) {
			if r.Method == http.MethodPut {
				return http.StatusBadRequest, neutronError("InvalidInput", "Invalid input for operation: '…' exceeds maximum length of 60.")
			}
			return 0, ""
		}
		p, _ := onDouble(t, d, nil)
		for _, tags := range [][]string{{"one", long}, {"one", "two", long}} {
			for range 2 { // the second time out of the cache
				_, err := p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{Tags: &tags}})
				if !sdn.IsInvalid(err) || sdn.FieldOf(err) != "tags" || !strings.Contains(err.Error(), long+`" is 61 characters`) || !strings.Contains(err.Error(), "release 19") {
					t.Errorf("of %q: the error is %v", of, err)
				}
				if _, err := p.Network(t.Context(), "n"); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
