package kubelab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

var definitions = schema.GroupVersionResource{
	Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
}

// Apply has the API server take the objects of YAML texts, as "kubectl apply
// --server-side" does, and waits until the resources that they define are served. An
// object of a resource defined by an earlier one of them is no problem.
func (c *Cluster) Apply(ctx context.Context, texts ...[]byte) error {
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return err
	}
	var mapper meta.RESTMapper
	for _, text := range texts {
		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
		for {
			object := &unstructured.Unstructured{}
			if err := decoder.Decode(object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return err
			}
			if len(object.Object) == 0 {
				continue // an empty document
			}
			kind := object.GroupVersionKind()
			if mapper == nil || unknown(mapper, kind) {
				groups, err := restmapper.GetAPIGroupResources(c.Client.Discovery())
				if err != nil {
					return fmt.Errorf("ask which resources there are: %w", err)
				}
				mapper = restmapper.NewDiscoveryRESTMapper(groups)
			}
			if err := applyOne(ctx, client, mapper, object); err != nil {
				return fmt.Errorf("apply %s %s: %w", kind.Kind, object.GetName(), err)
			}
		}
	}
	return nil
}

func unknown(mapper meta.RESTMapper, kind schema.GroupVersionKind) bool {
	_, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	return err != nil
}

func applyOne(
	ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper,
	object *unstructured.Unstructured,
) error {
	kind := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		namespace := object.GetNamespace()
		if namespace == "" {
			namespace = metav1.NamespaceDefault
		}
		resource = client.Resource(mapping.Resource).Namespace(namespace)
	}
	if _, err := resource.Apply(
		ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "kubelab", Force: true},
	); err != nil || mapping.Resource != definitions {
		return err
	}
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + object.GetName()}
	return Until[*unstructured.UnstructuredList](ctx, client.Resource(
		definitions,
	), options, func(list *unstructured.UnstructuredList) error {
		for _, definition := range list.Items {
			conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
			for _, c := range conditions {
				if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
					return nil
				}
			}
		}
		return fmt.Errorf("resource %s is not served", object.GetName())
	})
}
