package identity

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"
)

// Lifetime is how long an issued token holds.
const Lifetime = time.Hour

// passwordsAtOnce bounds the processors that checking passwords takes.
const passwordsAtOnce = 2

// Config is what a Service stands on.
type Config struct {
	// Tokens is what the token file says now.
	Tokens func() *TokenSet
	// Key signs what is issued: 32 secret bytes. See LoadKey.
	Key []byte
	// RevokedPath is the file that keeps what was revoked before its end; "" forgets it with
	// the process.
	RevokedPath string
	// Scheme is that of the addresses in the catalogue: "https", or "http" for development.
	// The rest of them is as the client has it.
	Scheme string
	Logger *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// A Service knows who has which token. Its methods may be called concurrently.
type Service struct {
	tokens    func() *TokenSet
	scheme    string
	log       *slog.Logger
	now       func() time.Time
	signer    signer
	revoked   *revoked
	passwords chan struct{} // holds one for each that is being checked
	mux       *http.ServeMux
}

// New makes a Service. The revoked tokens are read from their file, which need not exist.
func New(c Config) (*Service, error) {
	if len(c.Key) != keySize {
		return nil, errors.New("a key of 32 bytes is needed")
	}
	s := &Service{
		tokens: c.Tokens, scheme: cmp.Or(c.Scheme, "https"), log: c.Logger, now: c.Now, signer: c.Key,
		passwords: make(chan struct{}, passwordsAtOnce),
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if s.revoked, err = loadRevoked(c.RevokedPath, s.now()); err != nil {
		return nil, err
	}
	s.mux = s.routes()
	return s, nil
}

// Identify tells who shows a token: one of the token file, or one issued and neither at
// its end nor revoked.
func (s *Service) Identify(token string) (Identity, bool) {
	g, ok := s.grant(token)
	return g.Identity, ok
}

// grant is what a token gives.
type grant struct {
	Identity
	issued, expires time.Time
	audit           string   // tells issued tokens apart; "" for one of the file
	methods         []string // by which it was got
}

func (s *Service) grant(token string) (grant, bool) {
	now := s.now()
	set := s.tokens()
	if id, ok := set.Token(token); ok {
		return grant{Identity: id, issued: now, expires: now.Add(Lifetime), methods: []string{"token"}}, true
	}
	c, ok := s.signer.open(token)
	if !ok || !now.Before(c.expires()) || s.revoked.has(c.Credential, c.Audit) {
		return grant{}, false
	}
	for _, id := range set.Of(c.Credential) {
		if id.Project == c.Project {
			return grant{id, c.issued(), c.expires(), c.Audit, c.Methods}, true
		}
	}
	return grant{}, false
}

// in gives who a client is in the project it asks for, or in its first one where it asks for none.
func in(ids []Identity, project string) (Identity, bool) {
	i := slices.IndexFunc(ids, func(id Identity) bool { return project == "" || id.Project == project })
	if i < 0 {
		return Identity{}, false
	}
	return ids[i], true
}
