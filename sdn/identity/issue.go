package identity

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"slices"
	"time"
)

// asked is a request for a token.
type asked struct {
	Auth struct {
		Identity struct {
			Methods  []string `json:"methods"`
			Password struct {
				User struct {
					ID       string `json:"id"`
					Name     string `json:"name"`
					Password string `json:"password"`
					Domain   *ref   `json:"domain"`
				} `json:"user"`
			} `json:"password"`
			Token struct {
				ID string `json:"id"`
			} `json:"token"`
		} `json:"identity"`
		Scope json.RawMessage `json:"scope"`
	} `json:"auth"`
}

// scope is the project that a token is asked for, "" for the first there is. ok is false
// where no user has a role: a domain, the system, a trust.
func (a asked) scope() (project string, ok bool) {
	raw := bytes.TrimSpace(a.Auth.Scope)
	if len(raw) == 0 || string(raw) == "null" || string(raw) == `"unscoped"` {
		return "", true
	}
	var scope map[string]json.RawMessage
	var p ref
	if json.Unmarshal(raw, &scope) != nil || len(scope) != 1 ||
		json.Unmarshal(scope["project"], &p) != nil || !p.Domain.matches() {
		return "", false
	}
	if p.ID != "" {
		return p.ID, p.Name == "" || p.Name == p.ID
	}
	return p.Name, p.Name != ""
}

// user is whose password is shown; "" where none is.
func (a asked) user() string {
	user := a.Auth.Identity.Password.User
	return shorten(cmp.Or(user.ID, user.Name))
}

// shorten cuts what no name can be off.
func shorten(s string) string { return s[:min(len(s), 65)] }

// issue answers POST /v3/auth/tokens.
func (s *Service) issue(w http.ResponseWriter, r *http.Request) {
	var a asked
	if err := decode(r, &a); err != nil {
		s.Refuse(w, r, http.StatusBadRequest, "Expecting to find a JSON object with auth in request body.")
		return
	}
	methods := a.Auth.Identity.Methods
	if len(methods) != 1 || methods[0] != "token" && methods[0] != "password" {
		if len(methods) == 0 {
			s.Refuse(
				w, r, http.StatusBadRequest,
				"Expecting to find identity in auth. The server could not comply with the request since "+
					"it is either malformed or otherwise incorrect.",
			)
			return
		}
		s.Refuse(w, r, http.StatusUnauthorized, "Attempted to authenticate with an unsupported method.")
		return
	}
	now := s.now()
	ids, got := s.authenticate(r.Context(), a)
	project, ok := a.scope()
	var id Identity
	if ok {
		id, ok = in(ids, project)
	}
	if !ok {
		s.log.WarnContext(
			r.Context(), "a token of the API was refused", "user", a.user(), "project", shorten(project),
			"method", methods[0], "peer", r.RemoteAddr,
		)
		s.Refuse(w, r, http.StatusUnauthorized, "")
		return
	}
	g := grant{
		Identity: id, issued: now.Truncate(time.Second), expires: now.Truncate(time.Second).Add(Lifetime),
		audit: rand.Text(), methods: methods,
	}
	if got.audit != "" && got.expires.Before(g.expires) { // an exchange does not make it last longer
		g.expires, g.methods = got.expires, slices.Compact(append([]string{"token"}, got.methods...))
	}
	token, err := s.signer.seal(claim{g.Credential, g.Project, g.issued.Unix(), g.expires.Unix(), g.audit, g.methods})
	if err != nil {
		s.Refuse(w, r, http.StatusInternalServerError, "The token cannot be made.")
		return
	}
	view := viewOf(g)
	if !r.URL.Query().Has("nocatalog") {
		view.Catalog = catalog(s.base(r))
	}
	s.log.InfoContext(
		r.Context(), "a token of the API was issued", "user", g.Name, "project", g.Project,
		"role", g.Role, "method", methods[0], "peer", r.RemoteAddr,
	)
	w.Header().Set("X-Subject-Token", token)
	answer(w, http.StatusCreated, map[string]tokenView{"token": view})
}

// authenticate gives all that a client is, none where it has not proved it, and what it
// has shown where that was a token.
func (s *Service) authenticate(ctx context.Context, a asked) ([]Identity, grant) {
	identity := a.Auth.Identity
	if identity.Methods[0] == "token" {
		g, ok := s.grant(identity.Token.ID)
		if !ok {
			return nil, g
		}
		return s.tokens().Of(g.Credential), g
	}
	user, name := identity.Password.User, a.user()
	if name == "" || user.Domain != nil && !user.Domain.matches() {
		return nil, grant{}
	}
	select {
	case s.passwords <- struct{}{}:
		defer func() { <-s.passwords }()
	case <-ctx.Done():
		return nil, grant{}
	}
	ids, _ := s.tokens().Password(name, user.Password)
	return ids, grant{}
}
