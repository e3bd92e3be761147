package raven

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/raven/core"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// complaint is what is wrong with an object's annotation, which is passed over.
type complaint struct {
	about runtime.Object
	text  string
}

// policyOf is how a pool is to be kept: as the configuration says, over that as the namespaces of its network say, over that as its node says. Of namespaces
// that share the network the last by name counts, option by option: a cache lists them in no order. An annotation that makes no sense is passed over and complained of.
func (r *Raven) policyOf(ctx context.Context, p *v1.KuryrPortPool) (policy pool.Policy, wrong []complaint, err error) {
	policy = r.cfg.Pool
	lay := func(about client.Object, text string) {
		changed, err := policy.With(text)
		if err != nil {
			wrong = append(wrong, complaint{about, v1.AnnotationPool + ": " + err.Error()})
			return
		}
		policy = changed
	}
	networks, err := r.NetworksBy(ctx, core.ByPolicy, p.Spec.Network)
	if err != nil {
		return policy, nil, err
	}
	slices.SortFunc(networks, func(a, b v1.KuryrNetwork) int {
		return cmp.Or(strings.Compare(a.Spec.Namespace, b.Spec.Namespace), strings.Compare(a.Name, b.Name))
	})
	for _, n := range networks {
		lay(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Spec.Namespace, UID: n.Spec.UID}}, n.Status.PoolPolicy)
	}
	var node corev1.Node
	if err := r.Client.Get(ctx, types.NamespacedName{Name: p.Spec.Node}, &node); err == nil {
		lay(&node, node.Annotations[v1.AnnotationPool])
	} else if client.IgnoreNotFound(err) != nil {
		return policy, nil, err
	}
	return policy, wrong, nil
}

// setPolicy writes a policy into a pool. It tells whether that changes it.
func setPolicy(s *v1.KuryrPortPoolSpec, p pool.Policy) bool {
	if policyIn(*s) == p {
		return false
	}
	s.Minimum, s.Maximum, s.Batch, s.TTL = p.Minimum, p.Maximum, p.Batch, nil
	if p.TTL > 0 {
		s.TTL = &metav1.Duration{Duration: p.TTL}
	}
	return true
}

func policyIn(s v1.KuryrPortPoolSpec) pool.Policy {
	var ttl time.Duration
	if s.TTL != nil {
		ttl = s.TTL.Duration
	}
	return pool.Policy{Minimum: s.Minimum, Maximum: s.Maximum, Batch: s.Batch, TTL: ttl}
}
