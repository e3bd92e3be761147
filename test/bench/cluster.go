//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cluster is a real API server with Kuryr's resources, without controllers and kubelets: pods are objects that the measurement makes.
type cluster struct {
	*kubelab.Cluster
	api        client.WithWatch
	kubeconfig string // an administrator's, for what runs on the central host
	kuryr      string
	kwok       int // its process
}

func startCluster(ctx context.Context, b *bench) (*cluster, error) {
	lab, err := kubelab.New(ctx, kubelab.Options{APIOnly: true})
	if err != nil {
		return nil, err
	}
	c := &cluster{Cluster: lab, kuryr: b.kuryr}
	if err := c.prepare(ctx); err != nil {
		lab.Close()
		return nil, err
	}
	return c, nil
}

func (c *cluster) prepare(ctx context.Context) (err error) {
	files, err := filepath.Glob("deploy/kubernetes/crds/*.yaml")
	if err != nil || len(files) == 0 {
		return errors.Join(err, errors.New("there are no resources in deploy/kubernetes/crds: bench runs at the top of the tree"))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := c.Apply(ctx, text); err != nil {
			return err
		}
	}
	if err := v1.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	if c.api, err = client.NewWithWatch(c.Config, client.Options{Scheme: scheme.Scheme}); err != nil {
		return err
	}
	c.kubeconfig, err = c.Kubeconfig(nil, "kuryr", "system:masters")
	return err
}

// run starts a program of Kuryr's on the central host.
func (c *cluster) run(ctx context.Context, name string, env []string, ready func(context.Context) bool, args ...string) (pid int, err error) {
	s, err := c.Central.StartService(ctx, name, env, append([]string{c.kuryr}, args...), ready)
	if err != nil {
		return 0, err
	}
	return s.Pid(), nil
}

// answers tells whether what listens on a socket of the central host is there.
func (c *cluster) answers(socket, path string) func(context.Context) bool {
	asker := c.Central.UnixClient(socket)
	return func(ctx context.Context) bool {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kuryr"+path, nil)
		if err != nil {
			return false
		}
		answer, err := asker.Do(request)
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}
}

// namespace makes one, with what a controller manager would put into it.
func (c *cluster) namespace(ctx context.Context, name string) error {
	err := c.api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	automount := false
	return client.IgnoreAlreadyExists(c.api.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}, AutomountServiceAccountToken: &automount}))
}

// pod makes one that a scheduler has put on a node.
func (c *cluster) pod(ctx context.Context, namespace, name, node string) (*corev1.Pod, error) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	return p, c.api.Create(ctx, p)
}

// eventually looks again and again until f has nothing to complain of.
func eventually(ctx context.Context, every time.Duration, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}
