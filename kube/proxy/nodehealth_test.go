package proxy

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func nodeNamed(name string, change func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if change != nil {
		change(n)
	}
	return n
}

// asked is what a node says of its health at a path.
func asked(t *testing.T, c *Controller, path string) (code int, a nodeAnswer) {
	t.Helper()
	w := httptest.NewRecorder()
	c.nodeHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	if w.Header().Get("Content-Type") != "application/json" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%s: headers %v", path, w.Header())
	}
	must(t, json.Unmarshal(w.Body.Bytes(), &a))
	return w.Code, a
}

// A node that is about to go is to have no connections, nor one that is not known or whose kernel was told nothing yet; its daemon lives all the same.
func TestNodeHealth(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	c := New(Config{Node: "n1"})
	c.SeeNode(nodeNamed("n1", nil))
	if code, a := asked(t, c, "/healthz"); code != 503 || a.NodeEligible == nil || !*a.NodeEligible || !a.LastUpdated.IsZero() {
		t.Errorf("the kernel has nothing yet: %d, %+v", code, a)
	}
	c = New(Config{Node: "n1"})
	c.node.brought(true, now.Add(-time.Hour))
	for _, row := range []struct {
		what string
		node *corev1.Node
		code int
	}{
		{"none is known", nil, 503},
		{"it is there", nodeNamed("n1", nil), 200},
		{"another goes", nodeNamed("n2", func(n *corev1.Node) { n.DeletionTimestamp = &now }), 200},
		{"another taint", nodeNamed("n1", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a", Value: toBeDeleted}} }), 200},
		{"it is to go", nodeNamed("n1", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: toBeDeleted, Value: "1"}} }), 503},
		{"it stays", nodeNamed("n1", nil), 200},
		{"it goes", nodeNamed("n1", func(n *corev1.Node) { n.DeletionTimestamp = &now }), 503},
	} {
		if row.node != nil {
			c.SeeNode(row.node)
		}
		if code, a := asked(t, c, "/healthz"); code != row.code || a.NodeEligible == nil || *a.NodeEligible != (code == 200) || a.CurrentTime.IsZero() || a.LastUpdated.Equal(a.CurrentTime) != (code == 200) {
			t.Errorf("%s: %d, %+v; want %d", row.what, code, a, row.code)
		}
		if code, a := asked(t, c, "/livez"); code != 200 || a.NodeEligible != nil {
			t.Errorf("%s: it lives: %d, %+v", row.what, code, a)
		}
	}
}

// A kernel that takes nothing for a minute has the node get no connections, until it does again.
func TestNodeHealthOfTheKernel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{changed: make(chan struct{}, 1)}
		c := New(Config{Node: "n1", Table: k})
		c.SeeNode(nodeNamed("n1", nil))
		is := func(what string, want int) {
			t.Helper()
			for _, path := range []string{"/healthz", "/livez"} {
				if code, _ := asked(t, c, path); code != want {
					t.Errorf("%s: %s says %d, want %d", what, path, code, want)
				}
			}
		}
		must(t, c.step(t.Context()))
		is("all is well", 200)
		k.fails = 2
		c.Mend()
		for range 2 {
			if c.step(t.Context()) == nil {
				t.Fatal("the kernel has taken it")
			}
			is("it has just failed", 200)
			time.Sleep(healthPatience / 2)
		}
		is("it fails for long", 503)
		must(t, c.step(t.Context()))
		is("it is mended", 200)
		k.refuses = 30080
		c.change(func(x *index) { x.setService(of()) })
		if c.step(t.Context()) == nil {
			t.Fatal("the kernel has taken what it refuses")
		}
		time.Sleep(2 * healthPatience)
		is("it does not take a single Service", 200)
	})
}

// It is served where it is to be, also once another has let go of the address, and ends with the daemon.
func TestNodeHealthIsServed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c := newCluster(t, Rules{})
	c.HealthListen = l.Addr().String()
	stop := c.run()
	c.becomes("")
	must(t, l.Close())
	status := func() int {
		r, err := http.Get("http://" + c.HealthListen + "/healthz")
		if err != nil {
			return 0
		}
		defer r.Body.Close()
		return r.StatusCode
	}
	c.until("it is served", func() bool { return status() == 200 })
	stop()
	if got := status(); got != 0 {
		t.Errorf("after its end it says %d", got)
	}
}
