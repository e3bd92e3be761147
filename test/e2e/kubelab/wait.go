package kubelab

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Source lists and watches one kind of object, as every typed client of client-go does.
type Source[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// again is when a server that did not answer is asked anew.
const again = 100 * time.Millisecond

// Until waits until there is no complaint about the objects that options choose: it looks
// at all of them when it comes and after each event, or burst of events. A server that is
// away for a while is waited for. When ctx ends the error has the last complaint.
func Until[L runtime.Object](
	ctx context.Context, from Source[L], options metav1.ListOptions, complaint func(L) error,
) error {
	last := errors.New("the API server did not answer")
	for {
		err := follow(ctx, from, options, func(list L) error {
			last = complaint(list)
			return last
		})
		if err == nil {
			return nil
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return fmt.Errorf("%w, still when the time was over: %w", ctx.Err(), last)
		}
	}
}

// follow is Until as long as one watch lasts.
func follow[L runtime.Object](
	ctx context.Context, from Source[L], options metav1.ListOptions, complaint func(L) error,
) error {
	list, err := from.List(ctx, options)
	if err != nil {
		return err
	}
	access, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	options.ResourceVersion = access.GetResourceVersion()
	watching := options
	watching.AllowWatchBookmarks = false
	w, err := from.Watch(ctx, watching)
	if err != nil {
		return err
	}
	defer w.Stop()
	options.ResourceVersion = ""
	for {
		if err = complaint(list); err == nil {
			return nil
		}
		// One look for a burst of events.
		select {
		case e, open := <-w.ResultChan():
			if !open || e.Type == watch.Error {
				return err
			}
		case <-ctx.Done():
			return err
		}
		for more := true; more; {
			select {
			case e, open := <-w.ResultChan():
				if !open || e.Type == watch.Error {
					return err
				}
			default:
				more = false
			}
		}
		if list, err = from.List(ctx, options); err != nil {
			return err
		}
	}
}

// waitNodes waits until every node is known and there is no complaint about any.
func (c *Cluster) waitNodes(ctx context.Context, complaint func(*corev1.Node) error) error {
	return Until(ctx, c.Client.CoreV1().Nodes(), metav1.ListOptions{}, func(list *corev1.NodeList) error {
		known := map[string]*corev1.Node{}
		for i := range list.Items {
			known[list.Items[i].Name] = &list.Items[i]
		}
		for _, n := range c.Nodes {
			if known[n.Name] == nil {
				return fmt.Errorf("%s is not known", n.Name)
			}
			if err := complaint(known[n.Name]); err != nil {
				return err
			}
		}
		return nil
	})
}

// WaitReady waits until every node is Ready and pods can be made in the namespace "default".
func (c *Cluster) WaitReady(ctx context.Context) error {
	err := c.waitNodes(ctx, func(n *corev1.Node) error {
		for _, t := range n.Spec.Taints {
			if t.Key == corev1.TaintNodeNotReady {
				return fmt.Errorf("%s has the taint %s", n.Name, t.Key)
			}
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				if condition.Status == corev1.ConditionTrue {
					return nil
				}
				return fmt.Errorf("%s is not Ready: %s", n.Name, condition.Message)
			}
		}
		return fmt.Errorf("%s does not say that it is Ready", n.Name)
	})
	if err != nil {
		return err
	}
	return c.WaitAccount(ctx, metav1.NamespaceDefault)
}

// WaitAccount waits until pods can be made in a namespace: until it has the account that they run as.
func (c *Cluster) WaitAccount(ctx context.Context, namespace string) error {
	return Until(ctx, c.Client.CoreV1().ServiceAccounts(
		namespace,
	), metav1.ListOptions{}, func(list *corev1.ServiceAccountList) error {
		for _, account := range list.Items {
			if account.Name == "default" {
				return nil
			}
		}
		return fmt.Errorf("namespace %s has no account", namespace)
	})
}
