package identity

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// maxBody is of a request to this API.
const maxBody = 64 << 10

// ServeHTTP serves /v3 and what is below it, and the same below /identity.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if rest, below := strings.CutPrefix(r.URL.Path, "/identity"); below && (rest == "" || rest[0] == '/') {
		inner := r.Clone(r.Context())
		inner.URL.Path, inner.URL.RawPath = rest, ""
		r = inner
	}
	if path := strings.TrimRight(r.URL.Path, "/"); path != r.URL.Path {
		inner := r.Clone(r.Context())
		inner.URL.Path, inner.URL.RawPath = path, ""
		r = inner
	}
	if r.URL.Path == "" {
		answer(w, http.StatusMultipleChoices, map[string]any{"versions": map[string]any{
			"values": []version{versionAt(s.base(r) + "/v3/")},
		}})
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	s.mux.ServeHTTP(w, r)
}

func (s *Service) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v3", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, map[string]version{"version": versionAt(s.base(r) + "/v3/")})
	})
	mux.HandleFunc("POST /v3/auth/tokens", s.issue)
	mux.HandleFunc("GET /v3/auth/tokens", s.known(s.show))
	mux.HandleFunc("DELETE /v3/auth/tokens", s.known(s.revoke))
	mux.HandleFunc("GET /v3/auth/catalog", s.known(func(w http.ResponseWriter, r *http.Request, _ grant) {
		answer(w, http.StatusOK, map[string]any{"catalog": catalog(s.base(r)), "links": links{Self: s.base(r) + r.URL.Path}})
	}))
	mux.HandleFunc("GET /v3/auth/projects", s.known(s.own))
	mux.HandleFunc("GET /v3/auth/domains", s.known(func(w http.ResponseWriter, r *http.Request, _ grant) {
		list(w, s.base(r)+r.URL.Path, "domains", []ref{*domain})
	}))
	mux.HandleFunc("GET /v3/projects", s.known(s.projects))
	mux.HandleFunc("GET /v3/projects/{id}", s.known(s.project))
	mux.HandleFunc("GET /v3/domains", s.known(func(w http.ResponseWriter, r *http.Request, _ grant) {
		list(w, s.base(r)+r.URL.Path, "domains", filtered(
			r.URL.Query(), []ref{*domain}, func(d ref) (string, string) { return d.ID, d.Name },
		))
	}))
	mux.HandleFunc("GET /v3/domains/{id}", s.known(func(w http.ResponseWriter, r *http.Request, _ grant) {
		if r.PathValue("id") != domainID {
			s.missing(w, r, "domain", r.PathValue("id"))
			return
		}
		answer(w, http.StatusOK, map[string]any{"domain": domain})
	}))
	mux.HandleFunc("GET /v3/users/{id}", s.known(func(w http.ResponseWriter, r *http.Request, g grant) {
		if r.PathValue("id") != g.Name {
			s.missing(w, r, "user", r.PathValue("id"))
			return
		}
		answer(w, http.StatusOK, map[string]any{"user": map[string]any{
			"id": g.Name, "name": g.Name, "domain_id": domainID, "enabled": true,
		}})
	}))
	mux.HandleFunc("GET /v3/users/{id}/projects", s.known(func(w http.ResponseWriter, r *http.Request, g grant) {
		if r.PathValue("id") != g.Name {
			s.missing(w, r, "user", r.PathValue("id"))
			return
		}
		s.own(w, r, g)
	}))
	s.serveAbsent(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.Refuse(w, r, http.StatusNotFound, "The resource could not be found.")
	})
	return mux
}

// hostForm is what a client may call this machine; anything else is not repeated to it.
var hostForm = regexp.MustCompile(`^[A-Za-z0-9._:\[\]-]{1,255}$`)

// base is the address by which the client has come.
func (s *Service) base(r *http.Request) string {
	host := r.Host
	if !hostForm.MatchString(host) {
		host = "localhost"
	}
	return s.scheme + "://" + host
}

// known lets in who shows a token that holds.
func (s *Service) known(next func(http.ResponseWriter, *http.Request, grant)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g, ok := s.grant(r.Header.Get("X-Auth-Token"))
		if !ok {
			s.Refuse(w, r, http.StatusUnauthorized, "")
			return
		}
		next(w, r, g)
	}
}

func (s *Service) missing(w http.ResponseWriter, r *http.Request, noun, id string) {
	s.Refuse(w, r, http.StatusNotFound, "Could not find "+noun+": "+id+".")
}

// subject is the token that is asked about: one's own, and any for an administrator.
func (s *Service) subject(w http.ResponseWriter, r *http.Request, g grant) (grant, bool) {
	about, ok := s.grant(r.Header.Get("X-Subject-Token"))
	switch {
	case !ok:
		s.Refuse(w, r, http.StatusNotFound, "Could not find token.")
	case about.Credential != g.Credential && g.Role != Admin:
		s.Refuse(w, r, http.StatusForbidden, "You are not authorized to perform the requested action.")
		return about, false
	}
	return about, ok
}

func (s *Service) show(w http.ResponseWriter, r *http.Request, g grant) {
	about, ok := s.subject(w, r, g)
	if !ok {
		return
	}
	view := viewOf(about)
	if !r.URL.Query().Has("nocatalog") {
		view.Catalog = catalog(s.base(r))
	}
	w.Header().Set("X-Subject-Token", r.Header.Get("X-Subject-Token"))
	answer(w, http.StatusOK, map[string]tokenView{"token": view})
}

func (s *Service) revoke(w http.ResponseWriter, r *http.Request, g grant) {
	about, ok := s.subject(w, r, g)
	switch {
	case !ok:
		return
	case about.audit == "":
		s.Refuse(w, r, http.StatusForbidden, "This token is one of the token file: it ends when its line is taken out.")
		return
	}
	if err := s.revoked.add(about.Credential, about.audit, about.expires, s.now()); err != nil {
		s.log.WarnContext(r.Context(), "a token is not revoked", "err", err)
		s.Refuse(w, r, http.StatusServiceUnavailable, "The token could not be revoked.")
		return
	}
	s.log.InfoContext(
		r.Context(), "a token of the API was revoked", "user", about.Name, "project", about.Project,
		"by", g.Name, "peer", r.RemoteAddr,
	)
	w.WriteHeader(http.StatusNoContent)
}

// own lists the caller's own projects.
func (s *Service) own(w http.ResponseWriter, r *http.Request, g grant) {
	var all []projectView
	for _, id := range s.tokens().Of(g.Credential) {
		all = append(all, projectOf(id.Project, s.base(r)))
	}
	list(w, s.base(r)+r.URL.Path, "projects", all)
}

// visible are all projects for an administrator, and one's own for others.
func (s *Service) visible(g grant) (names []string) {
	set := s.tokens()
	if g.Role == Admin {
		return set.Projects()
	}
	for _, id := range set.Of(g.Credential) {
		names = append(names, id.Project)
	}
	return names
}

func (s *Service) projects(w http.ResponseWriter, r *http.Request, g grant) {
	all := []projectView{}
	for _, name := range s.visible(g) {
		all = append(all, projectOf(name, s.base(r)))
	}
	list(w, s.base(r)+r.URL.Path, "projects", filtered(
		r.URL.Query(), all, func(p projectView) (string, string) { return p.ID, p.Name },
	))
}

func (s *Service) project(w http.ResponseWriter, r *http.Request, g grant) {
	id := r.PathValue("id")
	if !slices.Contains(s.visible(g), id) {
		s.missing(w, r, "project", id)
		return
	}
	answer(w, http.StatusOK, map[string]projectView{"project": projectOf(id, s.base(r))})
}

// filtered keeps what has the name and the domain that a query asks for.
func filtered[T any](query url.Values, all []T, identity func(T) (id, name string)) []T {
	return slices.DeleteFunc(all, func(v T) bool {
		id, name := identity(v)
		return query.Has("name") && query.Get("name") != name || query.Has("id") && query.Get("id") != id ||
			query.Has("domain_id") && query.Get("domain_id") != domainID || query.Get("enabled") == "false"
	})
}

func list[T any](w http.ResponseWriter, self, noun string, all []T) {
	if all == nil {
		all = []T{}
	}
	answer(w, http.StatusOK, map[string]any{noun: all, "links": map[string]any{
		"self": self, "next": nil, "previous": nil,
	}})
}

// decode reads a body that is one JSON object.
func decode(r *http.Request, into any) error {
	var body bytes.Buffer
	if _, err := body.ReadFrom(r.Body); err != nil {
		return err
	}
	return json.Unmarshal(body.Bytes(), into)
}
