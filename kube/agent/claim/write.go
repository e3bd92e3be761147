package claim

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/vif"
)

// writers is how many tasks run concurrently, each of another port or pod.
const writers = 4

// Bounds of a write, and of the time until the next after a failure.
const (
	writeTimeout = 30 * time.Second
	firstRetry   = 100 * time.Millisecond
	lastRetry    = 30 * time.Second
)

// task is one thing to bring in line: a port or a pod in the API, or the attachment, by its key, of
// a pod that is gone.
type task struct {
	port string
	pod  types.NamespacedName
	gone string
}

// String names the thing.
func (t task) String() string {
	switch {
	case t.port != "":
		return "port " + t.port
	case t.pod.Name != "":
		return "pod " + t.pod.String()
	}
	return "attachment " + t.gone
}

// write does tasks until the queue is shut down. Tasks of one thing follow one another. They wait
// until no ADD or DEL is in progress, with which they and the API server would compete for the
// processors.
func (c *Allocator) write(ctx context.Context) {
	for {
		t, shut := c.queue.Get()
		if shut {
			return
		}
		c.Idle.Wait(ctx)
		err := c.do(ctx, t)
		if tries := c.count(t, err); err != nil && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "update of the API failed", "what", t.String(), "tries", tries, "err", err)
			c.queue.AddAfter(t, c.retry.After(tries))
		}
		c.queue.Done(t)
	}
}

// count returns how many times in a row a task has failed.
func (c *Allocator) count(t task, err error) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.failures, t)
		return 0
	}
	c.failures[t]++
	return c.failures[t]
}

func (c *Allocator) do(ctx context.Context, t task) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	switch {
	case t.port != "":
		return c.writePort(ctx, t.port)
	case t.pod.Name != "":
		return c.annotate(ctx, t.pod)
	case t.gone != "":
		return c.leave(ctx, t.gone)
	}
	return nil
}

// differs reports whether the API says something else of a port than it should.
func (x *index) differs(p *port) bool {
	status, pod, ok := x.want(p)
	return ok && (labelOf(p.object) != status || !says(&p.object.Status, status, pod))
}

// says reports whether a port's status is this already. A new port that is available needs no status.
func says(s *v1.KuryrPortStatus, status v1.PortStatus, pod *v1.PortPod) bool {
	if (s.Pod == nil) != (pod == nil) {
		return false
	}
	if s.Pod != nil {
		a, b := *s.Pod, *pod
		same := a.Since.Equal(&b.Since)
		a.Since, b.Since = metav1.Time{}, metav1.Time{}
		if !same || a != b {
			return false
		}
	}
	return s.PortStatus == status || status == v1.PortAvailable && (s.PortStatus == "" || s.PortStatus == v1.PortCreated)
}

// writePort makes the API say of a port what the table says: the label first, which counts, then the
// status. Each write is refused if the port has changed since it was seen. The change comes by
// watch, and queues the port again.
//
// A write whose answer is lost can have changed the port. Until a newer version is seen, or a
// write that changes nothing succeeds, the rows that gave the port back stay: without them the
// version that the lost write made would be adopted as a claim of the API. A write that the API takes
// later than that, as one held by a proxy, is not covered.
func (c *Allocator) writePort(ctx context.Context, name string) error {
	if err := c.adoptPort(ctx, name); err != nil {
		return err
	}
	c.mu.Lock()
	p := c.index.ports[name]
	if p == nil || !p.unsure && !c.index.differs(p) {
		c.mu.Unlock()
		return c.wakeReleased(name)
	}
	was, patch := p.object, c.patchNothing
	if c.index.differs(p) {
		status, pod, _ := c.index.want(p)
		patch = func(ctx context.Context, was *v1.KuryrPort) (*v1.KuryrPort, error) {
			return c.patchPort(ctx, was, status, pod)
		}
	}
	c.mu.Unlock()
	now, err := patch(ctx, was)
	c.mu.Lock()
	p.unsure = err != nil
	c.mu.Unlock()
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	now.SetManagedFields(nil)
	c.seePort(now)
	return c.wakeReleased(name)
}

// patchNothing fails if the API has another version of the port.
func (c *Allocator) patchNothing(ctx context.Context, was *v1.KuryrPort) (*v1.KuryrPort, error) {
	o := was.DeepCopy()
	return o, c.Client.Patch(ctx, o, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
}

// patchPort writes the label and the status where they differ, and returns what the API has then.
func (c *Allocator) patchPort(
	ctx context.Context, was *v1.KuryrPort, status v1.PortStatus, pod *v1.PortPod,
) (*v1.KuryrPort, error) {
	if labelOf(was) != status {
		o := was.DeepCopy()
		if o.Labels == nil {
			o.Labels = map[string]string{}
		}
		o.Labels[v1.LabelPortStatus] = string(status)
		if err := c.Client.Patch(ctx, o, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})); err != nil {
			return nil, err
		}
		failpoint.Here("claim.write.labelled")
		was = o
	}
	if !says(&was.Status, status, pod) {
		o := was.DeepCopy()
		if o.Status.PortStatus, o.Status.Pod, o.Status.Released = status, pod, nil; status == v1.PortAvailable {
			o.Status.SetAvailable(time.Now())
		}
		lock := client.MergeFromWithOptimisticLock{}
		if err := c.Client.Status().Patch(ctx, o, client.MergeFromWithOptions(was, lock)); err != nil {
			return nil, err
		}
		failpoint.Here("claim.write.told")
		was = o
	}
	return was, nil
}

// wakeReleased completes the deletion of the rows that gave a port back, once the API has none of them.
// While an attachment that is not stored yet holds the port, it is unknown what the API should say.
func (c *Allocator) wakeReleased(name string) error {
	c.mu.Lock()
	p := c.index.ports[name]
	if a := c.index.holders[name]; p != nil && (p.unsure || c.index.differs(p) || a != nil && !a.stored) {
		c.mu.Unlock()
		return nil // the queue has it again
	}
	waits := c.index.released[name]
	delete(c.index.released, name)
	c.mu.Unlock()
	for o := range waits {
		c.server.Wake(o)
	}
	return nil
}

// annotationOf returns the pod's annotation. Of two sandboxes of one pod the newer counts.
func (x *index) annotationOf(p *pod) string {
	newest := map[string]*attachment{}
	for _, a := range x.ofPod[p.uid] {
		if n := newest[a.Interface]; n == nil || a.after(n) {
			newest[a.Interface] = a
		}
	}
	ports := map[string]string{}
	for iface, a := range newest {
		ports[iface] = a.port()
	}
	if len(ports) == 0 {
		return ""
	}
	text, err := vif.Encode(ports)
	if err != nil { // an interface's name that the kernel would not take: there is no such interface
		return ""
	}
	return text
}

// misannotated reports whether a pod's annotation is wrong. A pod that is being deleted keeps it.
func (x *index) misannotated(p *pod) bool {
	if p == nil || p.leaving && len(x.ofPod[p.uid]) == 0 {
		return false
	}
	return x.annotationOf(p) != p.annotation
}

// annotate writes the pod's annotation. The write is refused if another pod has the name by now.
func (c *Allocator) annotate(ctx context.Context, name types.NamespacedName) error {
	c.mu.Lock()
	p := c.index.pods[name]
	if !c.index.misannotated(p) {
		c.mu.Unlock()
		return nil
	}
	text, before := c.index.annotationOf(p), p.annotation
	c.mu.Unlock()
	var value any = text
	if text == "" {
		value = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": p.uid, "annotations": map[string]any{v1.AnnotationVIF: value},
	}})
	if err != nil {
		return fmt.Errorf("annotation of a pod: %w", err)
	}
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	// The subresource takes annotations too, so the daemon needs no right to write pods' specs.
	if err := c.Client.Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return client.IgnoreNotFound(err)
	}
	failpoint.Here("claim.annotate.written")
	c.mu.Lock()
	p.annotation = text
	c.mu.Unlock()
	c.moved(ctx, name, before)
	return nil
}

// moved logs the ports of a pod's annotation that kuryr-kubernetes wrote and that is gone now. A pod
// that was not recreated since may still use one.
func (c *Allocator) moved(ctx context.Context, pod types.NamespacedName, annotation string) {
	all, err := vif.Decode(annotation)
	if err != nil {
		return // it was written by hand
	}
	for _, v := range all {
		if v.Peer == nil {
			continue
		}
		var addresses []string
		for _, s := range v.Peer.Network.Subnets {
			addresses = append(addresses, s.IPs...)
		}
		c.Log.WarnContext(ctx, "kuryr-kubernetes' annotation removed from a pod",
			"pod", pod.String(), "interface", v.Interface, "port", v.Peer.ID, "addresses", addresses)
	}
}
