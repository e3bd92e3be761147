//go:build e2e

package neutron_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// untagged is the address of a proxy that makes of Neutron one without tags: no
// extension, attribute, call or filter of theirs.
func (r *rig) untagged() string {
	r.Helper()
	return r.front(func(proxy *httputil.ReverseProxy) http.Handler {
		forward := proxy.Rewrite
		proxy.Rewrite = func(p *httputil.ProxyRequest) {
			forward(p)
			p.Out.Header.Del("Accept-Encoding")
		}
		proxy.ModifyResponse = func(resp *http.Response) error {
			var body any
			text, err := io.ReadAll(resp.Body)
			if err != nil || len(text) == 0 {
				return err
			}
			numbers := json.NewDecoder(bytes.NewReader(text))
			numbers.UseNumber()
			if err := numbers.Decode(&body); err != nil {
				return err
			}
			if text, err = json.Marshal(withoutTags(body)); err != nil {
				return err
			}
			resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
			resp.Header.Del("Content-Length")
			return nil
		}
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			switch {
			case slices.Contains(strings.Split(req.URL.Path, "/"), "tags"):
				http.Error(
					w,
					`{"NeutronError": {"type": "HTTPNotFound", "message": "The resource could `+
						`not be found.", "detail": ""}}`,
					http.StatusNotFound,
				)
			case req.URL.Query().Has("tags"):
				http.Error(
					w,
					`{"NeutronError": {"type": "HTTPBadRequest", "message": "['tags'] is invalid `+
						`attribute for filtering", "detail": ""}}`,
					http.StatusBadRequest,
				)
			default:
				proxy.ServeHTTP(w, req)
			}
		})
	})
}

// withoutTags takes tags and their extensions out of what Neutron says.
func withoutTags(value any) any {
	switch v := value.(type) {
	case map[string]any:
		delete(v, "tags")
		for k := range v {
			v[k] = withoutTags(v[k])
		}
	case []any:
		return slices.DeleteFunc(v, func(item any) bool {
			o, _ := withoutTags(item).(map[string]any)
			alias, _ := o["alias"].(string)
			return slices.Contains(strings.Split(alias, "-"), "tag")
		})
	}
	return value
}

// A Neutron without the extension of tags: networks and ports of Kuryr's own and networks
// that are there serve, and what cannot be undone or remembered without tags is refused.
func TestWithoutTags(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("untagged", "10.68.0.0/24")
	theirs := r.create("ports", object{
		"name": "theirs", "network_id": network.ID(),
		"fixed_ips": []object{{"subnet_id": subnets[0].ID(), "ip_address": "10.68.0.9"}},
	})
	r.restarted(r.h1, "KURYR_NEUTRON_ENDPOINT="+r.untagged())
	r.h1.network("plain", "--subnet", "10.69.0.0/24", "--gateway", "10.69.0.1")
	r.h1.use("untagged", network, subnets)
	r.h2.use("untagged", network, subnets)
	a, b := r.h1.run("plain-a", "plain"), r.h1.run("plain-b", "plain", "--ip", "10.69.0.77")
	r.reaches(a.in, b.ip4, a.ip4)
	r.h1.docker("restart", "-t", "1", "plain-b")
	b = r.h1.look("plain-b", "plain")
	r.reaches(b.in, a.ip4, b.ip4)
	if tags, _ := a.port()["tags"].([]any); len(tags) > 0 {
		t.Errorf("the port has tags: %v", tags)
	}
	c, d := r.h1.run("untagged-c", "untagged"), r.h2.run("untagged-d", "untagged")
	r.reaches(c.in, d.ip4, c.ip4)
	r.h1.refused(
		[]string{"tags"}, "run", "--rm", "--network", "untagged", "--ip", "10.68.0.9",
		"--mac-address", theirs.Text("mac_address"), "box", "true",
	)
	for _, option := range []string{"kuryr.router=any", "kuryr.security_groups=default"} {
		r.h1.refused(
			[]string{"tags"}, "network", "create", "-d", "kuryr", "--ipam-driver", "kuryr",
			"--subnet", "10.70.0.0/24", "-o", option, "refused",
		)
	}
	if now := r.get("ports", theirs.ID()); now.Text("device_id") != "" ||
		now.Text("binding:host_id") != "" || now.Text("name") != "theirs" {
		t.Errorf("the port is not as it was: %v", now)
	}
	r.h1.docker("rm", "-f", "plain-a", "plain-b", "untagged-c")
	r.h1.docker("network", "rm", "plain", "untagged")
	r.reaches(d.in, d.ip4, netip.Addr{})
}
