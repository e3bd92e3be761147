package raven

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
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
type short struct {
	limit pool.Limit
	what  string
}

func (s short) Error() string { return s.what }

// parts are the errors that were joined, one by one. One that wraps another is one part, with what it says.
func parts(err error) (all []error) {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		all = append(all, parts(e)...)
	}
	return all
}

// failures are the parts of an error that nothing is waited for with: they are to be tried again, whatever is waited for beside them.
func failures(err error) []error {
	return slices.DeleteFunc(parts(err), func(e error) bool { return errors.As(e, &waiting{}) || errors.As(e, &short{}) })
}

// reasonOf is what failed; where nothing did it is what is waited for.
func reasonOf(err error) string {
	of := failures(err)
	if len(of) == 0 {
		of = parts(err)
	}
	oneIs := func(is func(error) bool) bool { return slices.ContainsFunc(of, is) }
	switch {
	case oneIs(sdn.IsExhausted), oneIs(func(e error) bool { return errors.As(e, &short{}) }):
		return v1.ReasonExhausted
	case oneIs(sdn.IsPending), oneIs(sdn.IsConflict), oneIs(func(e error) bool { return errors.As(e, &waiting{}) }):
		return v1.ReasonPending
	case oneIs(sdn.IsUnavailable), errors.Is(err, context.DeadlineExceeded):
		return v1.ReasonSDN
	}
	return v1.ReasonInvalid
}

// worthTelling tells whether there is more in an error than what is waited for, or a cache that is behind.
func worthTelling(err error) bool {
	return slices.ContainsFunc(parts(err), func(e error) bool { return !errors.As(e, &waiting{}) && !apierrors.IsConflict(e) })
}

// oneLine is an error's text for a condition, which has a bound.
func oneLine(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	return text[:min(len(text), 1000)]
}

// conflictPause lets the cache see what another has written.
const conflictPause = 200 * time.Millisecond

// done is a reconciler's answer. A conflict of versions is no failure: the cache was behind. What waits for an event comes again with it.
// Of joined errors each counts: one that is a failure has all be tried again.
func done(again time.Duration, err error) (ctrl.Result, error) {
	failed := failures(err)
	if len(failed) == 0 {
		return ctrl.Result{RequeueAfter: again}, nil
	}
	if !slices.ContainsFunc(failed, func(e error) bool { return !apierrors.IsConflict(e) }) {
		return ctrl.Result{RequeueAfter: conflictPause}, nil
	}
	if after := sdn.RetryAfterOf(err); after > 0 {
		return ctrl.Result{RequeueAfter: after}, nil
	}
	return ctrl.Result{}, err
}

// warn has an Event written of something gone wrong; alike ones are counted in one.
func (r *Raven) warn(about runtime.Object, reason, action, format string, args ...any) {
	r.event(about, corev1.EventTypeWarning, reason, action, fmt.Sprintf(format, args...))
}

// tell has an Event written of something done.
func (r *Raven) tell(about runtime.Object, reason, action, format string, args ...any) {
	r.event(about, corev1.EventTypeNormal, reason, action, fmt.Sprintf(format, args...))
}

// fleeting is what differs in a text each time that the same goes wrong: the ids of requests, the ports that they were sent from, and how many there are of what is counted.
var fleeting = regexp.MustCompile(`req-[0-9a-f-]+|:[0-9]+->|\b[0-9]+ (more )?(of its |pools of )?(ports|pods)\b`)

// event has an Event written. A recorder counts what is alike in reason and action in the first one, with that one's text, whatever is told since: so the action has the text's hash.
func (r *Raven) event(about runtime.Object, kind, reason, action, text string) {
	hash := fnv.New32a()
	_, _ = hash.Write(fleeting.ReplaceAll([]byte(text), nil))
	r.events.Eventf(about, nil, kind, reason, fmt.Sprintf("%s-%08x", action, hash.Sum32()), "%s", text)
}
