package namespace

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func namespaceWith(name string, uid types.UID, annotations map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid, Annotations: annotations}}
}

// What a namespace needs depends on its name, its pods and the KuryrNetworks of its name.
func TestDecide(t *testing.T) {
	t.Parallel()
	blue := namespaceWith("blue", "b", nil)
	cfg := Config{Project: "p"}
	own := networkOf(blue, cfg)
	older := networkOf(namespaceWith("blue", "a", nil), cfg)
	deleted := older.DeepCopy()
	now := metav1.NewTime(time.Now())
	deleted.DeletionTimestamp = &now
	going := blue.DeepCopy()
	going.DeletionTimestamp = &now
	for name, row := range map[string]struct {
		ns       *corev1.Namespace
		networks []v1.KuryrNetwork
		pods     bool
		missing  string
		stale    []string
	}{
		"without pods":         {ns: blue},
		"default without pods": {ns: namespaceWith("default", "d", nil), missing: v1.NetworkName("default", "d")},
		"with pods":            {ns: blue, pods: true, missing: own.Name},
		"that has one":         {ns: blue, pods: true, networks: []v1.KuryrNetwork{*own}},
		"being deleted":        {ns: going, pods: true},
		"that has gone":        {networks: []v1.KuryrNetwork{*own}, stale: []string{own.Name}},
		"recreated": {
			ns: blue, pods: true, networks: []v1.KuryrNetwork{*older}, missing: own.Name, stale: []string{older.Name},
		},
		"recreated, and the older one goes": {
			ns: blue, pods: true, networks: []v1.KuryrNetwork{*deleted, *own},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			missing, stale := decide(row.ns, row.networks, row.pods, cfg)
			var got []string
			for _, n := range stale {
				got = append(got, n.Name)
			}
			if !slices.Equal(got, row.stale) {
				t.Errorf("stale %v, want %v", got, row.stale)
			}
			switch {
			case missing == nil && row.missing != "", missing != nil && missing.Name != row.missing:
				t.Errorf("missing %+v, want %q", missing, row.missing)
			case missing != nil && !slices.Contains(missing.Finalizers, v1.Finalizer):
				t.Error("it has no finalizer")
			}
		})
	}
}

// A namespace's annotations come before the configuration.
func TestNetworkOf(t *testing.T) {
	t.Parallel()
	cfg := Config{Project: "cluster", Network: "shared", Subnets: []string{"s"}}
	for name, row := range map[string]struct {
		annotations map[string]string
		want        v1.KuryrNetworkSpec
	}{
		"none": {nil, v1.KuryrNetworkSpec{ProjectID: "cluster", Network: "shared", Subnets: []string{"s"}}},
		"all": {
			map[string]string{
				v1.AnnotationProject: " other ", v1.AnnotationNetwork: "own ", v1.AnnotationSubnets: "a, b,a",
			},
			v1.KuryrNetworkSpec{ProjectID: "other", Network: "own", Subnets: []string{"a", "b"}},
		},
		"subnets alone": {
			map[string]string{v1.AnnotationSubnets: "a"},
			v1.KuryrNetworkSpec{ProjectID: "cluster", Network: "shared", Subnets: []string{"s"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row.want.Namespace, row.want.UID = "blue", "b"
			got := networkOf(namespaceWith("blue", "b", row.annotations), cfg).Spec
			if !equality.Semantic.DeepEqual(got, row.want) {
				t.Errorf("%+v, want %+v", got, row.want)
			}
		})
	}
}

// Pods get addresses on the subnets that the namespace names, or on all but those of load balancers.
func TestSubnetsForPods(t *testing.T) {
	t.Parallel()
	r := networks{&controllers{Config: Config{
		IsLoadBalancerSubnet: func(s sdn.Subnet, network string) bool { return s.ID == "lb" && network == "n" },
	}}}
	cidr := netip.MustParsePrefix("10.0.0.0/24")
	subnets := map[sdn.ID]sdn.Subnet{
		"a":    {Meta: sdn.Meta{ID: "a"}, Network: "net", CIDR: cidr},
		"b":    {Meta: sdn.Meta{ID: "b"}, Network: "net", CIDR: cidr},
		"lb":   {Meta: sdn.Meta{ID: "lb"}, Network: "net", CIDR: cidr},
		"far":  {Meta: sdn.Meta{ID: "far"}, Network: "other", CIDR: cidr},
		"bare": {Meta: sdn.Meta{ID: "bare"}, Network: "net"},
	}
	for name, row := range map[string]struct {
		named, has []string
		want       []sdn.ID
		fails      func(error) bool
	}{
		"all":                  {has: []string{"a", "lb", "b"}, want: []sdn.ID{"a", "b"}},
		"named":                {named: []string{"b"}, has: []string{"a", "b"}, want: []sdn.ID{"b"}},
		"of another network":   {named: []string{"far"}, has: []string{"a"}, fails: sdn.IsInvalid},
		"none":                 {fails: sdn.IsInvalid},
		"load balancers' only": {has: []string{"lb"}, fails: sdn.IsInvalid},
		"without a range":      {has: []string{"a", "bare"}, fails: sdn.IsUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := &v1.KuryrNetwork{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: v1.KuryrNetworkSpec{Subnets: row.named}}
			network := sdn.Network{Meta: sdn.Meta{ID: "net"}}
			for _, id := range row.has {
				network.Subnets = append(network.Subnets, sdn.ID(id))
			}
			got, err := r.subnetsForPods(n, network, subnets)
			if row.fails != nil {
				if !row.fails(err) {
					t.Errorf("%v, error %v", got, err)
				}
				return
			}
			if err != nil || !slices.Equal(got, row.want) {
				t.Errorf("%v, want %v; %v", got, row.want, err)
			}
		})
	}
}

// The ports of a namespace's pods have its groups with the one that admits nodes, or the cluster's.
func TestFollow(t *testing.T) {
	t.Parallel()
	infrastructure := &core.Infrastructure{Groups: []string{"cluster"}}
	infrastructure.Nodes.Admit = "nodes"
	r := networks{&controllers{Config: Config{Infrastructure: infrastructure}}}
	for text, want := range map[string][]string{"": {"cluster"}, "web,db": {"web", "db", "nodes"}, "nodes": {"nodes"}} {
		n := &v1.KuryrNetwork{}
		annotations := map[string]string{v1.AnnotationSecurityGroups: text, v1.AnnotationPool: "minimum=3"}
		r.follow(namespaceWith("blue", "b", annotations), n)
		if !slices.Equal(n.Status.SecurityGroups, want) || n.Status.PoolPolicy != "minimum=3" {
			t.Errorf("groups %q: %+v, want %v", text, n.Status, want)
		}
	}
}
