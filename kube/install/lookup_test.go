package install

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestLookupIn(t *testing.T) {
	t.Parallel()
	node := func(name string) client.Object { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	refused := errors.New("refused")
	api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(node("a"), node("b")).WithInterceptorFuncs(
		interceptor.Funcs{List: func(
			ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption,
		) error {
			if list.GetObjectKind().GroupVersionKind().Kind == "SecretList" {
				return refused
			}
			return c.List(ctx, list, opts...)
		}},
	).Build()
	lookup := LookupIn(t.Context(), api)
	if object, err := lookup("v1", "Node", "", "b"); err != nil || object["kind"] != "Node" {
		t.Errorf("node b: %v, %v", object, err)
	}
	if object, err := lookup("v1", "Node", "", "c"); err != nil || object != nil {
		t.Errorf("node c: %v, %v", object, err)
	}
	for kind, want := range map[string]int{"Node": 2, "Pod": 0} {
		list, err := lookup("v1", kind, "", "")
		items, isList := list["items"].([]any)
		if err != nil || !isList || len(items) != want {
			t.Errorf("all of %s: %v, %v", kind, list, err)
		}
	}
	if _, err := lookup("v1", "Secret", "a", ""); !errors.Is(err, refused) {
		t.Errorf("a list that is refused: %v", err)
	}
}
