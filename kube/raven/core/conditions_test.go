package core

import (
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/sdn"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Each of the joined errors counts: a failure is not hidden by what is waited for.
func TestAnswers(t *testing.T) {
	t.Parallel()
	capped := Short{Limit: pool.AtCap, What: "cap"}
	away := sdn.Unavailable(errors.New("connection refused"), "sdn", "connection refused")
	behind := apierrors.NewConflict(schema.GroupResource{Resource: "kuryrports"}, "p", errors.New("changed"))
	for name, row := range map[string]struct {
		err    error
		fails  bool
		after  time.Duration
		reason string
		told   bool
	}{
		"waiting":           {errors.Join(Waiting("ports"), nil), false, time.Hour, v1.ReasonPending, false},
		"short":             {errors.Join(nil, capped), false, time.Hour, v1.ReasonExhausted, true},
		"waiting and short": {errors.Join(Waiting("ports"), capped), false, time.Hour, v1.ReasonExhausted, true},
		"waiting and away":  {errors.Join(Waiting("ports"), errors.Join(away)), true, 0, v1.ReasonSDN, true},
		"short and away":    {errors.Join(errors.Join(away, nil), capped), true, 0, v1.ReasonSDN, true},
		"in a bulk": {
			errors.Join(Waiting("ports"), &sdn.BulkError{Errs: []error{nil, away}}),
			true, 0, v1.ReasonSDN, true,
		},
		"one wrapped":     {fmt.Errorf("router: %w", Waiting("ports")), false, time.Hour, v1.ReasonPending, false},
		"behind":          {errors.Join(Waiting("ports"), behind), false, ConflictRetry, v1.ReasonInvalid, false},
		"behind and away": {errors.Join(behind, away), true, 0, v1.ReasonSDN, true},
		"away, asked to wait": {
			errors.Join(capped, &sdn.Error{Kind: sdn.KindUnavailable, RetryAfter: time.Minute}),
			false, time.Minute, v1.ReasonSDN, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			again, err := Result(time.Hour, row.err)
			if (err != nil) != row.fails || again.RequeueAfter != row.after {
				t.Errorf("it is tried again after %s, %v", again.RequeueAfter, err)
			}
			if is := ReasonOf(row.err); is != row.reason || HasFailure(row.err) != row.told {
				t.Errorf("reason %s, told %v", is, HasFailure(row.err))
			}
		})
	}
}
