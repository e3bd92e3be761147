package raven

import (
	"context"
	"errors"
	"strings"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Reasons of Raven's Events.
const (
	eventFailed   = "KuryrFailed"      // the SDN refuses, or is away
	eventShort    = "KuryrShort"       // fewer ports than are needed
	eventRefused  = "KuryrRefused"     // a wish that the namespace does not grant, or an annotation that makes no sense
	eventMade     = "KuryrMade"        // something that its owner should know of
	eventUnserved = "KuryrNotEnforced" // what Kuryr does not do
)

// setReady sets the condition Ready by what came of the work. It tells whether that changes it.
func setReady(conditions *[]metav1.Condition, generation int64, err error) bool {
	c := metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1.ReasonReady, ObservedGeneration: generation}
	if err != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonOf(err), oneLine(err)
	}
	return meta.SetStatusCondition(conditions, c)
}

func isReady(conditions []metav1.Condition) bool {
	return meta.IsStatusConditionTrue(conditions, v1.ConditionReady)
}

// waiting is an error that says what is waited for. It goes by an event, so nothing is tried again for it.
type waiting struct{ what string }

func (w waiting) Error() string { return w.what }

// short is an error of fewer ports than are needed, by a limit of Kuryr's own.
type short struct{ what string }

func (s short) Error() string { return s.what }

func reasonOf(err error) string {
	switch {
	case errors.As(err, &short{}), sdn.IsExhausted(err):
		return v1.ReasonExhausted
	case errors.As(err, &waiting{}), sdn.IsPending(err), sdn.IsConflict(err):
		return v1.ReasonPending
	case sdn.IsUnavailable(err), errors.Is(err, context.DeadlineExceeded):
		return v1.ReasonSDN
	}
	return v1.ReasonInvalid
}

// oneLine is an error's text for a condition, which has a bound.
func oneLine(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	return text[:min(len(text), 1000)]
}

// conflictPause lets the cache see what another has written.
const conflictPause = 200 * time.Millisecond

// done is a reconciler's answer. A conflict of versions is no failure: the cache was behind. What waits for an event comes again with it.
func done(again time.Duration, err error) (ctrl.Result, error) {
	switch {
	case err == nil, errors.As(err, &waiting{}), errors.As(err, &short{}):
		return ctrl.Result{RequeueAfter: again}, nil
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: conflictPause}, nil
	}
	if after := sdn.RetryAfterOf(err); after > 0 {
		return ctrl.Result{RequeueAfter: after}, nil
	}
	return ctrl.Result{}, err
}

// warn has an Event written of something gone wrong; alike ones are counted in one.
func (r *Raven) warn(about runtime.Object, reason, action, format string, args ...any) {
	r.events.Eventf(about, nil, corev1.EventTypeWarning, reason, action, format, args...)
}

// tell has an Event written of something done.
func (r *Raven) tell(about runtime.Object, reason, action, format string, args ...any) {
	r.events.Eventf(about, nil, corev1.EventTypeNormal, reason, action, format, args...)
}
