package install

import (
	"context"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Owner is the field manager of what is applied.
const Owner = "kuryr-install"

// What Apply has done with an object.
const (
	Created   = "created"
	Changed   = "changed"
	Unchanged = "unchanged"
)

// Applier applies manifests to a cluster. All that it does can be done again.
type Applier struct {
	API    client.Client
	DryRun bool // the API server checks everything and keeps nothing
	// Said hears of every object what was done with it.
	Said func(what, kind, name string)
}

// Apply applies the manifests in their order with server-side apply. Fields that another manager has set are taken over: the manifests say what they are. After a CRD it sees to
// it that objects are stored in its version ([Applier.Migrate]). It ends at the first error, which names the object; what was applied stays.
func (a Applier) Apply(ctx context.Context, manifests []Manifest) error {
	missing := map[string]bool{} // namespaces that a dry run did not make
	for _, m := range manifests {
		object := m.Object.DeepCopy()
		name := object.GetName()
		if missing[object.GetNamespace()] { // the API server refuses even to try
			a.Said(Created, object.GetKind(), name)
			continue
		}
		what, err := a.apply(ctx, object)
		if err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), name, err)
		}
		a.Said(what, object.GetKind(), name)
		if a.DryRun {
			if object.GetKind() == "Namespace" && what == Created {
				missing[name] = true
			}
			continue
		}
		if object.GetKind() == "CustomResourceDefinition" {
			n, err := a.Migrate(ctx, name)
			if err != nil {
				return fmt.Errorf("CustomResourceDefinition %s: %w", name, err)
			}
			if n > 0 {
				a.Said(fmt.Sprintf("%d objects stored anew", n), "CustomResourceDefinition", name)
			}
		}
	}
	return nil
}

func (a Applier) apply(ctx context.Context, object *unstructured.Unstructured) (string, error) {
	old := object.DeepCopy()
	err := a.API.Get(ctx, client.ObjectKeyFromObject(object), old)
	if apierrors.IsNotFound(err) {
		old = nil
	} else if err != nil {
		return "", err
	}
	options := []client.ApplyOption{client.FieldOwner(Owner), client.ForceOwnership}
	if a.DryRun {
		options = append(options, client.DryRunAll)
	}
	if err := a.API.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), options...); err != nil {
		return "", err
	}
	switch {
	case old == nil:
		return Created, nil
	case alike(old, object):
		return Unchanged, nil
	}
	return Changed, nil
}

// alike compares two answers of the API server but for what it writes itself.
func alike(a, b *unstructured.Unstructured) bool {
	bare := func(u *unstructured.Unstructured) map[string]any {
		u = u.DeepCopy()
		for _, field := range []string{"managedFields", "resourceVersion", "generation", "creationTimestamp"} {
			unstructured.RemoveNestedField(u.Object, "metadata", field)
		}
		unstructured.RemoveNestedField(u.Object, "status")
		return u.Object
	}
	return apiequality.Semantic.DeepEqual(bare(a), bare(b))
}

// pageSize is how many objects are asked for at once.
const pageSize = 500

// Migrate stores the objects of a CRD anew where the API server may still have some in a version that is no more the one to store, and then says so in the CRD's
// status.storedVersions, so that a later release may leave the old version out. It tells how many objects there were. It costs two calls where there is nothing to do.
func (a Applier) Migrate(ctx context.Context, name string) (int, error) {
	definition := &unstructured.Unstructured{}
	definition.SetAPIVersion("apiextensions.k8s.io/v1")
	definition.SetKind("CustomResourceDefinition")
	if err := a.API.Get(ctx, client.ObjectKey{Name: name}, definition); err != nil {
		return 0, err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(definition.Object, &crd); err != nil {
		return 0, err
	}
	storage := storageVersion(crd)
	if storage == "" || len(crd.Status.StoredVersions) == 0 || slices.Equal(crd.Status.StoredVersions, []string{storage}) {
		return 0, nil
	}
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(crd.Spec.Group + "/" + storage)
	list.SetKind(crd.Spec.Names.ListKind)
	count := 0
	for {
		if err := a.API.List(ctx, list, client.Limit(pageSize), client.Continue(list.GetContinue())); err != nil {
			return count, err
		}
		for i := range list.Items {
			// A write that changes nothing is stored where what is stored is of another version.
			err := a.API.Patch(ctx, &list.Items[i], client.RawPatch("application/merge-patch+json", []byte("{}")), client.FieldOwner(Owner))
			if client.IgnoreNotFound(err) != nil {
				return count, fmt.Errorf("%s: %w", list.Items[i].GetName(), err)
			}
			count++
		}
		if list.GetContinue() == "" {
			break
		}
	}
	// With the resourceVersion that was read: where the CRD has changed meanwhile, the next time is soon enough.
	if err := unstructured.SetNestedStringSlice(definition.Object, []string{storage}, "status", "storedVersions"); err != nil {
		return count, err
	}
	return count, a.API.Status().Update(ctx, definition, client.FieldOwner(Owner))
}

// storageVersion is the version that the CRD has objects stored in.
func storageVersion(crd apiextensionsv1.CustomResourceDefinition) string {
	for _, v := range crd.Spec.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}
