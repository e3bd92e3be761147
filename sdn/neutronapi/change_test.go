package neutronapi

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// plain is a provider without what package sdn calls optional.
type plain struct{ sdn.Provider }

// eachProvider runs a test on a provider with the optional interfaces and on one without.
func eachProvider(t *testing.T, test func(*testing.T, *world)) {
	t.Helper()
	for _, name := range []string{"optional", "plain"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if name == "plain" {
				w.handler = NewHandler(plain{w.sdn}, Options{})
			}
			test(t, w)
		})
	}
}

// A bulk makes all or none, and of what was there before it takes nothing away.
func TestBulk(t *testing.T) {
	t.Parallel()
	eachProvider(t, func(t *testing.T, w *world) {
		of := `"network_id":"` + string(w.network.ID) + `"`
		there := w.made(t, root, "POST", "/v2.0/ports", `{"port":{`+of+`,"name":"bulk","description":"kuryr/x/port/one"}}`, "port.id")
		w.steps(t, root, []step{
			{"POST", "/v2.0/ports", `{"ports":[{` + of + `,"name":"bulk"},{"port":{` + of + `,"name":"bulk"}}]}`, 201, "ports.#=2 ports.0.name=bulk ports.1.name=bulk"},
			{"POST", "/v2.0/ports", `{"ports":[{` + of + `,"name":"bad","description":"kuryr/x/port/one"},{` + of + `,"name":"bad"},{` + of + `,"name":"bad","mac_address":"` + w.port.MAC.String() + `"}]}`, 409, "MacAddressInUse: "},
			{"POST", "/v2.0/ports", `{"ports":[{` + of + `,"name":"bad"},{` + of + `,"name":"bad","colour":1}]}`, 400, "HTTPBadRequest: Unrecognized attribute(s) 'colour'"},
			{"POST", "/v2.0/networks", `{"networks":[{"name":"bulk"},{"name":"bulk","mtu":1400}]}`, 201, "networks.#=2 networks.1.mtu=1400"},
			{"POST", "/v2.0/subnets", `{"subnets":[{` + of + `,"ip_version":4,"cidr":"10.2.0.0/24","name":"bad"},{` + of + `,"ip_version":4,"cidr":"10.2.0.128/25","name":"bad"}]}`, 400, "InvalidInput: overlaps with another subnet"},
			{"GET", "/v2.0/ports/" + there, "", 200, "port.description=kuryr/x/port/one"},
		})
		if n := len(w.listed(t, root, "ports?name=bad&mac_address=02:00:00:00:00:01", "id")); n != 0 {
			t.Errorf("%d ports of a bulk that failed", n)
		}
		if n := len(w.listed(t, root, "subnets?name=bad", "id")); n != 0 {
			t.Errorf("%d subnets of a bulk that failed", n)
		}
		if n := len(w.listed(t, root, "ports?name=bad", "id")); n > 1 { // the one with the Key may have its new name
			t.Errorf("%d ports of a bulk that failed", n)
		}
	})
}

// What says at which revision it is to happen happens at no other.
func TestRevisions(t *testing.T) {
	t.Parallel()
	eachProvider(t, func(t *testing.T, w *world) {
		of := string(w.network.ID)
		for _, path := range []string{
			"networks/" + w.made(t, root, "POST", "/v2.0/networks", `{"network":{}}`, "network.id"),
			"subnets/" + w.made(t, root, "POST", "/v2.0/subnets", `{"subnet":{"network_id":"`+of+`","ip_version":4,"cidr":"10.2.0.0/24"}}`, "subnet.id"),
			"subnetpools/" + w.made(t, root, "POST", "/v2.0/subnetpools", `{"subnetpool":{"name":"x","prefixes":["10.0.0.0/8"]}}`, "subnetpool.id"),
			"ports/" + w.made(t, root, "POST", "/v2.0/ports", `{"port":{"network_id":"`+of+`"}}`, "port.id"),
		} {
			member := path[:strings.Index(path, "/")-1]
			body := `{"` + member + `":{"name":"x"}}`
			revision := w.made(t, root, "GET", "/v2.0/"+path, "", member+".revision_number")
			for _, tc := range []struct {
				method, body, match string
				status              int
				kind                string
			}{
				{"PUT", body, "revision_number=" + revision + "7", 412, "RevisionNumberConstraintFailed"},
				{"PUT", body, "revision_number=0", 412, "RevisionNumberConstraintFailed"},
				{"DELETE", "", "revision_number=" + revision + "7", 412, "RevisionNumberConstraintFailed"},
				{"PUT", body, "revision_number=x", 400, "BadRequest"},
				{"PUT", body, "revision_number=1, revision_number=2", 400, "BadRequest"},
				{"PUT", body, "nonsense", 200, "absent"},
				{"PUT", body, `"revision_number=` + revision + `"`, 412, "RevisionNumberConstraintFailed"}, // the one before has changed it
			} {
				status, out := w.ask(t, root, tc.method, "/v2.0/"+path, tc.body, "If-Match", tc.match)
				if status != tc.status || at(out, "NeutronError.type") != tc.kind {
					t.Errorf("%s %s at %s: %d %v, want %d %s", tc.method, path, tc.match, status, out, tc.status, tc.kind)
				}
			}
			revision = w.made(t, root, "GET", "/v2.0/"+path, "", member+".revision_number")
			if status, out := w.ask(t, root, "PUT", "/v2.0/"+path, body, "If-Match", "revision_number="+revision); status != 200 {
				t.Errorf("PUT %s at its revision: %d %v", path, status, out)
			}
			revision = w.made(t, root, "GET", "/v2.0/"+path, "", member+".revision_number")
			if status, out := w.ask(t, root, "DELETE", "/v2.0/"+path, "", "If-Match", "revision_number="+revision); status != 204 {
				t.Errorf("DELETE %s at its revision: %d %v", path, status, out)
			}
		}
	})
}

func TestTags(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, path := range []string{"networks/" + string(w.network.ID), "subnets/" + string(w.subnet.ID), "subnetpools/" + string(w.pool.ID), "ports/" + string(w.port.ID)} {
		tags := "/v2.0/" + path + "/tags"
		w.steps(t, root, []step{
			{"PUT", tags, `{"tags":["red","blue"]}`, 200, "tags.#=2"},
			{"GET", tags, "", 200, `tags=["blue","red"]`},
			{"PUT", tags + "/green", "", 201, ""},
			{"PUT", tags + "/green", "", 201, ""},
			{"GET", tags + "/green", "", 204, ""},
			{"GET", tags + "/black", "", 404, "TagNotFound: Tag black could not be found."},
			{"POST", tags, `{"tags":["a/b","red"]}`, 201, ""},
			{"GET", tags, "", 200, `tags=["a/b","blue","green","red"]`},
			{"DELETE", tags + "/a%2Fb", "", 204, ""},
			{"DELETE", tags + "/black", "", 404, "TagNotFound: black"},
			{"PUT", tags + "/x.json", "", 201, ""},
			{"GET", tags + "/x.json", "", 204, ""},
			{"DELETE", tags, "", 204, ""},
			{"GET", tags, "", 200, `tags=[]`},
			{"PUT", tags, `{"tags":[5]}`, 400, "InvalidInput: '5' is not a valid string"},
			{"PUT", tags, `{"tags":["a","a"]}`, 400, "InvalidInput: Duplicate items in the list: 'a'"},
			{"PUT", tags, `{"tag":[]}`, 400, "InvalidInput: Invalid tags body"},
			{"PUT", tags, `{"tags":["` + strings.Repeat("x", 256) + `"]}`, 400, "InvalidInput: exceeds maximum length of 255"},
			{"PATCH", tags, ``, 405, "HTTPMethodNotAllowed: PATCH"},
		})
	}
	w.steps(t, root, []step{{"PUT", "/v2.0/ports/none/tags", `{"tags":[]}`, 404, "TagResourceNotFound: none"}})
	many := make([]string, 51)
	for i := range many {
		many[i] = fmt.Sprintf("%q", fmt.Sprint("t", i))
	}
	w.steps(t, root, []step{{"PUT", "/v2.0/ports/" + string(w.port.ID) + "/tags", `{"tags":[` + strings.Join(many, ",") + `]}`, 400, "HTTPBadRequest: at most 50"}})
}

// Many who tag one object at the same time lose nobody's tag.
func TestTagsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			if status, out := w.ask(t, root, "PUT", fmt.Sprintf("/v2.0/ports/%s/tags/t%d", w.port.ID, i), ""); status != 201 {
				t.Errorf("%d %v", status, out)
			}
		})
	}
	wait.Wait()
	w.steps(t, root, []step{{"GET", "/v2.0/ports/" + string(w.port.ID) + "/tags", "", 200, "tags.#=8"}})
}

func TestQuotas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.steps(t, root, []step{
		{"GET", "/v2.0/quotas/p", "", 200, "quota.port=500 quota.network=100 quota.rbac_policy=100"},
		{"PUT", "/v2.0/quotas/p", `{"quota":{"port":1,"network":"5"}}`, 200, "quota.port=1 quota.network=5"},
		{"GET", "/v2.0/quotas/p/default", "", 200, "quota.port=500"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + string(w.network.ID) + `","project_id":"p"}}`, 201, ""},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + string(w.network.ID) + `","project_id":"p"}}`, 409, "OverQuota: quota of 1"},
		{"GET", "/v2.0/quotas/p/details.json", "", 200, "quota.port.used=1 quota.port.limit=1 quota.port.reserved=0 quota.port.kuryr:default=false quota.router.kuryr:default=true"},
		{"PUT", "/v2.0/quotas/p", `{"quota":{"port":0,"check_limit":true}}`, 409, "InvalidQuotaValue: port"},
		{"PUT", "/v2.0/quotas/p", `{"quota":{"port":-2}}`, 400, "HTTPBadRequest: Invalid input for port"},
		{"PUT", "/v2.0/quotas/p", `{"quota":{"colour":1}}`, 400, "HTTPBadRequest: Unrecognized attribute(s) 'colour'"},
		{"PUT", "/v2.0/quotas/p", `{"quotas":{}}`, 400, "HTTPBadRequest: Unable to find 'quota' in request body"},
		{"DELETE", "/v2.0/quotas/p", "", 204, ""},
		{"GET", "/v2.0/quotas/p", "", 200, "quota.port=500"},
		{"GET", "/v2.0/quotas", "", 200, "quotas=[]"},
	})
	w.handler = NewHandler(plain{w.sdn}, Options{})
	w.steps(t, root, []step{{"DELETE", "/v2.0/quotas/p", "", 501, "HTTPNotImplemented: "}})
}

// What is no request of the API's is refused in the API's words.
func TestHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handler = NewHandler(w.sdn, Options{MaxBody: 1000})
	for _, tc := range []struct {
		method, path, body, kind string
		status                   int
		says                     string
	}{
		{"POST", "/v2.0/networks", `{"network":{}}`, "text/plain", 415, "HTTPUnsupportedMediaType"},
		{"POST", "/v2.0/networks", `{"network":{}}`, "application/json; charset=utf-8", 201, "absent"},
		{"POST", "/v2.0/networks", `{"network":{}}`, "", 201, "absent"},
		{"POST", "/v2.0/networks", `{"network":{"name":"` + strings.Repeat("x", 1000) + `"}}`, "", 413, "HTTPRequestEntityTooLarge"},
		{"DELETE", "/v2.0/networks/x", `{}`, "", 400, "HTTPBadRequest"},
		{"GET", "/v2.0/colours/x", ``, "", 404, "HTTPNotFound"},
		{"GET", "/v3/networks", ``, "", 404, "HTTPNotFound"},
		{"GET", "/v2.0/networks/x/y", ``, "", 404, "HTTPNotFound"},
		{"PUT", "/v2.0/networks", `{}`, "", 405, "HTTPMethodNotAllowed"},
	} {
		status, out := w.ask(t, root, tc.method, tc.path, tc.body, "Content-Type", tc.kind)
		if status != tc.status || at(out, "NeutronError.type") != tc.says {
			t.Errorf("%s %s %.40s: %d %v, want %d %s", tc.method, tc.path, tc.body, status, out, tc.status, tc.says)
		}
	}
	r := httptest.NewRequestWithContext(WithCaller(t.Context(), root), http.MethodHead, "/v2.0/networks", nil)
	recorder := httptest.NewRecorder()
	w.handler.ServeHTTP(recorder, r)
	if recorder.Code != http.StatusOK || recorder.Header().Get("Content-Type") != "application/json" {
		t.Errorf("HEAD: %d %v", recorder.Code, recorder.Header())
	}
	recorder = httptest.NewRecorder()
	(&server{}).writeError(recorder, EncodeError(&sdn.Error{Kind: sdn.KindPending, RetryAfter: 1500e6}))
	if recorder.Header().Get("Retry-After") != "2" || !bytes.Contains(recorder.Body.Bytes(), []byte("ResourcePending")) {
		t.Errorf("an answer to come again: %v %s", recorder.Header(), recorder.Body)
	}
}

// Only what is served is listed as an extension, and every alias can be asked for.
func TestExtensions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, out := w.ask(t, root, "GET", "/v2.0/extensions?fields=alias", "")
	aliases := map[string]bool{}
	for i := 0; at(out, fmt.Sprintf("extensions.%d", i)) != "absent"; i++ {
		alias := at(out, fmt.Sprintf("extensions.%d.alias", i))
		aliases[alias] = true
		w.steps(t, root, []step{{"GET", "/v2.0/extensions/" + alias, "", 200, "extension.alias=" + alias + " extension.links=[]"}})
	}
	for _, want := range []string{"standard-attr-description", "standard-attr-tag", "revision-if-match", "pagination", "sorting", "quotas", "binding", "subnet_allocation", "port-security", Kuryr} {
		if !aliases[want] {
			t.Errorf("%s is not listed", want)
		}
	}
	if aliases["provider"] {
		t.Error("there are no physical networks, but the extension is listed")
	}
	w.steps(t, root, []step{
		{"GET", "/v2.0/extensions/kuryr", "", 200, "extension.capabilities.HostAddresses=true extension.capabilities.ExternalNetwork=" + string(w.sdn.Capabilities().ExternalNetwork)},
		{"GET", "/v2.0/extensions/colours", "", 404, "HTTPNotFound: Extension with alias colours does not exist"},
		{"GET", "/v2.0/", "", 200, "resources.0.collection=networks resources.3.links.0.href=http://example.com/v2.0/ports"},
		{"GET", "/v2.0", "", 200, "resources.#=4"},
	})
}
