//go:build linux

package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/agent"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
)

const (
	thisNode  = "n1"
	thisBoot  = "5c4b7a1e-0000-4000-8000-000000000001"
	netID     = "0b0f3d5e-1111-4000-8000-00000000000a"
	subnetID  = "0b0f3d5e-2222-4000-8000-00000000000b"
	namespace = "default"
)

// testTimeout is how long a test waits for what must come, also on a loaded machine.
const testTimeout = time.Minute

func scheme1() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), v1.AddToScheme(s)); err != nil {
		panic(err)
	}
	return s
}

// api is an API server that can be away, fail, and lose its answers. Its own methods are the tests' way to it, which never fails.
type api struct {
	client.WithWatch

	whole sync.Mutex // a pod's patch, which the fake reads, changes and writes, and what makes and removes pods

	mu      sync.Mutex
	away    bool
	refusal error         // what is heard of it while it is away; nil is that it is unavailable
	slow    chan struct{} // writes wait until it is closed; nil is not at all
	streams map[*stream]struct{}
	deleted []client.Object
	writes  int           // that were asked for by daemons
	faults  int           // of 100 writes; half of them are done, and their answers lost
	loses   int           // the number of the write, counted from now, whose answer is lost; 0 is none
	held    chan struct{} // watches report nothing until it is closed; nil is that they do
	after   func()
}

func newAPI(objects ...client.Object) *api {
	a := &api{streams: map[*stream]struct{}{}}
	a.WithWatch = fake.NewClientBuilder().WithScheme(scheme1()).WithGlobalResourceVersionCounter().
		WithStatusSubresource(&v1.KuryrPort{}, &v1.KuryrPortPool{}, &v1.KuryrNetwork{}, &corev1.Pod{}, &corev1.Node{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&corev1.Node{}, "metadata.name", func(o client.Object) []string { return []string{o.GetName()} }).
		WithObjects(objects...).Build()
	return a
}

// daemon is the API as a node's daemon sees it.
func (a *api) daemon() client.WithWatch {
	return watchOnly{interceptor.NewClient(a.WithWatch, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, o ...client.ListOption) error {
			if err := a.there(); err != nil {
				return err
			}
			return c.List(ctx, l, o...)
		},
		Watch: func(ctx context.Context, c client.WithWatch, l client.ObjectList, o ...client.ListOption) (watch.Interface, error) {
			return a.watch(ctx, c, l, o)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return a.write(ctx, func() error { return c.Patch(ctx, o, p, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return a.write(ctx, func() error {
				if _, ok := o.(*corev1.Pod); !ok {
					return c.SubResource(sub).Patch(ctx, o, p, opts...)
				}
				a.whole.Lock()
				defer a.whole.Unlock()
				if err := sameUIDAs(ctx, c, o, p); err != nil {
					return err
				}
				return c.Patch(ctx, o, p) // the API server takes annotations by the status, and the fake does not
			})
		},
	})}
}

// watchOnly tells reflectors that lists do not come as watches.
type watchOnly struct{ client.WithWatch }

func (watchOnly) IsWatchListSemanticsUnSupported() bool { return true }

// sameUIDAs refuses a patch that names another UID, as the API server does and the fake does not.
func sameUIDAs(ctx context.Context, c client.Client, o client.Object, p client.Patch) error {
	text, err := p.Data(o)
	if err != nil {
		return err
	}
	var asks struct{ Metadata struct{ UID types.UID } }
	if err := json.Unmarshal(text, &asks); err != nil || asks.Metadata.UID == "" {
		return err
	}
	is := o.DeepCopyObject().(client.Object)
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), is); err != nil {
		return err
	}
	if is.GetUID() != asks.Metadata.UID {
		return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), errors.New("the UID in the precondition does not match"))
	}
	return nil
}

func (a *api) there() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone()
}

// gone is why nobody is answered, nil where somebody is. The lock is held.
func (a *api) gone() error {
	switch {
	case !a.away:
		return nil
	case a.refusal != nil:
		return a.refusal
	}
	return apierrors.NewServiceUnavailable("away")
}

// leave has the API server go away, or come back.
func (a *api) leave(away bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = away
	for s := range a.streams {
		if away {
			s.inner.Stop()
			delete(a.streams, s)
		}
	}
}

func (a *api) write(ctx context.Context, do func() error) error {
	if err := a.there(); err != nil {
		return err
	}
	a.mu.Lock()
	slow := a.slow
	a.mu.Unlock()
	if slow != nil {
		select {
		case <-slow:
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	a.mu.Lock()
	a.writes++
	lost := a.loses == 1
	a.loses = max(a.loses-1, 0)
	fault := a.faults > 0 && rand.IntN(100) < a.faults
	a.mu.Unlock()
	if fault && rand.IntN(2) == 0 {
		return apierrors.NewInternalError(errors.New("made up, before the write"))
	}
	err := do()
	if err == nil && a.after != nil {
		a.after()
	}
	if (fault || lost) && err == nil {
		return apierrors.NewTimeoutError("made up, after the write", 1)
	}
	return err
}

// hold keeps watches from reporting anything, until the function that it returns is called.
func (a *api) hold() (release func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	held := make(chan struct{})
	a.held = held
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.held = nil
		close(held)
	}
}

func (a *api) written() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}

// stream is a watch that loses nothing between the list before it and itself: the fake begins with what happens next.
type stream struct {
	inner watch.Interface
	told  map[types.UID]uint64 // versions up to which the list told of objects; the fake's watch, begun before it, may tell of older ones
	out   chan watch.Event
	stop  chan struct{}
	once  sync.Once
}

func (s *stream) ResultChan() <-chan watch.Event { return s.out }
func (s *stream) Stop()                          { s.once.Do(func() { close(s.stop); s.inner.Stop() }) }

func (a *api) watch(ctx context.Context, c client.WithWatch, l client.ObjectList, opts []client.ListOption) (watch.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.gone(); err != nil {
		return nil, err
	}
	inner, err := c.Watch(ctx, l, opts...)
	if err != nil {
		return nil, err
	}
	now := l.DeepCopyObject().(client.ObjectList)
	if err := c.List(ctx, now); err != nil {
		return nil, err
	}
	var first []watch.Event
	told := map[types.UID]uint64{}
	err = meta.EachListItem(now, func(o runtime.Object) error {
		told[o.(client.Object).GetUID()] = version(o)
		first = append(first, watch.Event{Type: watch.Modified, Object: o.DeepCopyObject()})
		return nil
	})
	// Deletions come first: another object may have the name by now. Each is told once: while a
	// deletion is written the lock is held, so it precedes the inner watch or comes through it.
	var gone []watch.Event
	for _, o := range a.deleted {
		if kind := reflect.TypeOf(o).Elem().Name(); kind+"List" == reflect.TypeOf(l).Elem().Name() && told[o.GetUID()] == 0 {
			gone = append(gone, watch.Event{Type: watch.Deleted, Object: o.DeepCopyObject()})
		}
	}
	first = append(gone, first...)
	s := &stream{inner: inner, told: told, out: make(chan watch.Event), stop: make(chan struct{})}
	a.streams[s] = struct{}{}
	go s.forward(a, first)
	return s, err
}

// forward holds back what is not taken yet: the fake's own channel must not fill up.
func (s *stream) forward(a *api, queue []watch.Event) {
	defer close(s.out)
	in := s.inner.ResultChan()
	for in != nil || len(queue) > 0 {
		var out chan watch.Event
		var next watch.Event
		a.mu.Lock()
		held := a.held
		a.mu.Unlock()
		if len(queue) > 0 && held == nil {
			out, next = s.out, queue[0]
		}
		select {
		case <-held:
		case e, ok := <-in:
			if !ok {
				return
			}
			told := s.told[e.Object.(client.Object).GetUID()]
			if told < version(e.Object) || e.Type == watch.Deleted {
				queue = append(queue, e)
			}
		case out <- next:
			queue = queue[1:]
		case <-s.stop:
			return
		}
	}
}

// version is an object's resourceVersion, which counts all writes of the fake.
func version(o runtime.Object) uint64 {
	n, err := strconv.ParseUint(o.(client.Object).GetResourceVersion(), 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// must ends the test for an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Create makes an object.
func (a *api) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	a.whole.Lock()
	defer a.whole.Unlock()
	return a.WithWatch.Create(ctx, o, opts...)
}

// Delete deletes an object.
func (a *api) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	a.whole.Lock()
	defer a.whole.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.erase(ctx, o, opts...)
}

// erase deletes an object and keeps it for watches that start later. Both locks are held.
func (a *api) erase(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	is := o.DeepCopyObject().(client.Object)
	if err := a.Get(ctx, client.ObjectKeyFromObject(o), is); err != nil {
		return err
	}
	if err := a.WithWatch.Delete(ctx, o, opts...); err != nil {
		return err
	}
	if len(is.GetFinalizers()) == 0 {
		a.deleted = append(a.deleted, is)
	}
	return nil
}

// remove deletes an object and takes its finalizers away.
func (a *api) remove(t testing.TB, o client.Object) {
	t.Helper()
	a.whole.Lock()
	defer a.whole.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	must(t, a.Get(t.Context(), client.ObjectKeyFromObject(o), o))
	if len(o.GetFinalizers()) == 0 {
		must(t, a.erase(t.Context(), o))
		return
	}
	if o.GetDeletionTimestamp() == nil {
		must(t, a.WithWatch.Delete(t.Context(), o))
		must(t, a.Get(t.Context(), client.ObjectKeyFromObject(o), o))
	}
	was := o.DeepCopyObject().(client.Object)
	o.SetFinalizers(nil)
	must(t, a.Patch(t.Context(), o, client.MergeFrom(was)))
	a.deleted = append(a.deleted, was)
}

func (a *api) port(t testing.TB, name string) *v1.KuryrPort {
	t.Helper()
	p := &v1.KuryrPort{}
	must(t, a.Get(t.Context(), client.ObjectKey{Name: name}, p))
	return p
}

func (a *api) pod(t testing.TB, name string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{}
	must(t, a.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, p))
	return p
}

func aNamespace() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, UID: "ns"}}
}

// The objects that Raven makes.

func aNetwork() *v1.KuryrNetwork {
	return &v1.KuryrNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: namespace + ".1", UID: "kn"},
		Spec:       v1.KuryrNetworkSpec{Namespace: namespace, UID: "ns"},
		Status:     v1.KuryrNetworkStatus{Network: netID, MTU: 1450, Subnets: []v1.NetworkSubnet{{ID: subnetID, CIDR: "10.1.0.0/16", Gateway: "10.1.0.1"}}},
	}
}

func aPool() *v1.KuryrPortPool {
	spec := v1.PoolKey(aNetwork(), thisNode)
	spec.Batch = 1
	return &v1.KuryrPortPool{
		ObjectMeta: metav1.ObjectMeta{Name: v1.PoolName(spec), UID: "pool", Labels: map[string]string{v1.LabelNode: thisNode}},
		Spec:       spec,
		Status: v1.KuryrPortPoolStatus{Conditions: []metav1.Condition{
			{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1.ReasonExhausted, Message: "quota of ports reached"},
		}},
	}
}

func portName(n int) string { return fmt.Sprintf("18f968a5-c420-4318-92d7-%012d", n) }

func aPort(n int) *v1.KuryrPort {
	return &v1.KuryrPort{
		ObjectMeta: metav1.ObjectMeta{
			Name: portName(n), UID: types.UID(fmt.Sprint("port-", n)), Finalizers: []string{v1.Finalizer},
			Labels: map[string]string{v1.LabelNode: thisNode, v1.LabelPool: aPool().Name, v1.LabelPortStatus: string(v1.PortAvailable)},
		},
		Spec: v1.KuryrPortSpec{
			ID: portName(n), Active: true, Address: fmt.Sprintf("fa:16:3e:00:%02x:%02x", n>>8, n&255), Node: thisNode, Pool: aPool().Name,
			Network: v1.PortNetwork{ID: netID, MTU: 1450, Subnets: []v1.PortSubnet{{
				ID: subnetID, CIDR: "10.1.0.0/16", Gateway: "10.1.0.1", IPs: []string{fmt.Sprintf("10.1.%d.%d", n>>8, n&255)}, DNS: []string{"10.1.0.2"},
				Routes: []v1.PortRoute{{Destination: "169.254.169.254/32", NextHop: "10.1.0.3"}},
			}}},
			VIF: v1.PortVIF{Type: sdn.VIFBridge, Details: map[string]string{sdn.DetailBridge: "br0"}},
		},
	}
}

func dedicated(p *v1.KuryrPort, uid string) *v1.KuryrPort {
	p.Spec.Dedicated = types.UID(uid)
	return p
}

func aPod(name, uid string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}, Spec: corev1.PodSpec{NodeName: thisNode}}
}

// ask is what a container runtime asks for.
func ask(container, pod, uid string) agent.Attachment {
	return agent.Attachment{Container: container, Interface: "eth0", Namespace: "/run/netns/" + container, Pod: &agent.Pod{Namespace: namespace, Name: pod, UID: uid}}
}

// world is a node's daemon with an API, but without a kernel. It can be killed and started again.
type world struct {
	t    testing.TB
	api  *api
	dir  string // of the table
	old  string // journal of an earlier version
	wait time.Duration
	host HostPorts
	own  func(*corev1.Node)
	*Allocator
	store  *reconcile.Store
	server *agent.Server
	plugs  *plugs
	kill   func()
	full   atomic.Bool // there is no room for new rows
}

// plugs are the interfaces by the ports that are plugged. They outlive the daemon.
type plugs struct {
	mu    sync.Mutex
	there map[sdn.ID]bind.Interface
	stuck error // of Unplug
}

func (p *plugs) Plug(_ context.Context, i bind.Interface) (bind.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.there[i.Port.ID] = i
	return bind.Result{Name: i.Name, MAC: i.Port.MAC}, nil
}

func (p *plugs) Unplug(_ context.Context, port sdn.Port) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stuck == nil {
		delete(p.there, port.ID)
	}
	return p.stuck
}

func (p *plugs) State(_ context.Context, port sdn.Port) (bind.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.there[port.ID]; there {
		return bind.Whole, nil
	}
	return bind.Absent, nil
}

func aWorld(t testing.TB, objects ...client.Object) *world {
	return &world{
		t: t, dir: t.TempDir(), wait: testTimeout, plugs: &plugs{there: map[sdn.ID]bind.Interface{}},
		api: newAPI(append(objects, aNamespace(), aNetwork(), aPool(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: thisNode}})...),
	}
}

func newWorld(t testing.TB, objects ...client.Object) *world {
	w := aWorld(t, objects...)
	w.start()
	t.Cleanup(func() { w.kill() })
	return w
}

// open makes a daemon that does not run yet.
func (w *world) open() {
	w.t.Helper()
	must(w.t, w.assemble())
}

func (w *world) assemble() error {
	c, err := Open(Config{
		Client: w.api.daemon(), Node: thisNode, Network: "kuryr", Journal: w.old, Boot: thisBoot, PodWait: w.wait, HostPorts: w.host, Own: w.own,
	})
	if err != nil {
		return err
	}
	c.backoff = &wait.Backoff{Duration: 2 * time.Millisecond, Cap: 10 * time.Millisecond, Steps: 3, Factor: 2}
	c.retry = backoff.Backoff{Min: 2 * time.Millisecond, Max: 20 * time.Millisecond}
	w.Allocator = c
	log := slog.New(slog.DiscardHandler)
	w.store, err = reconcile.Open(reconcile.Config{
		Path: filepath.Join(w.dir, "agent.db"), Volatile: true, MinBackoff: 2 * time.Millisecond,
		Logger: log,
		Room: func() error {
			if w.full.Load() {
				return unix.ENOSPC
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	w.server, err = agent.New(agent.Config{Source: c, Binder: w.plugs, Store: w.store, State: filepath.Join(w.dir, "cni"), Logger: log})
	if err != nil {
		return err
	}
	return w.store.Start(context.Background())
}

// call is what a container runtime asks for. The namespace of ask is there during the call.
func (w *world) call(ctx context.Context, verb string, a agent.Attachment, more map[string]any) error {
	config := map[string]any{"cniVersion": "1.1.0", "name": "kuryr", "type": "kuryr"}
	maps.Copy(config, more)
	runtime := map[string]any{}
	if a.Want.Network != "" {
		config["network"] = a.Want.Network
	}
	if len(a.Want.IPs) > 0 {
		runtime["ips"] = a.Want.IPs
	}
	if l := a.Want.Bandwidth; l != (sdn.Limits{}) {
		runtime["bandwidth"] = map[string]any{"ingressRate": l.IngressKbps * 1000, "ingressBurst": l.IngressBurst * 1000}
	}
	var mapped []any
	for _, p := range a.Want.Published {
		mapped = append(mapped, map[string]any{"hostPort": p.HostPort, "containerPort": p.Port, "protocol": "tcp"})
	}
	if mapped != nil {
		runtime["portMappings"] = mapped
	}
	config["runtimeConfig"] = runtime
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	c := cni.Call{Verb: verb, Container: a.Container, Interface: a.Interface, Namespace: a.Namespace, Config: text, Args: "IgnoreUnknown=1"}
	if a.Pod != nil {
		c.Args += fmt.Sprintf(";K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s", a.Pod.Namespace, a.Pod.Name, a.Container, a.Pod.UID)
	}
	if a.Want.Port != "" {
		c.Args += ";PORT_UUID=" + string(a.Want.Port)
	}
	if verb == cni.Add {
		c.Namespace = w.netns(a)
		if err := os.WriteFile(c.Namespace, nil, 0o600); err != nil {
			return err
		}
		if c.Namespace != a.Namespace {
			defer func() { _ = os.Remove(c.Namespace) }()
		}
	}
	_, err = w.server.Do(ctx, c)
	return err
}

// netns is a path that the test can write, unless the test has chosen one.
func (w *world) netns(a agent.Attachment) string {
	if dir, name := filepath.Split(a.Namespace); dir != "/run/netns/" && a.Namespace != "" {
		return a.Namespace
	} else {
		return filepath.Join(w.dir, "netns-"+name)
	}
}

// Claim is an ADD, and what is plugged then.
func (w *world) Claim(ctx context.Context, a agent.Attachment) (agent.Wiring, error) {
	if err := w.call(ctx, cni.Add, a, nil); err != nil {
		return agent.Wiring{}, err
	}
	got, err := w.Find(ctx, a)
	w.plugs.mu.Lock()
	defer w.plugs.mu.Unlock()
	got.Limits = w.plugs.there[got.Port.ID].Limits
	return got, err
}

// Release is a DEL.
func (w *world) Release(ctx context.Context, a agent.Attachment) error {
	return w.call(ctx, cni.Del, a, nil)
}

// rows counts the attachments' rows.
func (w *world) rows() (n int) {
	for range w.server.Rows() {
		n++
	}
	return n
}

// attachments are those that have a row and are not being deleted.
func (w *world) attachments() (all []agent.Attachment) {
	for r := range w.server.Rows() {
		if r.Phase == reconcile.Wanted {
			all = append(all, r.Spec.Attachment)
		}
	}
	return all
}

// settled waits until so many rows are left.
func (w *world) settled(n int) {
	w.t.Helper()
	eventually(w.t, fmt.Sprint(n, " rows"), func() bool { return w.rows() == n })
}

func (w *world) start() {
	w.t.Helper()
	w.open()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	c, store := w.Allocator, w.store
	var running sync.WaitGroup
	running.Go(func() { store.Run(ctx) })
	go func() { done <- c.Run(ctx) }()
	var once sync.Once
	w.kill = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Errorf("Run: %v", err)
			}
			running.Wait()
			must(w.t, store.Close())
		})
	}
}

// restart is the daemon's death and next life.
func (w *world) restart() {
	w.t.Helper()
	w.kill()
	w.start()
}

// settled waits until the daemon knows what the API had when it was started.
func (w *world) begun() {
	w.t.Helper()
	select {
	case <-w.ready:
	case <-time.After(testTimeout):
		w.t.Fatal("it does not begin")
	}
}

// adds is an ADD that is answered.
func (w *world) adds(a agent.Attachment) agent.Wiring {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	got, err := w.Claim(ctx, a)
	must(w.t, err)
	return got
}

// givesUp is an ADD whose caller gives up while it waits, and its error.
func (w *world) givesUp(a agent.Attachment) error {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	end := make(chan error, 1)
	before := w.View().Waiting
	go func() { _, err := w.Claim(ctx, a); end <- err }()
	for tick := time.NewTicker(time.Millisecond); ; {
		select {
		case err := <-end:
			tick.Stop()
			return err
		case <-tick.C:
			if w.View().Waiting > before {
				cancel()
			}
		}
	}
}

// dels is a DEL that is answered.
func (w *world) dels(a agent.Attachment) {
	w.t.Helper()
	must(w.t, w.Release(context.Background(), a))
}

// eventually waits for what comes without a word to the test.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it does not come: %s", what)
		}
	}
}

// says waits until the API says this of a port; a pod of "" is none.
func (w *world) says(port string, status v1.PortStatus, container string) {
	w.t.Helper()
	var p *v1.KuryrPort
	defer func() {
		if w.t.Failed() {
			w.t.Logf("the API says %s, %+v", p.Labels[v1.LabelPortStatus], p.Status)
		}
	}()
	eventually(w.t, fmt.Sprintf("port %s %s of %q", port, status, container), func() bool {
		p = w.api.port(w.t, port)
		is := ""
		if p.Status.Pod != nil {
			is = p.Status.Pod.Container
		}
		if p.Status.PortStatus != v1.PortAvailable != (p.Status.Released == nil) {
			return false // with the release goes its time, and no pod's port has one
		}
		return labelOf(p) == status && is == container && (p.Status.PortStatus == status || status == v1.PortAvailable && p.Status.PortStatus == "")
	})
}
