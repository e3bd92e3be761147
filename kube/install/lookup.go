package install

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Lookup returns an object of a cluster, or nil if it does not exist. Without a name it
// returns the list of all objects of the kind in the namespace, as helm's function does.
type Lookup func(apiVersion, kind, namespace, name string) (map[string]any, error)

// LookupIn returns the Lookup of a cluster.
func LookupIn(ctx context.Context, api client.Reader) Lookup {
	return func(apiVersion, kind, namespace, name string) (map[string]any, error) {
		if name == "" {
			list := &unstructured.UnstructuredList{}
			list.SetAPIVersion(apiVersion)
			list.SetKind(kind + "List")
			if err := api.List(ctx, list, client.InNamespace(namespace)); err != nil {
				return nil, client.IgnoreNotFound(err)
			}
			return list.UnstructuredContent(), nil
		}
		object := &unstructured.Unstructured{}
		object.SetAPIVersion(apiVersion)
		object.SetKind(kind)
		err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return object.Object, err
	}
}
