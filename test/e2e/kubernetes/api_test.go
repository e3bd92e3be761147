//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// resources applies Kuryr's own resources.
func (r *rig) resources() {
	r.Helper()
	files, err := filepath.Glob("../../../deploy/kubernetes/crds/*.yaml")
	r.must(err)
	if len(files) == 0 {
		r.Fatal("there are no resources in deploy/kubernetes/crds")
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		r.must(err)
		r.must(r.Apply(r.ctx, text))
	}
}

// The API server alone: it takes Kuryr's resources and what is theirs, keeps it over a
// restart, and refuses what they do not allow.
func TestResources(t *testing.T) {
	t.Parallel()
	r := start(t, "etcd and the API server are killed", kubelab.Options{APIOnly: true})
	r.resources()
	client, err := dynamic.NewForConfig(r.Config)
	r.must(err)
	pools := client.Resource(kuryrv1.GroupVersion.WithResource("kuryrportpools"))
	pool := &kuryrv1.KuryrPortPool{Spec: kuryrv1.KuryrPortPoolSpec{
		Node: "node1", Network: "net", Minimum: 2, Maximum: 4, Batch: 2,
	}}
	pool.Name = kuryrv1.PoolName(pool.Spec)
	pool.APIVersion, pool.Kind = kuryrv1.GroupVersion.String(), "KuryrPortPool"
	text, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pool)
	r.must(err)
	_, err = pools.Create(r.ctx, &unstructured.Unstructured{Object: text}, metav1.CreateOptions{})
	r.must(err)
	r.must(unstructured.SetNestedField(text, int64(5), "spec", "minimum"))
	r.must(unstructured.SetNestedField(text, "bad", "metadata", "name"))
	_, err = pools.Create(r.ctx, &unstructured.Unstructured{Object: text}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "minimum must not be above maximum") {
		t.Errorf("a pool whose minimum is above its maximum: %v", err)
	}

	r.columns(r.api(nil))

	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		r.must(r.StopAPIServer(sig))
		r.must(r.StopEtcd(sig))
		r.must(r.StartEtcd(r.ctx))
		r.must(r.StartAPIServer(r.ctx))
		if _, err := pools.Get(r.ctx, pool.Name, metav1.GetOptions{}); err != nil {
			t.Errorf("after %s: %v", sig, err)
		}
	}
}

// A front makes the API server slow or gone for those who come by it, and for nobody else.
func TestFront(t *testing.T) {
	t.Parallel()
	r := shareAPI(t)
	front, err := r.NewFront(r.ctx)
	r.must(err)
	defer front.Close()
	file, err := r.Kubeconfig(front, "somebody", "system:masters")
	r.must(err)
	config, err := clientcmd.BuildConfigFromFlags("", file)
	r.must(err)
	config.Dial = r.Central.Dial
	ask := func(config *rest.Config, within time.Duration) (time.Duration, error) {
		client, err := kubernetes.NewForConfig(config)
		r.must(err)
		ctx, cancel := context.WithTimeout(r.ctx, within)
		defer cancel()
		begin := time.Now()
		_, err = client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		return time.Since(begin), err
	}
	_, err = ask(config, time.Minute)
	r.must(err)
	const late = 300 * time.Millisecond
	front.Delay(late)
	if took, err := ask(config, time.Minute); err != nil || took < late {
		t.Errorf("by a slow front a request took %s, %v", took, err)
	}
	front.Delay(time.Hour)
	if _, err := ask(config, late); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an hour went by: %v", err)
	}
	front.Delay(0)
	front.Cut()
	if _, err := ask(config, time.Second); err == nil { // client-go would try again for ten
		t.Error("a front that is cut answers")
	}
	if _, err := ask(r.Config, time.Minute); err != nil {
		t.Errorf("beside the front: %v", err)
	}
	front.Mend()
	if _, err = ask(config, time.Minute); err != nil {
		t.Errorf("mended: %v", err)
	}
}
