package neutronapi

import (
	"context"
	"net/http"
)

// Role says what a caller may do.
type Role string

// The roles.
const (
	Admin  Role = "admin"  // sees and changes everything
	Member Role = "member" // sees and changes what is its project's, and sees and uses what is shared
	Reader Role = "reader" // sees what a member sees, changes nothing
)

// Caller is who asks. Whoever serves the handler finds out, and puts it into the request's context; a request without one is refused.
type Caller struct {
	// Project is whose what the caller makes is. Only an administrator may have none (""): such objects belong to no project.
	Project string
	Role    Role
	Name    string // for the audit log; may be empty
}

// valid tells whether c can be told from others: what belongs to no project is no member's.
func (c Caller) valid() bool {
	return c.Role == Admin || c.Project != "" && (c.Role == Member || c.Role == Reader)
}

// admin tells whether c may do everything.
func (c Caller) admin() bool { return c.Role == Admin }

type callerKey struct{}

// WithCaller is the context of a request of c's.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf gives who asks, and whether that is known.
func CallerOf(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// As serves every request as c's: what comes in by a socket that nobody else can open.
func As(c Caller, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(WithCaller(r.Context(), c)))
	})
}
