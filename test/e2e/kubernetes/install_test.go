//go:build e2e

package kubernetes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/install"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

const system = "kuryr-system"

// api is a client with Kuryr's types; who is nil is the administrator.
func (r *rig) api(who *rest.Config) client.Client {
	r.Helper()
	s := runtime.NewScheme()
	r.must(scheme.AddToScheme(s))
	r.must(kuryrv1.AddToScheme(s))
	if who == nil {
		who = r.Config
	}
	c, err := client.New(who, client.Options{Scheme: s})
	r.must(err)
	return c
}

// install applies Kuryr's manifests as "kuryr install kubernetes --apply" does, and counts what was done.
func (r *rig) install(dryRun bool, set ...string) map[string]int {
	r.Helper()
	counts, err := r.apply(dryRun, nil, set...)
	r.must(err)
	return counts
}

// installHelm is install as "helm install" and "helm upgrade" do it: the templates read the
// cluster, and no node gets a label.
func (r *rig) installHelm(set ...string) error {
	r.Helper()
	_, err := r.apply(false, install.LookupIn(r.ctx, r.api(nil)), set...)
	return err
}

func (r *rig) apply(dryRun bool, lookup install.Lookup, set ...string) (map[string]int, error) {
	r.Helper()
	v, err := install.Defaults()
	r.must(err)
	for _, s := range append([]string{"createNamespace=true"}, set...) {
		key, value, _ := strings.Cut(s, "=")
		r.must(v.Set(key, value))
	}
	manifests, err := install.Render(install.Release{Namespace: system, Values: v, Lookup: lookup})
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	r.must(install.Applier{API: r.api(nil), DryRun: dryRun, Said: func(what, kind, name string) {
		counts[what]++
		if what != install.Created {
			r.Logf("%s %s %s", what, kind, name)
		}
	}}.Apply(r.ctx, manifests))
	return counts, nil
}

// until asks again until there is no complaint; policies and definitions take a moment to be in force.
func (r *rig) until(complaint func(ctx context.Context) error) {
	r.Helper()
	r.within(90*time.Second, complaint)
}

func (r *rig) within(limit time.Duration, complaint func(ctx context.Context) error) {
	r.Helper()
	var last error
	err := wait.PollUntilContextTimeout(r.ctx, 100*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		// What the end of the time itself breaks off says nothing.
		if err := complaint(ctx); err == nil || last == nil || ctx.Err() == nil {
			last = err
		}
		return last == nil, nil
	})
	if err != nil {
		r.Fatalf("%v: %v", err, last)
	}
}

// Applied twice is applied once, a dry run leaves nothing, and another configuration changes what has it.
func TestInstall(t *testing.T) {
	t.Parallel()
	r := start(t, "the API server must be empty", kubelab.Options{APIOnly: true})
	dry := r.install(true)
	if _, err := r.Client.CoreV1().Namespaces().Get(r.ctx, system, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run has made the namespace: %v", err)
	}
	made := r.install(false)
	if len(dry) != 1 || len(made) != 1 || made[install.Created] != dry[install.Created] || made[install.Created] < 20 {
		t.Errorf("a dry run says %v, then was %v", dry, made)
	}
	if again := r.install(false); len(again) != 1 || again[install.Unchanged] != made[install.Created] {
		t.Errorf("once more: %v", again)
	}
	const debug = "config.log.level=debug"
	if dry := r.install(true, debug); dry[install.Changed] != 2 || dry[install.Unchanged] != made[install.Created]-2 {
		t.Errorf("a dry run of another configuration: %v", dry)
	}
	if changed := r.install(false, debug); changed[install.Changed] != 2 { // the ConfigMap and Raven's Deployment
		t.Errorf("another configuration: %v", changed)
	}
	if neutron := r.install(false, "provider=neutron"); neutron[install.Changed] == 0 {
		t.Errorf("another SDN: %v", neutron)
	}
}

// Every rule of the resources on a real API server.
func TestResourceRules(t *testing.T) {
	t.Parallel()
	r := shareAPI(t)
	r.resources()
	api := r.api(nil)
	pool := func(change func(*kuryrv1.KuryrPortPoolSpec)) client.Object {
		p := &kuryrv1.KuryrPortPool{ObjectMeta: metav1.ObjectMeta{Name: "pool"}, Spec: kuryrv1.KuryrPortPoolSpec{
			Node: "node1", Network: "net", Minimum: 1, Batch: 5, Subnets: []string{"a", "b"},
			SecurityGroups: []string{"g"}, ProjectID: "p", Trunk: "trunk",
		}}
		change(&p.Spec)
		return p
	}
	trunkless := func(trunk string) client.Object {
		p := pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Trunk = trunk })
		p.SetName("trunkless")
		return p
	}
	port := func(change func(*kuryrv1.KuryrPort)) client.Object {
		p := kuryrPort("port", "node1", kuryrv1.PortCreated)
		change(p)
		return p
	}
	network := func(change func(*kuryrv1.KuryrNetworkSpec)) client.Object {
		n := &kuryrv1.KuryrNetwork{
			ObjectMeta: metav1.ObjectMeta{Name: "network"},
			Spec:       kuryrv1.KuryrNetworkSpec{Namespace: "a", UID: "u"},
		}
		change(&n.Spec)
		return n
	}
	balancer := func(change func(*kuryrv1.KuryrLoadBalancerSpec)) client.Object {
		lb := &kuryrv1.KuryrLoadBalancer{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web",
		}, Spec: kuryrv1.KuryrLoadBalancerSpec{
			ServiceUID: "u", Type: "ClusterIP", VIPs: []string{"10.96.0.5"},
			Ports: []kuryrv1.LoadBalancerPort{{Protocol: "TCP", Port: 80}, {Protocol: "UDP", Port: 80}},
		}}
		change(&lb.Spec)
		return lb
	}
	made := []client.Object{
		pool(func(*kuryrv1.KuryrPortPoolSpec) {}), trunkless(""), port(func(*kuryrv1.KuryrPort) {}),
		network(func(*kuryrv1.KuryrNetworkSpec) {}),
		balancer(func(*kuryrv1.KuryrLoadBalancerSpec) {}),
	}
	for _, o := range made {
		r.must(api.Create(r.ctx, o))
	}
	for _, c := range []struct {
		says   string // "" is allowed
		create bool
		object client.Object
	}{
		{"minimum must not be above maximum", true, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Minimum, s.Maximum = 3, 2 })},
		{"spec.batch", true, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Batch = 0 })},
		{"spec.minimum", true, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Minimum = -1 })},
		{"spec.node", true, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Node = "" })},
		{"Duplicate value", true, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.SecurityGroups = []string{"a", "a"} })},
		{"", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Minimum, s.Maximum, s.Batch = 2, 20, 4 })},
		{"", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Subnets = []string{"b", "a"} })}, // a set
		{"keeps its node", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Node = "node2" })},
		{"keeps its network", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Network = "b" })},
		{"keeps its trunk", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Trunk = "t" })},
		{"keeps its trunk", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Trunk = "" })},
		{"", false, trunkless("t")},
		{"keeps its project", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.ProjectID = "" })},
		{"keeps its subnets", false, pool(func(s *kuryrv1.KuryrPortPoolSpec) { s.Subnets = nil })},
		{"keeps its security groups", false, pool(
			func(s *kuryrv1.KuryrPortPoolSpec) { s.SecurityGroups = []string{"g", "h"} },
		)},

		{"the port's id for a name", true, port(func(p *kuryrv1.KuryrPort) { p.Spec.ID = "other" })},
		{"spec.address", true, port(func(p *kuryrv1.KuryrPort) { p.Spec.Address = "FA-16" })},
		{"spec.network.mtu", true, port(func(p *kuryrv1.KuryrPort) { p.Spec.Network.MTU = 70000 })},
		{"must be a range such as", true, port(func(p *kuryrv1.KuryrPort) { p.Spec.Network.Subnets[0].CIDR = "10.1.0.0" })},
		{"must be addresses without a length", true, port(
			func(p *kuryrv1.KuryrPort) { p.Spec.Network.Subnets[0].IPs = []string{"10.1.0.5/16"} },
		)},
		{"", false, port(func(p *kuryrv1.KuryrPort) { p.Spec.SecurityGroups = []string{"g"} })},
		{"keeps its node", false, port(func(p *kuryrv1.KuryrPort) { p.Spec.Node = "node2" })},
		{"keeps its pool", false, port(func(p *kuryrv1.KuryrPort) { p.Spec.Pool = "other" })},
		{"stays one pod's", false, port(func(p *kuryrv1.KuryrPort) { p.Spec.Dedicated = "u" })},

		{"must be named", true, network(func(s *kuryrv1.KuryrNetworkSpec) { s.Subnets = []string{"a"} })},
		{"spec.namespace", true, network(func(s *kuryrv1.KuryrNetworkSpec) { s.Namespace = "" })},
		{"is another object", false, network(func(s *kuryrv1.KuryrNetworkSpec) { s.ProjectID = "p" })},

		{"", false, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.VIPs = append(s.VIPs, "fd00:96::5") })},
		{"", false, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) {
			s.Type, s.FloatingIP = "LoadBalancer", &kuryrv1.LoadBalancerFloatingIP{Address: "203.0.113.7"}
		})},
		{"another Service has another", false, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.ServiceUID = "v" })},
		{"one of each family", true, balancer(
			func(s *kuryrv1.KuryrLoadBalancerSpec) { s.VIPs = append(s.VIPs, "10.96.0.6") },
		)},
		{"want addresses", true, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.VIPs = []string{"None"} })},
		{"spec.vips", true, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.VIPs = nil })},
		{"only a Service of type LoadBalancer", true, balancer(
			func(s *kuryrv1.KuryrLoadBalancerSpec) {
				s.FloatingIP = &kuryrv1.LoadBalancerFloatingIP{}
			},
		)},
		{"Duplicate value", true, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.Ports[1].Protocol = "TCP" })},
		{"spec.ports[0].port", true, balancer(func(s *kuryrv1.KuryrLoadBalancerSpec) { s.Ports[0].Port = 70000 })},
	} {
		var err error
		if c.create {
			c.object.SetName(c.object.GetName() + "-2")
			if p, ok := c.object.(*kuryrv1.KuryrPort); ok && p.Spec.ID == "port" {
				p.Spec.ID = p.Name
			}
			err = api.Create(r.ctx, c.object, client.DryRunAll)
		} else {
			there := c.object.DeepCopyObject().(client.Object)
			r.must(api.Get(r.ctx, client.ObjectKeyFromObject(there), there))
			c.object.SetResourceVersion(there.GetResourceVersion())
			err = api.Update(r.ctx, c.object, client.DryRunAll)
		}
		if (c.says == "") != (err == nil) || err != nil &&
			(!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%T, made %v: %v; want %q", c.object, c.create, err, c.says)
		}
	}
	// What is no value of the life of a port is refused in the status.
	err := api.Status().Patch(
		r.ctx, port(func(*kuryrv1.KuryrPort) {}),
		client.RawPatch(types.MergePatchType, []byte(`{"status":{"portStatus":"lost"}}`)),
	)
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "portStatus") {
		t.Errorf("a status that is none: %v", err)
	}
}

// One step of versions: the next release's definitions take what the first release
// stored, and its install stores that anew, so that the old version can go.
func TestVersionStep(t *testing.T) {
	t.Parallel()
	r := start(t, "resource definitions are upgraded", kubelab.Options{APIOnly: true})
	r.resources()
	api := r.api(nil)
	var first kuryrv1.KuryrPort
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "kube", "api", "v1", "testdata", "first", "kuryrport.json"))
	r.must(err)
	r.must(json.Unmarshal(text, &first))
	const ports = 3
	for i := range ports {
		p := first.DeepCopy()
		p.Name = fmt.Sprintf("%s-%d", first.Name, i)
		p.Spec.ID = p.Name
		r.must(api.Create(r.ctx, p))
	}

	const name = "kuryrports.openstack.org"
	definition := &unstructured.Unstructured{}
	definition.SetAPIVersion("apiextensions.k8s.io/v1")
	definition.SetKind("CustomResourceDefinition")
	get := func() (versions []any, stored []string) {
		t.Helper()
		r.must(api.Get(r.ctx, client.ObjectKey{Name: name}, definition))
		versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
		r.must(err)
		stored, _, err = unstructured.NestedStringSlice(definition.Object, "status", "storedVersions")
		r.must(err)
		return versions, stored
	}
	set := func(versions ...any) error {
		t.Helper()
		r.must(unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions"))
		return api.Update(r.ctx, definition)
	}
	versions, stored := get()
	if len(versions) != 1 || !slices.Equal(stored, []string{"v1"}) {
		t.Fatalf("%d versions, stored %v", len(versions), stored)
	}
	old := versions[0].(map[string]any)
	next := runtime.DeepCopyJSON(old)
	next["name"] = "v2"
	old["storage"] = false
	r.must(unstructured.SetNestedField(
		next, map[string]any{"type": "string"}, "schema", "openAPIV3Schema", "properties", "spec",
		"properties", "later",
	))
	r.must(set(old, next))

	list := func(version string) (*unstructured.UnstructuredList, error) {
		l := &unstructured.UnstructuredList{}
		l.SetAPIVersion("openstack.org/" + version)
		l.SetKind("KuryrPortList")
		return l, api.List(r.ctx, l)
	}
	r.until(func(context.Context) error {
		l, err := list("v2")
		if err == nil && len(l.Items) != ports {
			err = fmt.Errorf("%d ports in v2, not %d", len(l.Items), ports)
		}
		return err
	})
	l, err := list("v2")
	r.must(err)
	for _, p := range l.Items {
		if p.GetAPIVersion() != "openstack.org/v2" || p.Object["spec"].(map[string]any)["address"] != first.Spec.Address {
			t.Errorf("%s %s: %v", p.GetAPIVersion(), p.GetName(), p.Object["spec"])
		}
	}
	if _, stored := get(); !slices.Equal(stored, []string{"v1", "v2"}) {
		t.Fatalf("stored %v", stored)
	}
	if err := set(next); err == nil || !strings.Contains(err.Error(), "storedVersions") {
		t.Fatalf("v1 is left out while objects are stored so: %v", err)
	}
	applier := install.Applier{API: api}
	for again, want := range []int{ports, 0} {
		if n, err := applier.Migrate(r.ctx, name); err != nil || n != want {
			t.Errorf("time %d: %d objects stored anew, %v; want %d", again, n, err, want)
		}
	}
	if _, stored := get(); !slices.Equal(stored, []string{"v2"}) {
		t.Errorf("stored %v", stored)
	}
	var now kuryrv1.KuryrPort // an older process still reads v1
	r.must(api.Get(r.ctx, client.ObjectKey{Name: first.Name + "-0"}, &now))
	if now.Spec.Address != first.Spec.Address ||
		now.Spec.Network.Subnets[0].IPs[0] != first.Spec.Network.Subnets[0].IPs[0] {
		t.Errorf("in v1: %+v", now.Spec)
	}
	get()
	if err := set(next); err != nil {
		t.Errorf("v1 is left out: %v", err)
	}
	r.until(func(context.Context) error {
		l, err := list("v2")
		if err == nil && len(l.Items) != ports {
			err = fmt.Errorf("%d ports", len(l.Items))
		}
		return err
	})
}
