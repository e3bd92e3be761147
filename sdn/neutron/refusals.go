package neutron

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/sdn"
)

// refusalBackoff is until credentials that Keystone has refused are sent again.
var refusalBackoff = backoff.Backoff{Min: time.Minute, Max: 5 * time.Minute}

// refusals keep credentials that Keystone has refused from being sent with every call: many a Keystone locks an account after a few attempts, and
// nobody gets in by it then. Until the pause is over all calls fail with what Keystone said. Other credentials are sent at once. It is for one authentication at
// a time.
type refusals struct {
	of    gophercloud.AuthOptions
	last  *sdn.Error // nil: the last answer was no refusal
	times int        // in a row
	until time.Time
}

// allow refuses an authentication that would be refused.
func (r *refusals) allow(auth gophercloud.AuthOptions, now time.Time) error {
	if r.last == nil || !reflect.DeepEqual(auth, r.of) {
		return nil
	}
	left := r.until.Sub(now)
	if left <= 0 {
		return nil
	}
	e := *r.last
	e.RetryAfter = left
	return &e
}

// done tells how an authentication ended and gives its error, with when it is tried again. A Keystone that has not answered has neither taken the credentials
// nor refused them.
func (r *refusals) done(auth gophercloud.AuthOptions, now time.Time, err error) error {
	var e *sdn.Error
	switch {
	case err == nil:
		r.last = nil
	case errors.As(err, &e) && (e.Kind == sdn.KindDenied || e.Field == "auth"):
		if r.last == nil || !reflect.DeepEqual(auth, r.of) {
			r.times = 0
		}
		r.times++
		r.of, r.until = auth, now.Add(refusalBackoff.After(r.times))
		last := *e
		last.Detail += fmt.Sprintf("; the same are tried again at %s, others at once", r.until.Format(time.TimeOnly))
		r.last = &last
		return &last
	}
	return err
}

// credentials says whose they are, without a secret.
func credentials(auth gophercloud.AuthOptions) string {
	switch {
	case auth.TokenID != "":
		return "the token that was given"
	case auth.ApplicationCredentialSecret != "":
		return fmt.Sprintf("the application credential %q", cmp.Or(auth.ApplicationCredentialID, auth.ApplicationCredentialName))
	}
	return fmt.Sprintf("the password of user %q", cmp.Or(auth.Username, auth.UserID))
}
