package uninstall

import (
	"context"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// until fills the list anew at each change of what is chosen until done says that it is as it should be, or ctx ends.
func (r Remover) until(ctx context.Context, list client.ObjectList, done func() (bool, error), choice ...client.ListOption) error {
	return r.watch(ctx, list.DeepCopyObject().(client.ObjectList), func() (bool, error) {
		if err := r.API.List(ctx, list, choice...); err != nil {
			return false, err
		}
		return done()
	}, choice...)
}

// gone waits until an object is not there any more. The list is of its kind, the choice is of it alone.
func (r Remover) gone(ctx context.Context, object client.Object, list client.ObjectList, choice ...client.ListOption) error {
	return r.watch(ctx, list, func() (bool, error) {
		err := r.API.Get(ctx, client.ObjectKeyFromObject(object), object)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}, choice...)
}

// watch asks again at each change until the answer is yes.
func (r Remover) watch(ctx context.Context, list client.ObjectList, ask func() (bool, error), choice ...client.ListOption) error {
	for {
		w, err := r.API.Watch(ctx, list, choice...)
		if err != nil {
			return err
		}
		ok, err := following(ctx, w, ask)
		w.Stop()
		if ok || err != nil {
			return err
		}
	}
}

// following ends with neither where the watch has ended, which the API server does now and then.
func following(ctx context.Context, w watch.Interface, ask func() (bool, error)) (bool, error) {
	for {
		if ok, err := ask(); ok || err != nil {
			return ok, err
		}
		select {
		case e, open := <-w.ResultChan():
			if !open {
				return false, ctx.Err()
			}
			if e.Type == watch.Error {
				return false, apierrors.FromObject(e.Object)
			}
		case <-ctx.Done():
			return false, ctx.Err()
		}
		for more := true; more; { // many changes are one reason to ask
			select {
			case _, more = <-w.ResultChan():
			default:
				more = false
			}
		}
	}
}

// patience is ctx, which ends sooner where what does not go is left: once Patience has passed since it began, or since fewer were left than ever before.
func (r Remover) patience(ctx context.Context) (waiting context.Context, fewer func(left int), stop context.CancelFunc) {
	waiting, cancel := context.WithCancel(ctx)
	if !r.Force {
		return waiting, func(int) {}, cancel
	}
	timer, least := time.AfterFunc(r.Patience, cancel), math.MaxInt
	fewer = func(left int) {
		if left < least {
			least = left
			timer.Reset(r.Patience)
		}
	}
	return waiting, fewer, func() {
		timer.Stop()
		cancel()
	}
}

// gaveUp tells whether the wait ended by patience alone.
func (r Remover) gaveUp(ctx, waiting context.Context) bool {
	return r.Force && ctx.Err() == nil && waiting.Err() != nil
}

// lastWord is for what is done also where ctx has ended.
func lastWord(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}
