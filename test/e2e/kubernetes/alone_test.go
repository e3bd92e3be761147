//go:build e2e

package kubernetes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/internal/atomicfile"
	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// startAlone is a cluster whose node has no daemon of Kuryr's: Raven claims its ports,
// and kuryr-cni asks the API for them.
func startAlone(t *testing.T) *whole {
	w := &whole{node: &kuryrNode{}}
	booted := func(ctx context.Context, node *kubelab.Node) error {
		w.node.Node = node
		err := w.node.plugins(ctx)
		if err != nil || !w.installed {
			return err
		}
		return errors.Join(w.configured(ctx), w.startSDN(ctx), w.startRaven(ctx))
	}
	const reason = "the node has no daemon, and reboots"
	w.rig = start(t, reason, kubelab.Options{Nodes: 1, Booted: booted})
	w.prepare()
	w.claimant(kuryrv1.ClaimantRaven)
	w.must(w.startSDN(w.ctx))
	w.must(w.startRaven(w.ctx))
	return w
}

// claimant labels the node with who claims its ports; "" is its daemon.
func (w *whole) claimant(who string) {
	w.Helper()
	label := map[string]any{kuryrv1.LabelClaimant: nil}
	if who != "" {
		label[kuryrv1.LabelClaimant] = who
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": label}})
	w.must(err)
	w.must(w.api.Patch(
		w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.node.Name}},
		client.RawPatch(types.MergePatchType, patch),
	))
}

// configure writes the flat-mode design's 10-kuryr.conf, which no other user of the node
// can read, with a token of the service account kuryr-cni as api_token, or its file as
// api_token_file.
func (w *whole) configure(option, value string) {
	w.Helper()
	text, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "kuryr", "type": "kuryr", "api_server": w.Endpoint(),
		"api_ca": filepath.Join(w.dir, "ca"), option: value,
	})
	w.must(err)
	w.must(os.WriteFile(filepath.Join(w.dir, "10-kuryr.conf"), text, 0o600))
	w.must(w.configured(w.ctx))
}

// configured lays that file down, which a node loses that reboots.
func (w *whole) configured(ctx context.Context) error {
	return w.node.Exec(
		ctx, "install", "-m", "0600", filepath.Join(w.dir, "10-kuryr.conf"),
		kubelab.ConfigurationFolder,
	).Err()
}

// refusedByFile makes a pod while the token that is in a file is refused, and writes
// another over it when the pod's sandbox has failed by it.
func (w *whole) refusedByFile(name string) {
	w.Helper()
	file := filepath.Join(w.dir, "kuryr-cni")
	w.must(os.WriteFile(file, []byte("expired"), 0o600))
	w.configure("api_token_file", file)
	w.create("default", serverPod(name, ""))
	w.until(func(ctx context.Context) error {
		events, err := w.Client.EventsV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Name == name && strings.Contains(e.Note, "401") {
				return nil
			}
		}
		return fmt.Errorf("of %d Events none says that the token of %s is refused", len(events.Items), name)
	})
	w.must(atomicfile.WriteFile(file, []byte(w.token("kuryr-cni", nil).BearerToken), 0o600))
}

// A node without a daemon, whose pods have their ports by way of the API: also static
// ones, when they are made again under their name, have ended, or the node reboots. A
// token that is refused is told, and one that is written over it taken. Then a daemon
// comes, and finds the pods' ports theirs; what was bound without it goes by it, and
// nothing is left over.
func TestWithoutDaemon(t *testing.T) {
	t.Parallel()
	w := startAlone(t)
	w.configure("api_token", "expired")
	if said := w.node.Exec(w.ctx, "env", "CNI_COMMAND=STATUS", "sh", "-c", fmt.Sprintf(
		"sed s/1.0.0/1.1.0/ %s/10-kuryr.conf | %s/kuryr", kubelab.ConfigurationFolder,
		kubelab.PluginFolder,
	)); said.Code != 50 || !strings.Contains(said.Stdout, "401") {
		t.Errorf("STATUS with a token that the API does not take: %s", said)
	}
	w.configure("api_token", w.token("kuryr-cni", nil).BearerToken)
	w.must(w.WaitReady(w.ctx))
	w.create("default", serverPod("first", "")) // with which the network comes into the kernel, to stay
	w.running("default", "", 1)
	w.gone("default")
	w.agree(0)
	before := w.look()

	done := serverPod("done", "")
	done.Spec.RestartPolicy, done.Spec.Containers[0].Command = corev1.RestartPolicyNever, []string{"true"}
	w.create("default", serverPod("a", ""), serverPod("b", ""), done)
	w.must(kubelab.Until(w.ctx, w.Client.CoreV1().Pods(
		"default",
	), metav1.ListOptions{FieldSelector: "metadata.name=done"}, func(list *corev1.PodList) error {
		if len(list.Items) != 1 || list.Items[0].Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("the pod that ends at once has not ended: %+v", list.Items)
		}
		return nil
	}))
	w.must(w.Client.CoreV1().Pods("default").Delete(w.ctx, "done", metav1.DeleteOptions{}))
	w.absent("default", "done")
	pods := w.running("default", "", 2)
	w.talks(pods["a"], pods["b"])
	w.reach(pods["b"])
	w.agree(2)

	static := serverPod("static", "")
	static.APIVersion, static.Kind, static.Namespace = "v1", "Pod", "default"
	manifest, err := json.Marshal(static)
	w.must(err)
	file := filepath.Join(w.node.StaticPods(), "static.json")
	w.must(os.WriteFile(file, manifest, 0o600))
	w.talks(pods["a"], w.running("default", "app=static", 1)["static-"+w.node.Name])
	w.agree(3)
	w.must(os.Remove(file))
	w.absent("default", "static-"+w.node.Name)

	w.must(w.Client.CoreV1().Pods("default").Delete(w.ctx, "b", metav1.DeleteOptions{}))
	w.absent("default", "b")
	w.create("default", serverPod("b", ""))
	b := w.running("default", "app=b", 1)["b"]
	w.talks(b, pods["a"])
	w.agree(2)

	w.must(w.node.Reboot(w.ctx))
	a := w.again(pods["a"], func(now corev1.Pod) error {
		if now.Status.PodIP != pods["a"].Status.PodIP {
			return fmt.Errorf("its address is %s, it was %s", now.Status.PodIP, pods["a"].Status.PodIP)
		}
		return nil
	})
	b = w.again(b, func(corev1.Pod) error { return nil })
	w.talks(a, b)
	w.agree(2)

	// A daemon takes the node over.
	w.claimant("")
	w.must(w.startDaemon(w.ctx))
	w.talks(b, a)
	w.agree(2)
	w.must(w.Client.CoreV1().Pods("default").Delete(w.ctx, "b", metav1.DeleteOptions{}))
	w.absent("default", "b")
	w.create("default", serverPod("c", ""))
	c := w.running("default", "app=c", 1)["c"]
	w.talks(c, a)
	w.agree(2)
	w.must(w.node.Reboot(w.ctx)) // where what was bound without it is bound anew
	w.must(w.startDaemon(w.ctx))
	a = w.again(a, func(corev1.Pod) error { return nil })
	c = w.again(c, func(corev1.Pod) error { return nil })
	w.talks(a, c)
	w.agree(2)
	w.tells(2)

	// And goes: it is Raven's node again.
	w.claimant(kuryrv1.ClaimantRaven)
	w.must(w.claim.Stop(syscall.SIGTERM, limit))
	w.refusedByFile("d")
	w.talks(w.running("default", "app=d", 1)["d"], a)
	w.agree(3)
	w.gone("default")
	w.agree(0)
	if left := w.left(before, privatehost.Links, privatehost.Namespaces); len(left) > 0 {
		t.Errorf("left when all pods have gone:\n%s", strings.Join(left, "\n"))
	}
}
