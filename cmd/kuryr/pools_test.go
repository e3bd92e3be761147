//go:build linux && kubernetes

package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// The pools of one node are chosen by the API server, which alone knows how many there are.
func TestKubernetesPoolList(t *testing.T) {
	t.Parallel()
	pools := v1.KuryrPortPoolList{TypeMeta: metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "KuryrPortPoolList"}}
	for _, node := range []string{"node1", "node2", strings.Repeat("long", 20)} {
		p := v1.KuryrPortPool{Spec: v1.KuryrPortPoolSpec{Node: node, Network: "net", Batch: 1}}
		p.Name, p.Labels = v1.PoolName(p.Spec), map[string]string{v1.LabelNode: v1.NodeLabel(node)}
		pools.Items = append(pools.Items, p)
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any
		switch {
		case strings.HasSuffix(r.URL.Path, "/kuryrportpools"):
			chosen := pools
			chosen.Items = nil
			for _, p := range pools.Items {
				if s := r.URL.Query().Get("labelSelector"); s == "" || s == v1.LabelNode+"="+p.Labels[v1.LabelNode] {
					chosen.Items = append(chosen.Items, p)
				}
			}
			answer = chosen
		case strings.HasSuffix(r.URL.Path, v1.GroupVersion.String()):
			answer = metav1.APIResourceList{
				GroupVersion: v1.GroupVersion.String(), APIResources: []metav1.APIResource{{Name: "kuryrportpools", SingularName: "kuryrportpool", Kind: "KuryrPortPool"}},
			}
		case r.URL.Path == "/apis":
			version := metav1.GroupVersionForDiscovery{GroupVersion: v1.GroupVersion.String(), Version: v1.GroupVersion.Version}
			answer = metav1.APIGroupList{Groups: []metav1.APIGroup{{Name: v1.GroupVersion.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}}}
		case r.URL.Path == "/api":
			answer = metav1.APIVersions{}
		default:
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer api.Close()
	for node, want := range map[string]int{"": 3, "node2": 1, strings.Repeat("long", 20): 1, "none": 0} {
		code, out, complaint := kuryr(t.Context(), nil, "pool", "list", "-o", "json", "--node", node, "--kubernetes-api-server", api.URL)
		var rows []poolRow
		if err := json.Unmarshal([]byte(out), &rows); err != nil || code != exitOK || len(rows) != want || want == 1 && rows[0].Node != node {
			t.Errorf("of %q: exit %d, %v, %s%s", node, code, err, out, complaint)
		}
	}
}
