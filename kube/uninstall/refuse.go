package uninstall

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// refuse is an error where pods have ports, where Kuryr is not in this namespace, or where Raven is not there to take resources from the SDN.
func (r Remover) refuse(ctx context.Context) error {
	if err := r.idle(ctx); err != nil || r.Force {
		return err
	}
	if err := r.housed(ctx); err != nil {
		return err
	}
	var counts []int
	total := 0
	for _, of := range resources {
		names, err := r.left(ctx, of.list())
		if err != nil {
			return err
		}
		counts, total = append(counts, len(names)), total+len(names)
	}
	if total == 0 {
		return nil
	}
	var lease coordinationv1.Lease
	err := r.API.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: controllerName}, &lease)
	if apierrors.IsNotFound(err) { // perhaps it runs without
		return nil
	}
	if err != nil {
		return err
	}
	if !Leads(lease.Spec, r.now()) {
		return fmt.Errorf("nobody holds the Lease %s/%s: Raven does not work, and it alone can take %d networks, %d pools and %d ports from the SDN, and %d load balancers; start it, or --force, which leaves them there",
			r.Namespace, controllerName, counts[1], counts[2], counts[3], counts[0])
	}
	return nil
}

// idle is an error where pods have ports, unless it is forced.
func (r Remover) idle(ctx context.Context) error {
	var ports v1.KuryrPortList
	if err := r.API.List(ctx, &ports); absent(err) {
		return nil
	} else if err != nil {
		return err
	}
	var bound []string
	for _, p := range ports.Items {
		if pod := p.Status.Pod; pod != nil {
			bound = append(bound, pod.Namespace+"/"+pod.Name)
		}
	}
	if len(bound) == 0 || r.Force {
		return nil
	}
	slices.Sort(bound)
	return fmt.Errorf("%d pods still have ports of Kuryr's, and would lose their network: %s; take them away first, or --force", len(bound), some(bound))
}

// housed is an error where the cluster has Kuryr's definitions, but nothing in the namespace tells that Kuryr is there: in another one it would be left running.
func (r Remover) housed(ctx context.Context) error {
	defined := false
	for _, of := range resources {
		there, err := r.there(ctx, of.crd, "", &apiextensionsv1.CustomResourceDefinition{})
		if err != nil {
			return err
		}
		defined = defined || there
	}
	if !defined {
		return nil
	}
	for _, of := range []struct {
		name   string
		object client.Object
	}{{controllerName, &appsv1.Deployment{}}, {nodeName, &appsv1.DaemonSet{}}, {controllerName, &coordinationv1.Lease{}}} {
		if there, err := r.there(ctx, of.name, r.Namespace, of.object); there || err != nil {
			return err
		}
	}
	return fmt.Errorf("the cluster has Kuryr's resources, but the namespace %s has no Deployment %s, DaemonSet %s or Lease %s: give Kuryr's own --namespace, or --force", r.Namespace, controllerName, nodeName, controllerName)
}

func (r Remover) there(ctx context.Context, name, namespace string, into client.Object) (bool, error) {
	err := r.API.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)
	return err == nil, client.IgnoreNotFound(err)
}

// Leads tells whether the Lease of Raven has a holder that has renewed it in time, by a clock that may differ a little from the holder's.
func Leads(l coordinationv1.LeaseSpec, now time.Time) bool {
	if l.HolderIdentity == nil || *l.HolderIdentity == "" || l.RenewTime == nil || l.LeaseDurationSeconds == nil {
		return false
	}
	return now.Before(l.RenewTime.Add(2 * time.Duration(*l.LeaseDurationSeconds) * time.Second))
}

func (r Remover) now() time.Time {
	if r.Now == nil {
		return time.Now()
	}
	return r.Now()
}
