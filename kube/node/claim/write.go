package claim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/vif"
)

// writers is how many write to the API server at once, each another port or pod.
const writers = 4

// Bounds of a write: how long one may take, and how long until the next after a failure, first and at most.
const (
	writeTimeout = 30 * time.Second
	firstRetry   = 100 * time.Millisecond
	lastRetry    = 30 * time.Second
)

// task is one thing to bring in line, whatever happened to it: a port or a pod in the API, or an attachment whose pod has gone.
type task struct {
	port string
	pod  types.NamespacedName
	gone key
}

func newQueue(first, last time.Duration) workqueue.TypedRateLimitingInterface[task] {
	return workqueue.NewTypedRateLimitingQueue[task](jittered{workqueue.NewTypedItemExponentialFailureRateLimiter[task](first, last)})
}

// jittered spreads the retries of what failed together.
type jittered struct {
	workqueue.TypedRateLimiter[task]
}

// When is how long until the next try.
func (j jittered) When(t task) time.Duration {
	d := j.TypedRateLimiter.When(t)
	return d/2 + rand.N(d/2+1)
}

// write brings things in line until the queue is shut down. Tasks of one thing follow one another. It waits for a moment without ADDs and DELs, from which it would take the processors
// together with the API server.
func (c *Claimant) write(ctx context.Context) {
	for {
		t, shut := c.queue.Get()
		if shut {
			return
		}
		c.Idle.Wait(ctx)
		err := c.do(ctx, t)
		if err != nil && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "not yet told to the API server; it is tried again", "what", t.String(), "tries", c.queue.NumRequeues(t)+1, "err", err)
			c.queue.AddRateLimited(t)
		} else {
			c.queue.Forget(t)
		}
		c.queue.Done(t)
	}
}

// String names the thing.
func (t task) String() string {
	switch {
	case t.port != "":
		return "port " + t.port
	case t.pod.Name != "":
		return "pod " + t.pod.String()
	}
	return "container " + t.gone.container
}

func (c *Claimant) do(ctx context.Context, t task) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	switch {
	case t.port != "":
		return c.writePort(ctx, t.port)
	case t.pod.Name != "":
		return c.annotate(ctx, t.pod)
	case t.gone.container != "":
		return c.leave(ctx, t.gone)
	}
	return nil
}

// differs tells whether the API says something else of a port than it should.
func (x *index) differs(p *port) bool {
	status, pod, ok := x.want(p)
	return ok && (labelOf(p.object) != status || !says(&p.object.Status, status, pod))
}

// says tells whether a port's status is this already. That nobody was given an available port is not written down for each one that is made.
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

// writePort has the API say of a port what the table says: the label first, which counts, then the status. Each is refused where the port has changed
// since it was seen; the change comes by watch, and then again this.
func (c *Claimant) writePort(ctx context.Context, name string) error {
	if err := c.adopt(ctx, name); err != nil {
		return err
	}
	c.mu.Lock()
	p := c.index.ports[name]
	if p == nil || !c.index.differs(p) {
		c.mu.Unlock()
		return c.settled(name)
	}
	status, pod, _ := c.index.want(p)
	was := p.object
	c.mu.Unlock()
	if labelOf(was) != status {
		o := was.DeepCopy()
		if o.Labels == nil {
			o.Labels = map[string]string{}
		}
		o.Labels[v1.LabelPortStatus] = string(status)
		if err := c.Client.Patch(ctx, o, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})); err != nil {
			return client.IgnoreNotFound(err)
		}
		failpoint.Here("claim.write.labelled")
		was = o
	}
	if !says(&was.Status, status, pod) {
		o := was.DeepCopy()
		if o.Status.PortStatus, o.Status.Pod, o.Status.Released = status, pod, nil; status == v1.PortAvailable {
			o.Status.SetAvailable(time.Now())
		}
		if err := c.Client.Status().Patch(ctx, o, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})); err != nil {
			return client.IgnoreNotFound(err)
		}
		failpoint.Here("claim.write.told")
		was = o
	}
	was.SetManagedFields(nil)
	c.seePort(was)
	return c.settled(name)
}

// settled lets the rows of those that gave a port back go, once the API tells of none of them.
// While an attachment takes it that is not stored yet, it is unknown what the API is to tell.
func (c *Claimant) settled(name string) error {
	c.mu.Lock()
	p := c.index.ports[name]
	if a := c.index.holders[name]; p != nil && (c.index.differs(p) || a != nil && !a.written) {
		c.mu.Unlock()
		return nil // the queue has it again
	}
	waits := c.index.owed[name]
	delete(c.index.owed, name)
	c.mu.Unlock()
	for o := range waits {
		c.server.Wake(o)
	}
	return nil
}

// annotationOf is what the pod is to say. Of two sandboxes of one pod the newer counts.
func (x *index) annotationOf(p *pod) string {
	newest := map[string]*attachment{}
	for k, a := range x.ofPod[p.uid] {
		if n := newest[k.iface]; n == nil || n.Adopted || n.Since.Before(a.Since) {
			newest[k.iface] = a
		}
	}
	ports := map[string]string{}
	for iface, a := range newest {
		ports[iface] = a.Port
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

// misannotated tells whether a pod says something else than it should. One that is going keeps what it says.
func (x *index) misannotated(p *pod) bool {
	if p == nil || p.leaving && len(x.ofPod[p.uid]) == 0 {
		return false
	}
	return x.annotationOf(p) != p.annotation
}

// annotate has the pod tell of its ports. The write is refused where another pod has the name meanwhile.
func (c *Claimant) annotate(ctx context.Context, name types.NamespacedName) error {
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
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.uid, "annotations": map[string]any{v1.AnnotationVIF: value}}})
	if err != nil {
		return fmt.Errorf("annotation of a pod: %w", err)
	}
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	// By the subresource, which takes annotations too: so the daemon needs no right to write pods' specs.
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

// moved logs which ports kuryr-kubernetes gave a pod, where the annotation that is gone now told of them: nobody else tells it. A pod that was not made anew since may still be on one.
func (c *Claimant) moved(ctx context.Context, pod types.NamespacedName, annotation string) {
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
		c.Log.WarnContext(ctx, "a pod's annotation was of kuryr-kubernetes and is taken away: where the pod still runs on that port, make it anew; the port is nobody's then",
			"pod", pod.String(), "interface", v.Interface, "port", v.Peer.ID, "addresses", addresses)
	}
}
