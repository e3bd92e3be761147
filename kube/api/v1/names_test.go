package v1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
)

// nodeNames are what Kubernetes takes for one: labels of DNS with dots between them, 253 letters at most.
func nodeNames() *rapid.Generator[string] {
	return rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?){0,5}`)
}

func TestNamesAreValid(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		node := nodeNames().Draw(t, "node")
		pool := PoolName(KuryrPortPoolSpec{Node: node, Network: rapid.String().Draw(t, "network")})
		if bad := validation.IsDNS1123Subdomain(pool); bad != nil {
			t.Errorf("pool %q of node %q: %q", pool, node, bad)
		}
		for _, value := range []string{pool, NodeLabel(node)} {
			if bad := validation.IsValidLabelValue(value); bad != nil {
				t.Errorf("label %q of node %q: %q", value, node, bad)
			}
		}
		namespace := rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`).Draw(t, "namespace")
		uid := rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`).Draw(t, "uid")
		network := NetworkName(namespace, types.UID(uid))
		if bad := validation.IsDNS1123Subdomain(network); bad != nil {
			t.Errorf("network %q of namespace %q: %q", network, namespace, bad)
		}
	})
}

// The names are written in clusters: another way of making them would make every pool and network twice.
func TestNamesAreStable(t *testing.T) {
	t.Parallel()
	key := KuryrPortPoolSpec{Node: "worker-1.example.org", Network: "net", ProjectID: "project", SecurityGroups: []string{"web", "db"}, Subnets: []string{"s2", "s1"}}
	const want = "worker-1.example.org-1d3fbdee747e"
	if got := PoolName(key); got != want {
		t.Errorf("PoolName: %s, want %s", got, want)
	}
	key.SecurityGroups, key.Subnets = []string{"db", "web"}, []string{"s1", "s2"}
	key.NetworkName, key.Minimum, key.Maximum, key.Batch, key.Trunk = "blue", 3, 9, 5, "trunk"
	if got := PoolName(key); got != want {
		t.Errorf("with its sets in another order, a policy and a trunk: %s, want %s", got, want)
	}
	if key.SecurityGroups[0] != "db" || key.Subnets[0] != "s1" {
		t.Errorf("PoolName has sorted what it was given: %+v", key)
	}
	if got := NetworkName("blue", "0f1e2d3c-4b5a-4697-8897-a6b5c4d3e2f1"); got != "blue.0f1e2d3c" {
		t.Errorf("NetworkName: %s", got)
	}
	if got := NodeLabel("worker-1.example.org"); got != "worker-1.example.org" {
		t.Errorf("NodeLabel: %s", got)
	}
	long := strings.Repeat("a", 39) + "." + strings.Repeat("b", 60)
	if got, other := NodeLabel(long), NodeLabel(long+"c"); !strings.HasPrefix(got, strings.Repeat("a", 39)+"-") || got == other {
		t.Errorf("NodeLabel of two long names: %s and %s", got, other)
	}
}

// Each part of the key is one: what differs in it is another pool.
func TestPoolNameHasTheWholeKey(t *testing.T) {
	t.Parallel()
	base := KuryrPortPoolSpec{Node: "n", Network: "a"}
	seen := map[string]string{PoolName(base): "nothing"}
	for what, change := range map[string]func(*KuryrPortPoolSpec){
		"node":    func(s *KuryrPortPoolSpec) { s.Node = "m" },
		"project": func(s *KuryrPortPoolSpec) { s.ProjectID = "t" }, "network": func(s *KuryrPortPoolSpec) { s.Network = "b" },
		"subnets": func(s *KuryrPortPoolSpec) { s.Subnets = []string{"t"} }, "groups": func(s *KuryrPortPoolSpec) { s.SecurityGroups = []string{"t"} },
		"two groups": func(s *KuryrPortPoolSpec) { s.SecurityGroups = []string{"t", "u"} },
	} {
		s := base
		change(&s)
		name := PoolName(s)
		if other, twice := seen[name]; twice {
			t.Errorf("another %s and another %s make the same name", what, other)
		}
		seen[name] = what
	}
}
