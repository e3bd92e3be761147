package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kuryr/kuryr/datapath/lb"
)

// api has its lists by list: the fake knows no streamed ones.
type api struct {
	client.WithWatch
	watches atomic.Int32
}

func (*api) IsWatchListSemanticsUnSupported() bool { return true }

func (a *api) Watch(ctx context.Context, l client.ObjectList, o ...client.ListOption) (watch.Interface, error) {
	w, err := a.WithWatch.Watch(ctx, l, o...)
	a.watches.Add(1)
	return w, err
}

// kernel is a Table in memory.
type kernel struct {
	mu       sync.Mutex
	has      map[lb.Key]lb.Frontend
	restored int
	touched  int // frontends set or removed since the last Restore
	fails    int // so many of the next calls
	refuses  uint16
	changed  chan struct{}
}

func (k *kernel) call(f func()) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails > 0 {
		k.fails--
		return errors.New("made up")
	}
	f()
	select {
	case k.changed <- struct{}{}:
	default:
	}
	return nil
}

func (k *kernel) Restore(_ context.Context, all []lb.Frontend) error {
	return k.call(func() {
		k.has = map[lb.Key]lb.Frontend{}
		for _, f := range all {
			k.has[f.Key] = f
		}
		k.restored, k.touched = k.restored+1, 0
	})
}

func (k *kernel) Apply(_ context.Context, set []lb.Frontend, remove []lb.Key) error {
	if slices.ContainsFunc(set, func(f lb.Frontend) bool { return f.Port == k.refuses }) {
		return fmt.Errorf("port %d: refused", k.refuses)
	}
	return k.call(func() {
		for _, key := range remove {
			delete(k.has, key)
		}
		for _, f := range set {
			k.has[f.Key] = f
		}
		k.touched += len(set) + len(remove)
	})
}

func (k *kernel) picture() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Join(picture(realised{frontends: slices.Collect(maps.Values(k.has))}), "\n")
}

// cluster is an API server, a node's kernel and the daemon between them.
type cluster struct {
	t      *testing.T
	api    *api
	kernel *kernel
	*Controller
}

func newCluster(t *testing.T, rules Rules, objects ...client.Object) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, errors.Join(corev1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme)))
	c := &cluster{t: t, api: &api{WithWatch: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&corev1.Service{}).Build()}}
	c.kernel = &kernel{changed: make(chan struct{}, 1), has: map[lb.Key]lb.Frontend{{Addr: netip.MustParseAddr("0.0.0.0"), Protocol: 6, Port: 1}: {}}}
	c.Controller = New(Config{Client: c.api, Node: "n1", Table: c.kernel, Rules: rules, Log: slog.New(slog.DiscardHandler), backoff: &wait.Backoff{Duration: time.Millisecond}, retry: time.Millisecond})
	return c
}

// run has the daemon work until the test, or stop, ends it.
func (c *cluster) run() (stop func()) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	stop = func() { cancel(); <-done }
	c.t.Cleanup(stop)
	c.SeeNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "z1"}}})
	c.until("the daemon watches", func() bool { return c.api.watches.Load() >= 2 })
	return stop
}

// testTimeout is how long a test waits for what must come, also on a loaded machine.
const testTimeout = time.Minute

func (c *cluster) until(what string, is func() bool) {
	c.t.Helper()
	end := time.After(testTimeout)
	for !is() {
		select {
		case <-c.kernel.changed:
		case <-time.After(5 * time.Millisecond):
		case <-end:
			c.t.Fatalf("not within %s: %s; the kernel has\n%s", testTimeout, what, c.kernel.picture())
		}
	}
}

func (c *cluster) becomes(want ...string) {
	c.t.Helper()
	slices.Sort(want)
	c.until(strings.Join(want, "; "), func() bool { return c.kernel.picture() == strings.Join(want, "\n") })
}

func (c *cluster) create(o client.Object) {
	c.t.Helper()
	must(c.t, c.api.Create(context.Background(), o))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func named(name string, age int, change ...func(*corev1.Service)) *corev1.Service {
	s := of(change...)
	s.Name, s.UID, s.CreationTimestamp = name, types.UID("u-"+name), metav1.NewTime(time.Unix(int64(1000-age), 0))
	return s
}

// What the last process left is replaced at once, when all is known, and then only what changes is touched.
func TestFollows(t *testing.T) {
	var others []client.Object
	for _, label := range []string{labelProxyName, labelHeadless} {
		s := sliceOf("other-"+label[len("service.kubernetes.io/"):], "10.128.0.9 n1")
		s.Labels[label] = "x"
		others = append(others, s)
	}
	c := newCluster(t, Rules{}, append(others, of(), sliceOf("a", "10.128.0.5 n1"))...)
	c.run()
	c.becomes("tcp 0.0.0.0:30080 -> 10.128.0.5:8080")
	if c.kernel.restored != 1 {
		t.Errorf("restored %d times", c.kernel.restored)
	}
	c.create(sliceOf("b", "10.128.0.7 n1"))
	c.becomes("tcp 0.0.0.0:30080 -> 10.128.0.5:8080 10.128.0.7:8080")
	must(t, c.api.Delete(t.Context(), sliceOf("a")))
	c.becomes("tcp 0.0.0.0:30080 -> 10.128.0.7:8080")
	c.create(named("other", 0, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30081 }))
	c.becomes("tcp 0.0.0.0:30080 -> 10.128.0.7:8080", "tcp 0.0.0.0:30081 -> reject")
	if c.kernel.touched != 3 {
		t.Errorf("three changes touched %d frontends", c.kernel.touched)
	}
	must(t, c.api.Delete(t.Context(), of()))
	c.becomes("tcp 0.0.0.0:30081 -> reject")
	// Under the same name at once, with another port.
	must(t, c.api.Delete(t.Context(), named("other", 0)))
	c.create(named("other", 0, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30082 }))
	c.becomes("tcp 0.0.0.0:30082 -> reject")
}

// The kernel may fail: what it did not take it is told again, and nothing that went stays.
func TestTriesAgain(t *testing.T) {
	c := newCluster(t, Rules{}, of())
	c.kernel.fails = 2
	select {
	case <-c.Restored():
		t.Error("the kernel has all before anything is known")
	default:
	}
	c.run()
	c.becomes("tcp 0.0.0.0:30080 -> reject")
	select {
	case <-c.Restored():
	case <-time.After(testTimeout):
		t.Error("nobody says that the kernel has all")
	}
	if c.kernel.restored != 1 {
		t.Errorf("restored %d times", c.kernel.restored)
	}
	c.kernel.mu.Lock()
	c.kernel.fails = 2
	c.kernel.mu.Unlock()
	must(t, c.api.Delete(t.Context(), of()))
	c.becomes("")
}

// What somebody has torn down is there again, all of it, even if that fails at first.
func TestMends(t *testing.T) {
	c := newCluster(t, Rules{}, of())
	c.run()
	c.becomes("tcp 0.0.0.0:30080 -> reject")
	c.kernel.mu.Lock()
	clear(c.kernel.has)
	c.kernel.fails = 1
	c.kernel.mu.Unlock()
	c.Mend()
	c.becomes("tcp 0.0.0.0:30080 -> reject")
	if c.kernel.restored != 2 {
		t.Errorf("restored %d times", c.kernel.restored)
	}
}

// What the kernel does not take of one Service keeps no other out, and is told of.
func TestOneIsRefused(t *testing.T) {
	c := newCluster(t, Rules{})
	c.kernel.refuses = 30666
	c.run()
	c.until("restored", func() bool { return c.kernel.picture() == "" })
	c.change(func(x *index) {
		x.setService(of())
		x.setService(named("bad", 0, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30666 }))
	})
	c.becomes("tcp 0.0.0.0:30080 -> reject")
	c.until("it is told of", func() bool {
		return strings.Contains(strings.Join(c.Problems(), "\n"), "ns/bad: service ns/bad: port 30666: refused")
	})
	c.change(func(x *index) { x.dropService(types.NamespacedName{Namespace: "ns", Name: "bad"}) })
	c.until("it is not told of any more", func() bool { return len(c.Problems()) == 0 })
}

// Of two Services with one external address it is the older one's, whichever comes first, until that lets go of it.
func TestOneAddressTwice(t *testing.T) {
	claim := func(s *corev1.Service) {
		s.Spec.Ports[0].NodePort, s.Spec.ExternalIPs = 0, []string{"198.51.100.7", "203.0.113.1"}
	}
	c := newCluster(t, Rules{ExternalIPs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}, named("web", 1, claim), sliceOf("a", "10.128.0.5 n1"))
	c.run()
	c.becomes("tcp 198.51.100.7:80 -> 10.128.0.5:8080")
	c.create(named("young", 0, claim))
	c.until("the younger is told of", func() bool {
		return slices.Equal(c.Problems(), []string{
			"Service ns/web: external address 203.0.113.1: not of the ranges that are allowed",
			"Service ns/young: external address 203.0.113.1: not of the ranges that are allowed",
			"Service ns/young: tcp 198.51.100.7:80 is the Service ns/web's, which is older",
		})
	})
	c.create(named("old", 2, claim))
	c.becomes("tcp 198.51.100.7:80 -> reject")
	must(t, c.api.Delete(t.Context(), named("old", 2)))
	c.becomes("tcp 198.51.100.7:80 -> 10.128.0.5:8080")
	must(t, c.api.Delete(t.Context(), named("web", 1)))
	c.becomes("tcp 198.51.100.7:80 -> reject")
}

// The node's zone and its port in the SDN change what all Services come to.
func TestNodeChanges(t *testing.T) {
	c := newCluster(t, Rules{}, of(), sliceOf("a", "10.128.0.5 n1 zone=z1", "10.128.0.6 n1 zone=z2"))
	c.run()
	c.becomes("tcp 0.0.0.0:30080 -> 10.128.0.5:8080 drains=10.128.0.6:8080")
	c.SeeNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "z2"}}})
	c.becomes("tcp 0.0.0.0:30080 -> 10.128.0.6:8080 drains=10.128.0.5:8080")
	c.SeeLeg(true)
	c.becomes("tcp 0.0.0.0:30080 -> 10.128.0.6:8080 drains=10.128.0.5:8080 masquerade")
}

// A load balancer is told whether the node has endpoints, in kube-proxy's words.
func TestHealthCheck(t *testing.T) {
	port := func() int32 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer l.Close()
		return int32(l.Addr().(*net.TCPAddr).Port)
	}()
	web := of(external(true), func(s *corev1.Service) { s.Spec.HealthCheckNodePort = port })
	c := newCluster(t, Rules{}, web, sliceOf("a", "10.128.0.5 n1", "10.128.0.6 n2"))
	c.run()
	ask := func() (code int, weight, body string) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
		must(t, err)
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, "", ""
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		if r.Header.Get("Content-Type") != "application/json" || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("headers %v", r.Header)
		}
		return r.StatusCode, r.Header.Get("X-Load-Balancing-Endpoint-Weight"), string(b)
	}
	answers := func(code int, weight, body string) {
		t.Helper()
		c.until(fmt.Sprint("the health check answers ", code), func() bool {
			gotCode, gotWeight, gotBody := ask()
			return gotCode == code && gotWeight == weight && gotBody == body
		})
	}
	answers(200, "1", "{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": true\n}")
	// Another Service's trouble is not this one's: a port that somebody listens at already, or what the kernel does not take.
	c.kernel.mu.Lock()
	c.kernel.refuses = 30666
	c.kernel.mu.Unlock()
	for name, change := range map[string]func(*corev1.Service){
		"refused": func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30666 },
		"taken": func(s *corev1.Service) {
			external(true)(s)
			s.Spec.HealthCheckNodePort, s.Spec.Ports[0].NodePort = port, 30081
		},
	} {
		c.create(named(name, 0, change))
		c.until("it is told of", func() bool { return strings.Contains(strings.Join(c.Problems(), "\n"), "ns/"+name) })
		answers(200, "1", "{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": true\n}")
		must(t, c.api.Delete(t.Context(), named(name, 0)))
		c.until("it is not told of any more", func() bool { return len(c.Problems()) == 0 })
	}
	must(t, c.api.Delete(t.Context(), sliceOf("a")))
	answers(503, "0", "{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 0,\n\t\"serviceProxyHealthy\": true\n}")
	must(t, c.api.Delete(t.Context(), web))
	answers(0, "", "")
}

// A health check answers at no address but those of NodePorts.
func TestHealthCheckAddresses(t *testing.T) {
	addrs := make(chan string, 1)
	h := newHealth([]netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}, func(types.NamespacedName) bool { return true }, func(uint16) (net.Listener, error) {
		l, err := net.Listen("tcp4", ":0")
		if err == nil {
			_, port, _ := net.SplitHostPort(l.Addr().String())
			addrs <- port
		}
		return l, err
	}, slog.New(slog.DiscardHandler))
	t.Cleanup(h.close)
	must(t, h.set(types.NamespacedName{Namespace: "ns", Name: "web"}, 31000, 1))
	port := <-addrs
	for addr, want := range map[string]bool{"127.0.0.1": false, "127.0.0.2": true} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+net.JoinHostPort(addr, port), nil)
		must(t, err)
		r, err := http.DefaultClient.Do(req)
		if err == nil {
			r.Body.Close()
		}
		if (err == nil) != want {
			t.Errorf("at %s: %v", addr, err)
		}
	}
}

// A thousand endpoints in ten slices, in any order and twice, are a thousand endpoints.
func TestManySlices(t *testing.T) {
	x := newIndex(Rules{}, here)
	x.setService(of())
	var all []*discoveryv1.EndpointSlice
	for i := range 10 {
		var list []string
		for j := range 100 {
			list = append(list, fmt.Sprintf("10.128.%d.%d n1", i, j))
		}
		all = append(all, sliceOf(fmt.Sprint("s", i), list...))
	}
	for _, i := range []int{3, 1, 9, 0, 0, 7, 2, 8, 6, 5, 4, 3, 9} {
		x.setSlice(all[i])
	}
	for _, list := range x.plan().set {
		if len(list) != 1 || len(list[0].Endpoints) != 1000 {
			t.Errorf("%d frontends", len(list))
		}
	}
	if len(x.owner) != 1 {
		t.Errorf("%d keys", len(x.owner))
	}
}

// More endpoints than the kernel can choose among: it has as many as it can, and a line says so until there are fewer.
func TestTooManyEndpoints(t *testing.T) {
	x := newIndex(Rules{}, here)
	x.setService(of())
	for i := range 90 {
		var list []string
		for j := range 100 {
			list = append(list, fmt.Sprintf("10.128.%d.%d n1", i, j))
		}
		x.setSlice(sliceOf(fmt.Sprint("s", i), list...))
	}
	has := func(endpoints int, says ...string) {
		t.Helper()
		for _, list := range x.plan().set {
			if len(list) != 1 || len(list[0].Endpoints) != endpoints {
				t.Errorf("%d frontends, the first with %d endpoints; want one with %d", len(list), len(list[0].Endpoints), endpoints)
			}
		}
		if got := x.complaints(types.NamespacedName{Namespace: "ns", Name: "web"}); !slices.Equal(got, says) {
			t.Errorf("it says %q, want %q", got, says)
		}
	}
	has(lb.MaxEndpoints, "tcp 0.0.0.0:30080: only 8191 of the 9000 endpoints get connections by this node")
	for i := 10; i < 20; i++ {
		x.dropSlice(types.NamespacedName{Namespace: "ns", Name: fmt.Sprint("s", i)})
	}
	has(8000)
	x.setService(of(outerLocal)) // which is cut, too, for clients inside
	for i := 90; i < 95; i++ {
		var list []string
		for j := range 100 {
			list = append(list, fmt.Sprintf("10.128.%d.%d n2", i, j))
		}
		x.setSlice(sliceOf(fmt.Sprint("s", i), list...))
	}
	has(8000, "tcp 0.0.0.0:30080: only 8191 of the 8500 endpoints get connections by this node")
	x.dropService(types.NamespacedName{Namespace: "ns", Name: "web"})
	has(0)
}
