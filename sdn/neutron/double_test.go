package neutron

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// double is as much of a Neutron and a Keystone as faults need: it keeps objects, filters and pages them, counts revisions and wants a valid token. The
// contract's meaning is tested on a real one.
type double struct {
	mu       sync.Mutex
	objects  map[string][]map[string]any // by collection
	serial   int
	tokens   map[string]bool // valid ones; nil: none is wanted
	issued   int
	lifetime time.Duration // of a token
	aliases  []string
	bodies   []map[string]any                                  // of POSTs
	arriving func(r *http.Request)                             // called before a request is served, without the lock
	refuse   func(r *http.Request) (status int, answer string) // status 0: serve
}

func newDouble() *double {
	return &double{objects: map[string][]map[string]any{}, aliases: slices.Clone(usual), lifetime: time.Hour}
}

const doubleTime = "2026-11-21T22:00:00Z"

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d.arriving != nil {
		d.arriving(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.URL.Path == "/v3/auth/tokens" {
		d.token(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Openstack-Request-Id", "req-1")
	if d.tokens != nil && !d.tokens[r.Header.Get("X-Auth-Token")] {
		answer(w, http.StatusUnauthorized, `{"error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}}`)
		return
	}
	if d.refuse != nil {
		if status, text := d.refuse(r); status != 0 {
			answer(w, status, text)
			return
		}
	}
	_, path, _ := strings.Cut(r.URL.Path, "/v2.0/")
	parts := strings.Split(path, "/")
	switch {
	case parts[0] == "extensions":
		var list []map[string]string
		for _, a := range d.aliases {
			list = append(list, map[string]string{"alias": a})
		}
		reply(w, http.StatusOK, map[string]any{"extensions": list})
	case len(parts) == 4 && parts[2] == "tags":
		d.tag(w, r, parts[0], parts[1], parts[3])
	case len(parts) == 3 && parts[2] == "tags":
		d.change(w, r, parts[0], parts[1], body)
	case len(parts) == 2 && r.Method == http.MethodGet, len(parts) == 2 && r.Method == http.MethodPut, len(parts) == 2 && r.Method == http.MethodDelete:
		d.change(w, r, parts[0], parts[1], body)
	case r.Method == http.MethodGet:
		d.list(w, r, parts[0])
	case r.Method == http.MethodPost:
		d.create(w, parts[0], body)
	}
}

func answer(w http.ResponseWriter, status int, body string) {
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func reply(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	answer(w, status, string(data))
}

func neutronError(kind, message string) string {
	return fmt.Sprintf(`{"NeutronError": {"type": %q, "message": %q, "detail": ""}}`, kind, message)
}

func (d *double) token(w http.ResponseWriter, r *http.Request) {
	d.issued++
	token := "token-" + strconv.Itoa(d.issued)
	d.tokens[token] = true
	w.Header().Set("X-Subject-Token", token)
	reply(w, http.StatusCreated, map[string]any{"token": map[string]any{
		"expires_at": time.Now().Add(d.lifetime).UTC().Format("2006-01-02T15:04:05.000000Z"), "project": map[string]string{"id": "p1", "name": "demo"},
		"catalog": []any{map[string]any{"type": "network", "name": "neutron", "endpoints": []any{
			map[string]string{"interface": "internal", "region": "R1", "region_id": "R1", "url": "http://" + r.Host + "/internal"},
			map[string]string{"interface": "public", "region": "R0", "region_id": "R0", "url": "http://" + r.Host + "/r0"},
			map[string]string{"interface": "public", "region": "R1", "region_id": "R1", "url": "http://" + r.Host},
		}}},
	}})
}

func (d *double) create(w http.ResponseWriter, collection string, body []byte) {
	item := strings.TrimSuffix(collection, "s")
	var in map[string]json.RawMessage
	if err := json.Unmarshal(body, &in); err != nil {
		answer(w, http.StatusBadRequest, neutronError("HTTPBadRequest", "Request body could not be decoded"))
		return
	}
	var all []map[string]any
	if raw, ok := in[item]; ok {
		all = make([]map[string]any, 1)
		if json.Unmarshal(raw, &all[0]) != nil {
			return
		}
	} else if json.Unmarshal(in[collection], &all) != nil {
		return
	}
	for _, o := range all {
		d.bodies = append(d.bodies, o)
		d.add(collection, o)
	}
	if _, ok := in[item]; ok {
		reply(w, http.StatusCreated, map[string]any{item: all[0]})
	} else {
		reply(w, http.StatusCreated, map[string]any{collection: all})
	}
}

// add keeps an object; what it does not say of itself is filled in.
func (d *double) add(collection string, o map[string]any) {
	d.serial++
	for name, value := range map[string]any{
		"id": fmt.Sprintf("00000000-0000-4000-8000-%012d", d.serial), "created_at": doubleTime, "updated_at": doubleTime, "revision_number": 1.0,
		"tags": []any{}, "admin_state_up": true, "mtu": 1442.0, "project_id": "p1",
	} {
		if o[name] == nil {
			o[name] = value
		}
	}
	d.objects[collection] = append(d.objects[collection], o)
	for _, n := range d.objects["networks"] {
		if n["id"] == o["network_id"] {
			list, _ := n["subnets"].([]any)
			n["subnets"] = append(list, o["id"])
		}
	}
}

func (d *double) list(w http.ResponseWriter, r *http.Request, collection string) {
	q := r.URL.Query()
	found := []map[string]any{}
	marker := q.Get("marker")
	passed := marker == ""
	for _, o := range d.objects[collection] {
		fits := true
		for _, name := range []string{"id", "description", "network_id", "name", "subnetpool_id", "cidr"} {
			fits = fits && (!q.Has(name) || slices.Contains(q[name], fmt.Sprint(o[name])))
		}
		if fits && passed {
			found = append(found, o)
		}
		passed = passed || o["id"] == marker
	}
	if !passed {
		answer(w, http.StatusNotFound, neutronError("NetworkNotFound", "Network "+marker+" could not be found."))
		return
	}
	out := map[string]any{}
	if limit, err := strconv.Atoi(q.Get("limit")); err == nil && len(found) > limit {
		found = found[:limit]
		out[collection+"_links"] = []map[string]string{{"rel": "next", "href": "http://elsewhere.example/"}}
	}
	out[collection] = found
	reply(w, http.StatusOK, out)
}

// tag adds or removes one tag, whatever others there are.
func (d *double) tag(w http.ResponseWriter, r *http.Request, collection, id, tag string) {
	at := slices.IndexFunc(d.objects[collection], func(o map[string]any) bool { return o["id"] == id })
	if at < 0 {
		answer(w, http.StatusNotFound, neutronError("TagResourceNotFound", id+" could not be found."))
		return
	}
	o := d.objects[collection][at]
	tags, _ := o["tags"].([]any)
	has := slices.Contains(tags, any(tag))
	switch {
	case r.Method == http.MethodPut && !has:
		o["tags"] = append(tags, tag)
	case r.Method == http.MethodDelete && !has:
		answer(w, http.StatusNotFound, neutronError("TagNotFound", tag))
		return
	case r.Method == http.MethodDelete:
		o["tags"] = slices.DeleteFunc(slices.Clone(tags), func(t any) bool { return t == any(tag) })
	}
	o["revision_number"] = o["revision_number"].(float64) + 1
	if r.Method == http.MethodPut {
		answer(w, http.StatusCreated, "")
		return
	}
	answer(w, http.StatusNoContent, "")
}

func (d *double) change(w http.ResponseWriter, r *http.Request, collection, id string, body []byte) {
	item := strings.TrimSuffix(collection, "s")
	at := slices.IndexFunc(d.objects[collection], func(o map[string]any) bool { return o["id"] == id })
	if at < 0 {
		answer(w, http.StatusNotFound, neutronError(strings.ToUpper(item[:1])+item[1:]+"NotFound", id+" could not be found."))
		return
	}
	o := d.objects[collection][at]
	if want := r.Header.Get("If-Match"); want != "" && want != fmt.Sprintf("revision_number=%v", o["revision_number"]) {
		answer(w, http.StatusPreconditionFailed, neutronError("RevisionNumberConstraintFailed", "Constrained to another revision."))
		return
	}
	switch r.Method {
	case http.MethodDelete:
		d.objects[collection] = slices.Delete(d.objects[collection], at, at+1)
		w.WriteHeader(http.StatusNoContent)
		return
	case http.MethodPut, http.MethodPost:
		o["revision_number"] = o["revision_number"].(float64) + 1
		var in map[string]json.RawMessage
		if json.Unmarshal(body, &in) != nil {
			return
		}
		if strings.HasSuffix(r.URL.Path, "/tags") {
			var tags []any
			_ = json.Unmarshal(in["tags"], &tags)
			if r.Method == http.MethodPost {
				had, _ := o["tags"].([]any)
				tags = append(slices.Clone(had), tags...)
			}
			o["tags"] = tags
			reply(w, http.StatusOK, map[string]any{"tags": tags})
			return
		}
		var fields map[string]any
		_ = json.Unmarshal(in[item], &fields)
		for name, value := range fields {
			o[name] = value
		}
	}
	reply(w, http.StatusOK, map[string]any{item: o})
}

func (d *double) count(collection string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.objects[collection])
}

// onDouble opens a provider on a double behind a proxy. Its backoffs take no time.
func onDouble(t *testing.T, d *double, change func(*Config)) (*Provider, *neutrontest.Proxy) {
	t.Helper()
	proxy := neutrontest.NewBefore(t, d)
	c := Config{
		Installation: "test", Project: "p1", Endpoint: proxy.URL, Auth: Auth{Type: "none"},
		Env: func(string) (string, bool) { return "", false },
	}
	if d.tokens != nil {
		c.Auth = Auth{URL: proxy.URL + "/v3", Username: "demo", Password: "secret", UserDomainID: "default", ProjectName: "demo", ProjectDomainID: "default"}
		c.Endpoint, c.Project = "", ""
	}
	if change != nil {
		change(&c)
	}
	p, err := Open(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p.client.backoff = func(ctx context.Context, _ int, _ error) bool { return ctx.Err() == nil }
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, proxy
}

func testKey(name string) sdn.Key { return sdn.Key{Owner: "test", Kind: "t", Name: name} }

var (
	getNetworks  = neutrontest.Call{Method: "GET", Collection: "networks"}
	postNetworks = neutrontest.Call{Method: "POST", Collection: "networks"}
	postSubnets  = neutrontest.Call{Method: "POST", Collection: "subnets"}
)
