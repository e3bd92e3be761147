package neutron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sync/singleflight"
)

const (
	authTimeout = 30 * time.Second // of one authentication
	renewAhead  = 2 * time.Minute  // how long before its end a token is renewed
	aheadShare  = 4                // but at most this part of its life
)

// A session is the result of one authentication. It does not change; a renewed token is
// another session.
type session struct {
	token    string    // "" if Neutron wants none
	endpoint string    // Neutron's, with "/v2.0" and no slash at its end
	octavia  string    // Octavia's, without a version; "" where none is known
	project  string    // that the token is for; "" where the SDN wants none
	expires  time.Time // zero: never
	renewal  time.Time // when another one is requested
}

// An authenticator returns sessions. It authenticates for the first, renews one before it
// ends, and replaces one that Neutron has refused. The next call repeats a failed
// authentication, but not immediately if Keystone refused the credentials (refusals).
// Concurrent calls share an authentication, which continues if one of them gives up.
//
// Its errors are IsUnavailable, whatever the cause: Neutron has not judged the call,
// which may be repeated with a session.
type authenticator struct {
	config   Config
	http     http.Client
	now      func() time.Time
	breaker  *breaker
	refusals refusals
	observe  func(Request)
	log      *slog.Logger

	flight  singleflight.Group
	mu      sync.Mutex
	current *session
	outage  outage
}

// repeatWarning is how often a lasting failure is logged.
const repeatWarning = 10 * time.Minute

// outage is what was logged of failed authentications in a row.
type outage struct {
	failures int
	detail   string    // of the failure that was logged last
	logged   time.Time // when that was
}

// session returns the current session, or the first.
func (a *authenticator) session(ctx context.Context) (*session, error) {
	a.mu.Lock()
	s := a.current
	a.mu.Unlock()
	if s == nil {
		return a.renew(ctx, nil)
	}
	now := a.now()
	if s.expires.IsZero() || now.Before(s.renewal) {
		return s, nil
	} else if now.Before(s.expires) {
		a.start(s) // the token is good for this call
		return s, nil
	}
	return a.renew(ctx, s)
}

// project returns that of the current session, "" before the first.
func (a *authenticator) project() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current == nil {
		return ""
	}
	return a.current.project
}

// renew returns another session than stale.
func (a *authenticator) renew(ctx context.Context, stale *session) (*session, error) {
	for {
		select {
		case r := <-a.start(stale):
			if r.Err != nil {
				return nil, r.Err
			}
			if s := r.Val.(*session); s != stale { // it may be the flight of an earlier call
				return s, nil
			}
		case <-ctx.Done():
			return nil, sdn.Unavailable(context.Cause(ctx), "Keystone", "the authentication has not ended in time")
		}
	}
}

func (a *authenticator) start(stale *session) <-chan singleflight.Result {
	return a.flight.DoChan("", func() (any, error) {
		a.mu.Lock()
		s := a.current
		a.mu.Unlock()
		if s != nil && s != stale {
			return s, nil
		}
		s, err := a.authenticate()
		if err != nil {
			return nil, noSession(err)
		}
		a.mu.Lock()
		a.current = s
		a.mu.Unlock()
		return s, nil
	})
}

func (a *authenticator) authenticate() (*session, error) {
	c, err := a.config.resolve()
	if err != nil {
		return nil, err
	}
	if c.none {
		return &session{
			endpoint: normalise(c.endpoint), octavia: octaviaRoot(c.octavia), project: a.config.unasked(),
		}, nil
	}
	if err := a.refusals.allow(c.auth, a.now()); err != nil {
		return nil, err
	}
	if err := a.breaker.allow(); err != nil {
		return nil, err
	}
	begin := a.now()
	s, err := a.keystone(c)
	status := http.StatusOK
	if err != nil {
		status = 0
		var refused gophercloud.ErrUnexpectedResponseCode
		if errors.As(err, &refused) {
			status = refused.Actual
		}
	}
	a.observe(Request{Method: http.MethodPost, Collection: "tokens", Status: status, Duration: a.now().Sub(begin)})
	err = keystoneError(err, redactURL(c.auth.IdentityEndpoint), c.auth)
	a.breaker.done(sdn.IsUnavailable(err), err)
	err = a.refusals.done(c.auth, a.now(), err)
	a.report(err)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// report logs the first failure of an outage, another reason, a repeated reminder, and the end.
func (a *authenticator) report(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := &a.outage
	if err == nil {
		if o.failures > 0 {
			a.log.Info("Keystone gives sessions again", "failures", o.failures)
		}
		*o = outage{}
		return
	}
	o.failures++
	detail := err.Error()
	if e := (*sdn.Error)(nil); errors.As(err, &e) {
		detail = e.Detail // the cause has the port of the connection
	}
	if now := a.now(); detail != o.detail || now.Sub(o.logged) >= repeatWarning {
		o.detail, o.logged = detail, now
		a.log.Warn("Keystone gives no session", "err", err, "failures", o.failures)
	}
}

// noSession returns an error that IsUnavailable for any error. Users may see what is
// wrong with this machine's files.
func noSession(err error) error {
	var e *sdn.Error
	if !errors.As(err, &e) {
		return sdn.Unavailable(err, "Keystone", "there is no session")
	}
	if e.Kind == sdn.KindUnavailable {
		return err
	}
	same := *e
	same.Kind, same.Err = sdn.KindUnavailable, sdn.OfHost(e.Err)
	return &same
}

func (a *authenticator) keystone(c cloud) (*session, error) {
	ctx, cancel := context.WithTimeout(context.Background(), authTimeout)
	defer cancel()
	provider, err := openstack.NewClient(c.auth.IdentityEndpoint)
	if err != nil {
		return nil, err
	}
	provider.HTTPClient = a.http
	provider.UserAgent.Prepend(Agent)
	if err := openstack.AuthenticateV3(ctx, provider, &c.auth, gophercloud.EndpointOpts{}); err != nil {
		return nil, err
	}
	s := &session{token: provider.Token(), endpoint: normalise(c.endpoint)}
	catalog, err := s.read(provider.GetAuthResult(), a.now())
	if err != nil {
		return s, err
	}
	s.octavia = octaviaRoot(cmp.Or(c.octavia, catalogEndpoint(catalog, "load-balancer", c.where)))
	if s.endpoint != "" {
		return s, nil
	}
	endpoint := catalogEndpoint(catalog, "network", c.where)
	if endpoint == "" {
		return nil, sdn.Invalid("configuration", "endpoint", "Keystone's catalogue has no network service (region %q, interface %q)", c.where.Region, c.where.Availability)
	}
	s.endpoint = normalise(endpoint)
	return s, nil
}

// catalogEndpoint returns a service's address in a catalogue, "" if there is none.
// gophercloud's own search asks Neutron for its versions, and so fails while Neutron is
// unavailable.
func catalogEndpoint(catalog *tokens.ServiceCatalog, service string, where gophercloud.EndpointOpts) string {
	for _, entry := range catalog.Entries {
		if entry.Type != service {
			continue
		}
		for _, e := range entry.Endpoints {
			if gophercloud.Availability(e.Interface) == where.Availability && (where.Region == "" || where.Region == e.Region || where.Region == e.RegionID) {
				return e.URL
			}
		}
	}
	return ""
}

// read takes project, end and catalogue from an answer of Keystone's.
func (s *session) read(
	result gophercloud.AuthResult, now time.Time,
) (*tokens.ServiceCatalog, error) {
	answer, ok := result.(interface {
		ExtractToken() (*tokens.Token, error)
		ExtractProject() (*tokens.Project, error)
		ExtractServiceCatalog() (*tokens.ServiceCatalog, error)
	})
	if !ok {
		return nil, errors.New("the answer is not that of the identity API version 3")
	}
	token, err := answer.ExtractToken()
	if err != nil {
		return nil, err
	}
	s.expires = token.ExpiresAt
	s.renewal = s.expires.Add(-min(renewAhead, s.expires.Sub(now)/aheadShare))
	if project, err := answer.ExtractProject(); err == nil && project != nil {
		s.project = project.ID
	}
	return answer.ExtractServiceCatalog()
}

// normalise returns Neutron's address with the version and without a slash at its end.
func normalise(endpoint string) string {
	endpoint = strings.TrimRight(endpoint, "/")
	if endpoint == "" || strings.HasSuffix(endpoint, "/v2.0") {
		return endpoint
	}
	return endpoint + "/v2.0"
}

// refusalBackoff is the pause until refused credentials are sent again.
var refusalBackoff = backoff.Backoff{Min: time.Minute, Max: 5 * time.Minute}

// refusals keep refused credentials from being sent with every call: many Keystones lock
// an account after a few attempts. Until the pause is over all calls fail with Keystone's
// message. Other credentials are sent immediately. It serves one authentication at a
// time.
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

// done notes the end of an authentication and returns its error, with the time of the
// next attempt. A Keystone that has not answered has not refused the credentials.
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

// credentials names the owner of credentials, without a secret.
func credentials(auth gophercloud.AuthOptions) string {
	switch {
	case auth.TokenID != "":
		return "the token that was given"
	case auth.ApplicationCredentialSecret != "":
		name := cmp.Or(auth.ApplicationCredentialID, auth.ApplicationCredentialName)
		return fmt.Sprintf("the application credential %q", name)
	}
	return fmt.Sprintf("the password of user %q", cmp.Or(auth.Username, auth.UserID))
}
