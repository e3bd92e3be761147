package core

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SetReady sets the condition Ready by the error of a reconciliation. It reports whether
// that changes it.
func SetReady(conditions *[]metav1.Condition, generation int64, err error) bool {
	c := metav1.Condition{
		Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1.ReasonReady, ObservedGeneration: generation,
	}
	if err != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonOf(err), Message(err)
	}
	return meta.SetStatusCondition(conditions, c)
}

// IsReady reports whether the condition Ready is true.
func IsReady(conditions []metav1.Condition) bool {
	return meta.IsStatusConditionTrue(conditions, v1.ConditionReady)
}

// ReasonOf returns the reason of a condition: what failed, or what is waited for.
func ReasonOf(err error) string {
	of := Failures(err)
	if len(of) == 0 {
		of = Errors(err)
	}
	oneIs := func(is func(error) bool) bool { return slices.ContainsFunc(of, is) }
	switch {
	case oneIs(sdn.IsExhausted), oneIs(func(e error) bool { return errors.As(e, new(Short)) }):
		return v1.ReasonExhausted
	case oneIs(sdn.IsPending), oneIs(sdn.IsConflict), oneIs(func(e error) bool { return errors.As(e, new(Waiting)) }):
		return v1.ReasonPending
	case oneIs(sdn.IsUnavailable), errors.Is(err, context.DeadlineExceeded):
		return v1.ReasonSDN
	}
	return v1.ReasonInvalid
}

// Message returns an error's text in one line, cut to what a condition holds.
func Message(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	return text[:min(len(text), 1000)]
}

// CountsInterval is the shortest time between two writes of a status in which only counts
// have changed, so that a pool is not written for each of its pods.
const CountsInterval = 5 * time.Second
