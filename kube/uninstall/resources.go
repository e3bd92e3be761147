package uninstall

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// holding is the finalizer that keeps a definition, without objects, until those that come after it have none either. A Raven that starts meanwhile ends where one is missing, and
// nobody would take the rest from the SDN.
const holding = "openstack.org/kuryr-uninstall"

// resource is one of Kuryr's.
type resource struct {
	crd    string
	object client.Object
	list   func() client.ObjectList
	held   bool // by holding
	inside bool // namespaces
}

// resources are Kuryr's, in the order in which they go: load balancers have members on networks; a network's end takes its pools away, and those their ports.
var resources = []resource{
	{"kuryrloadbalancers.openstack.org", &v1.KuryrLoadBalancer{}, func() client.ObjectList { return &v1.KuryrLoadBalancerList{} }, true, true},
	{"kuryrnetworks.openstack.org", &v1.KuryrNetwork{}, func() client.ObjectList { return &v1.KuryrNetworkList{} }, true, false},
	{"kuryrportpools.openstack.org", &v1.KuryrPortPool{}, func() client.ObjectList { return &v1.KuryrPortPoolList{} }, true, false},
	{"kuryrports.openstack.org", &v1.KuryrPort{}, func() client.ObjectList { return &v1.KuryrPortList{} }, false, false},
}

// drain deletes a CRD and waits until it has no objects. From its deletion on the API server refuses new ones and deletes those that are there, so that Raven, which still runs, can
// take them from the SDN and make none anew.
func (r Remover) drain(ctx context.Context, of resource) error {
	if of.held {
		err := r.changed(ctx, of, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
			return crd.DeletionTimestamp.IsZero() && controllerutil.AddFinalizer(crd, holding) // none can be added later
		})
		if err != nil {
			return fmt.Errorf("CustomResourceDefinition %s: %w", of.crd, err)
		}
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = of.crd
	if err := r.API.Delete(ctx, crd); absent(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("CustomResourceDefinition %s: %w", of.crd, err)
	}
	left, err := r.left(ctx, of.list())
	if err != nil {
		return err
	}
	r.Said("%s: %d objects are to go", of.crd, len(left))
	waiting, fewer, stop := r.patience(ctx)
	defer stop()
	err = r.drained(waiting, of, fewer)
	switch {
	case err == nil:
		r.Said("%s: all are gone", of.crd)
		return nil
	case r.gaveUp(ctx, waiting):
		return nil
	case ctx.Err() == nil:
		return err
	}
	last, end := lastWord(ctx)
	defer end()
	left, _ = r.left(last, of.list())
	return fmt.Errorf("%s: %d objects are still there: %s; Raven's log and their conditions tell why. Do it again to go on, or --force: %w", of.crd, len(left), some(left), err)
}

// drained waits until a CRD that is being deleted has no objects, and can have none.
func (r Remover) drained(ctx context.Context, of resource, fewer func(left int)) error {
	counting, end := context.WithCancel(ctx)
	counted := make(chan struct{})
	go func() { // only for patience: the definition tells when all are gone
		defer close(counted)
		_ = r.empty(counting, of, fewer)
	}()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = of.crd
	err := r.watch(ctx, &apiextensionsv1.CustomResourceDefinitionList{}, func() (bool, error) {
		if err := r.API.Get(ctx, client.ObjectKeyFromObject(crd), crd); err != nil {
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		}
		return !controllerutil.ContainsFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer), nil
	}, named(of.crd))
	end()
	<-counted
	if err != nil || !of.held {
		return err
	}
	// Before Kubernetes 1.36 only this condition has new objects refused, and the API server takes it away when it has deleted all.
	if err := r.terminating(ctx, of); err != nil {
		return err
	}
	if err := r.clear(ctx, of); absent(err) {
		return nil
	} else if err != nil {
		return err
	}
	return r.empty(ctx, of, fewer)
}

// clear deletes all objects: those inside namespaces in each that has some, as no API server deletes them all at once.
func (r Remover) clear(ctx context.Context, of resource) error {
	kind := of.object.DeepCopyObject().(client.Object)
	if !of.inside {
		return r.API.DeleteAllOf(ctx, kind)
	}
	list := of.list()
	if err := r.API.List(ctx, list); err != nil {
		return err
	}
	var namespaces []string
	_ = meta.EachListItem(list, func(o runtime.Object) error {
		namespaces = append(namespaces, o.(client.Object).GetNamespace())
		return nil
	})
	slices.Sort(namespaces)
	for _, ns := range slices.Compact(namespaces) {
		if err := r.API.DeleteAllOf(ctx, kind, client.InNamespace(ns)); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

// empty waits until there are no objects.
func (r Remover) empty(ctx context.Context, of resource, fewer func(left int)) error {
	list := of.list()
	err := r.until(ctx, list, func() (bool, error) {
		left := meta.LenList(list)
		fewer(left)
		return left == 0, nil
	})
	if absent(err) { // nor their kind
		return nil
	}
	return err
}

// terminating says of a CRD that it is being deleted.
func (r Remover) terminating(ctx context.Context, of resource) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := r.API.Get(ctx, client.ObjectKey{Name: of.crd}, &crd); err != nil {
			return client.IgnoreNotFound(err)
		}
		before := crd.DeepCopy()
		i := slices.IndexFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.Terminating
		})
		if i < 0 || crd.Status.Conditions[i].Status == apiextensionsv1.ConditionTrue {
			return nil
		}
		crd.Status.Conditions[i].Status, crd.Status.Conditions[i].Reason = apiextensionsv1.ConditionTrue, "KuryrUninstall"
		crd.Status.Conditions[i].Message = "Kuryr is being taken out of the cluster"
		return r.API.Status().Patch(ctx, &crd, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(install.Owner))
	})
}

// release lets a CRD without objects go, and waits until it has gone.
func (r Remover) release(ctx context.Context, of resource) error {
	err := r.changed(ctx, of, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return controllerutil.RemoveFinalizer(crd, holding)
	})
	if err == nil {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		crd.Name = of.crd
		err = r.gone(ctx, crd, &apiextensionsv1.CustomResourceDefinitionList{}, named(of.crd))
	}
	if err != nil {
		return fmt.Errorf("CustomResourceDefinition %s: %w", of.crd, err)
	}
	return nil
}

// changed changes what a CRD says of itself, if it is there.
func (r Remover) changed(ctx context.Context, of resource, change func(*apiextensionsv1.CustomResourceDefinition) bool) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := r.API.Get(ctx, client.ObjectKey{Name: of.crd}, &crd); err != nil {
			return client.IgnoreNotFound(err)
		}
		before := crd.DeepCopy()
		if !change(&crd) {
			return nil
		}
		return client.IgnoreNotFound(r.API.Patch(ctx, &crd, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(install.Owner)))
	})
}

// named chooses one CRD.
func named(crd string) client.MatchingFields { return client.MatchingFields{"metadata.name": crd} }

// left are the names of the objects of a list.
func (r Remover) left(ctx context.Context, list client.ObjectList) (names []string, err error) {
	if err := r.API.List(ctx, list); absent(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		names = append(names, o.(client.Object).GetName())
		return nil
	})
	return names, err
}

// abandon takes the finalizers away of what is left when nobody works at it any more, and tells what that leaves in the SDN.
func (r Remover) abandon(ctx context.Context) error {
	for _, of := range resources {
		list := of.list()
		if err := r.API.List(ctx, list); absent(err) {
			continue
		} else if err != nil {
			return err
		}
		var left []string
		err := meta.EachListItem(list, func(item runtime.Object) error {
			o := item.(client.Object)
			left = append(left, inSDN(o)...)
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
			if err := r.API.Patch(ctx, o, patch, client.FieldOwner(install.Owner)); err != nil {
				return client.IgnoreNotFound(err)
			}
			return client.IgnoreNotFound(r.API.Delete(ctx, o))
		})
		if err != nil {
			return fmt.Errorf("%s: %w", of.crd, err)
		}
		if len(left) > 0 {
			r.Said("%s: these stay in the SDN: %s", of.crd, strings.Join(left, " "))
		}
		if err := r.release(ctx, of); err != nil {
			return err
		}
	}
	return nil
}

// inSDN is the SDN's id of what an object stands for: a port's is its name. A pool stands for nothing but its ports, and a network that was there before Kuryr is not Kuryr's to leave.
// A network that has told no id may have been made all the same: that is its name.
func inSDN(o client.Object) []string {
	switch o := o.(type) {
	case *v1.KuryrPort:
		return []string{o.Name}
	case *v1.KuryrLoadBalancer:
		var ids []string
		for _, of := range o.Status.LoadBalancers {
			ids = append(ids, of.ID)
		}
		if f := o.Status.FloatingIP; f != nil && f.Owner == v1.FloatingIPOfKuryr {
			ids = append(ids, f.ID)
		}
		return ids
	case *v1.KuryrNetwork:
		if o.Spec.Network == "" {
			return []string{cmp.Or(o.Status.Network, o.Name)}
		}
	}
	return nil
}
