package uninstall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/kube/install"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// clearing is the name, as a label, of the pods that clear nodes.
var clearing = client.MatchingLabels{"app.kubernetes.io/name": "kuryr-uninstall"}

// clearNodes takes the network's conflist from each node that has the daemon, by a pod of the daemon's image that runs "kuryr uninstall cni" there: nothing outside of a node can. From
// then on container runtimes start no pod by Kuryr. The plugin goes too, unless pods are left which their runtime will want to take away by it.
func (r Remover) clearNodes(ctx context.Context) error {
	var set appsv1.DaemonSet
	if err := r.API.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: nodeName}, &set); absent(err) {
		r.Said("nodes: there is no DaemonSet kuryr-node (any more); where a node still has /etc/cni/net.d/10-kuryr.conflist, which a run before this has not removed, it is yours to remove")
		return nil
	} else if err != nil {
		return err
	}
	var daemons corev1.PodList
	if err := r.API.List(ctx, &daemons, client.InNamespace(r.Namespace), client.MatchingLabels{"app.kubernetes.io/name": nodeName}); err != nil {
		return err
	}
	var nodes []string
	for _, p := range daemons.Items {
		if p.Spec.NodeName != "" && !slices.Contains(nodes, p.Spec.NodeName) {
			nodes = append(nodes, p.Spec.NodeName)
		}
	}
	return r.onNodes(ctx, nodes, onNode{
		pod:   func(node string) *corev1.Pod { return r.clearingPod(set.Spec.Template.Spec, node) },
		done:  "container runtimes are told of no network any more",
		left:  "they still have /etc/cni/net.d/10-kuryr.conflist, which is yours to remove",
		stuck: "still have Kuryr's conflist",
	})
}

// sweeping is what the daemon's program is told on each node.
var sweeping = []string{"uninstall", "node"}

// sweepNodes takes from the kernel of each node what its daemon had there for itself: Services, the node's own port. That is for when the daemons have ended, who would put
// it back. Then the DaemonSet, which was kept until now (holding) as nothing else tells which nodes those were and how a pod comes there, may go.
func (r Remover) sweepNodes(ctx context.Context) error {
	var set appsv1.DaemonSet
	err := r.API.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: nodeName}, &set)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if err != nil || !controllerutil.ContainsFinalizer(&set, holding) {
		r.Said(`nodes: there is no DaemonSet kuryr-node (any more) that tells which they were; where one still has in its kernel what balanced Services, which a run before this has not taken out, "kuryr uninstall node" there does, or a reboot`)
		return nil
	}
	var all corev1.NodeList
	if err := r.API.List(ctx, &all, client.MatchingLabels(set.Spec.Template.Spec.NodeSelector)); err != nil {
		return err
	}
	var nodes []string
	for _, n := range all.Items {
		nodes = append(nodes, n.Name)
	}
	err = r.onNodes(ctx, nodes, onNode{
		pod:   func(node string) *corev1.Pod { return r.sweepingPod(set.Spec.Template.Spec, node) },
		done:  "what balanced Services is out of the kernel",
		left:  `what balanced Services stays in their kernel until a reboot, or "kuryr uninstall node" there`,
		stuck: "still have in their kernel what balanced Services",
	})
	if err != nil {
		return err
	}
	return r.hold(ctx, false)
}

// hold keeps the DaemonSet's object when it is deleted, or lets it go. One that is not there, or that goes, is not kept.
func (r Remover) hold(ctx context.Context, keep bool) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var set appsv1.DaemonSet
		if err := r.API.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: nodeName}, &set); err != nil {
			return client.IgnoreNotFound(err)
		}
		before := set.DeepCopy()
		if keep && (!set.DeletionTimestamp.IsZero() || !controllerutil.AddFinalizer(&set, holding)) || !keep && !controllerutil.RemoveFinalizer(&set, holding) {
			return nil
		}
		return client.IgnoreNotFound(r.API.Patch(ctx, &set, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(install.Owner)))
	})
}

// onNode is what a pod does on each of some nodes, and what is said of it: where it is done, where it is left undone by force, and where it does not end.
type onNode struct {
	pod               func(node string) *corev1.Pod
	done, left, stuck string
}

// onNodes runs a pod on each node, and waits for their ends. Those of an attempt before go first. A node for which none can be made is left undone by force, and where the namespace
// is being deleted: there is no other attempt then, and the DaemonSet would keep the namespace.
func (r Remover) onNodes(ctx context.Context, nodes []string, what onNode) error {
	if err := r.API.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(r.Namespace), clearing); err != nil {
		return err
	}
	mine := map[string]bool{}
	var tried []string
	for _, node := range nodes {
		pod := what.pod(node)
		err := r.API.Create(ctx, pod, client.FieldOwner(install.Owner))
		switch {
		case err == nil:
			mine[pod.Name], tried = true, append(tried, node)
		case ctx.Err() == nil && (r.Force || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)):
			r.Said("nodes %s: %s (%v)", node, what.left, err)
		default:
			return fmt.Errorf("node %s: %w", node, err)
		}
	}
	err := r.ended(ctx, tried, mine, what)
	last, stop := lastWord(ctx)
	defer stop()
	return errors.Join(err, r.API.DeleteAllOf(last, &corev1.Pod{}, client.InNamespace(r.Namespace), clearing))
}

// ended waits for the ends of the pods on nodes.
func (r Remover) ended(ctx context.Context, nodes []string, mine map[string]bool, what onNode) error {
	waiting, fewer, stop := r.patience(ctx)
	defer stop()
	done := map[string]bool{}
	var pods corev1.PodList
	err := r.until(waiting, &pods, func() (bool, error) {
		for _, p := range pods.Items {
			if mine[p.Name] && p.Status.Phase == corev1.PodSucceeded && !done[p.Spec.NodeName] {
				done[p.Spec.NodeName] = true
				r.Said("node %s: %s (%d of %d)", p.Spec.NodeName, what.done, len(done), len(nodes))
			}
		}
		fewer(len(nodes) - len(done))
		return len(done) == len(nodes), nil
	}, client.InNamespace(r.Namespace), clearing)
	if err == nil {
		return nil
	}
	left := some(slices.DeleteFunc(nodes, func(n string) bool { return done[n] }))
	if r.gaveUp(ctx, waiting) {
		r.Said("nodes %s: %s", left, what.left)
		return nil
	}
	return fmt.Errorf("nodes %s %s (is the kubelet there, and the image?); --force leaves them: %w", left, what.stuck, err)
}

// clearingPod is a pod for one node, which has the folders there that the daemon's pod has.
func (r Remover) clearingPod(daemon corev1.PodSpec, node string) *corev1.Pod {
	c := corev1.Container{
		Name: "uninstall", Image: daemon.Containers[0].Image, ImagePullPolicy: daemon.Containers[0].ImagePullPolicy,
		Args: []string{"uninstall", "cni", "--conflist", "/etc/cni/net.d/10-kuryr.conflist"},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsUser: new(int64(0)),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	pod := r.podOn(node, daemon)
	at := map[string]string{"conf": "/etc/cni/net.d"}
	if !r.Force {
		at["bin"], at["spec"] = "/host/bin", "/host/spec"
	}
	for _, v := range daemon.Volumes {
		path, wanted := at[v.Name]
		if !wanted {
			continue
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: path})
		if v.Name != "conf" {
			c.Args = append(c.Args, path)
		}
	}
	pod.Spec.Containers = []corev1.Container{c}
	return pod
}

// sweepingPod is a pod for one node that has all that the daemon's has there, but no token.
func (r Remover) sweepingPod(daemon corev1.PodSpec, node string) *corev1.Pod {
	c := daemon.Containers[0].DeepCopy()
	c.Name, c.Args, c.ReadinessProbe, c.Resources = "uninstall", sweeping, nil, corev1.ResourceRequirements{}
	pod := r.podOn(node, daemon)
	for _, v := range daemon.Volumes {
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name }) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v)
		}
	}
	pod.Spec.Containers = []corev1.Container{*c}
	return pod
}

// podOn is a pod for one node, without a container yet. It comes there also where no network is ready.
func (r Remover) podOn(node string, daemon corev1.PodSpec) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, GenerateName: "kuryr-uninstall-", Labels: clearing},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, RestartPolicy: corev1.RestartPolicyOnFailure, PriorityClassName: "system-node-critical", AutomountServiceAccountToken: new(false),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, ImagePullSecrets: daemon.ImagePullSecrets,
		},
	}
}

// settleNodes takes from the Nodes what Kuryr has said of them, once no daemon says it any more: a network that is unavailable keeps pods away, also those of the next network.
func (r Remover) settleNodes(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := r.API.List(ctx, &nodes); err != nil {
		return err
	}
	for i := range nodes.Items {
		if err := r.settleNode(ctx, nodes.Items[i].Name); err != nil {
			return fmt.Errorf("node %s: %w", nodes.Items[i].Name, err)
		}
	}
	return nil
}

func (r Remover) settleNode(ctx context.Context, name string) error {
	var n corev1.Node
	ours := func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && strings.HasPrefix(c.Reason, "Kuryr")
	}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := r.API.Get(ctx, client.ObjectKey{Name: name}, &n); err != nil {
			return err
		}
		if !slices.ContainsFunc(n.Status.Conditions, ours) {
			return nil
		}
		before := n.DeepCopy()
		n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, ours)
		r.Said("node %s: nothing is said of its network any more", name)
		return r.API.Status().Patch(ctx, &n, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(install.Owner))
	})
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if _, has := n.Labels[install.LabelSDN]; !has {
		return nil
	}
	before := n.DeepCopy()
	delete(n.Labels, install.LabelSDN)
	return client.IgnoreNotFound(r.API.Patch(ctx, &n, client.MergeFrom(before), client.FieldOwner(install.Owner)))
}
