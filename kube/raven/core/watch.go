package core

import (
	"context"
	"fmt"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Controller is a reconciler with all that enqueues objects for it, besides its own
// results.
type Controller struct {
	Name       string
	Reconciler reconcile.Reconciler
	Watches    []Watch
	Enqueuer   *Enqueuer // may be nil
}

// Watch enqueues requests when an object of a kind changes.
type Watch struct {
	Of      client.Object
	When    predicate.Predicate // which changes count; nil is each
	Handler handler.EventHandler

	Optional bool // the API server may not know the kind
}

// Queue is the queue of a controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Itself enqueues the object that changes.
var Itself = &handler.EnqueueRequestForObject{}

// On enqueues the requests that f returns for an object that changes.
func On[T client.Object](r *Core, f func(context.Context, T) ([]ctrl.Request, error)) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []ctrl.Request {
		all, err := f(ctx, o.(T))
		if err != nil {
			r.Log.ErrorContext(ctx, "finding requests for a changed object failed",
				"kind", fmt.Sprintf("%T", o), "name", o.GetName(), "err", err)
		}
		return all
	})
}

// Created passes new objects, and those that exist at the start.
var Created = predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }, DeleteFunc: NeverDeleted}

// NeverDeleted passes no deletion.
func NeverDeleted(event.DeleteEvent) bool { return false }

// Deleted passes objects that are deleted or being deleted, and those that exist at the
// start.
type Deleted = deletedPredicate[client.Object]

type deletedPredicate[T client.Object] struct{ predicate.TypedFuncs[T] }

// Update passes the beginning of a deletion.
func (deletedPredicate[T]) Update(e event.TypedUpdateEvent[T]) bool {
	return e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
}

// Gone passes objects that are deleted or being deleted, and none of those that exist at
// the start.
var Gone = predicate.And(Deleted{}, predicate.Not(Created))

// Request returns the request for an object; cluster-scoped ones have no namespace.
func Request(namespace, name string) ctrl.Request {
	return ctrl.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: name}}
}

// One returns the request for an object, alone.
func One(namespace, name string) []ctrl.Request { return []ctrl.Request{Request(namespace, name)} }
