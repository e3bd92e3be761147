package identity

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/crypto/bcrypt"
)

// Role is what one may do.
type Role string

// The roles, as Neutron's policy knows them.
const (
	Admin  Role = "admin"
	Member Role = "member"
	Reader Role = "reader"
)

// Roles are all there are.
var Roles = []Role{Admin, Member, Reader}

// Identity is who a client is.
type Identity struct {
	Name    string // of the user or the token; unique in a file
	Project string
	Role    Role
	// Credential identifies the token or password that was shown, and changes
	// with the secret. It is no secret itself.
	Credential string
}

// Limits of the file.
const (
	minSecret, maxSecret = 16, 255
	maxFile              = 4 << 20
	maxPassword          = 72 // what bcrypt takes
	minCost, maxCost     = 10, 14
)

// A TokenSet is what a file says. It does not change.
type TokenSet struct {
	byToken      map[[sha256.Size]byte]Identity
	users        map[string]user
	byCredential map[string][]Identity // in the order of the file
	projects     []string              // sorted

	minCost, cost int // of the users' hashes: the least that is taken, the highest there is
}

type user struct {
	hash       []byte
	credential string
}

var (
	wordForm   = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,64}$`)
	secretForm = regexp.MustCompile(fmt.Sprintf(`^[!-~]{%d,%d}$`, minSecret, maxSecret))
)

// ParseTokens reads a file's text; name is the file's, for errors, which name the line too.
func ParseTokens(r io.Reader, name string) (*TokenSet, error) { return Parser{}.Parse(r, name) }

// A Parser is Parse with other rules.
type Parser struct {
	// MinCost is the least cost of a password's hash; 0 is 10. Less is for tests, which check many.
	MinCost int
}

// Parse is the function Parse, by these rules.
func (p Parser) Parse(r io.Reader, name string) (*TokenSet, error) {
	s := &TokenSet{
		minCost: cmp.Or(p.MinCost, minCost), byToken: map[[sha256.Size]byte]Identity{},
		users: map[string]user{}, byCredential: map[string][]Identity{},
	}
	lines := bufio.NewScanner(io.LimitReader(r, maxFile+1))
	names, size := map[string]int{}, 0
	for n := 1; lines.Scan(); n++ {
		if size += len(lines.Bytes()) + 1; size > maxFile {
			return nil, fmt.Errorf("%s: is larger than %d bytes", name, maxFile)
		}
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if err := s.line(fields, names, n); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, all := range s.byCredential {
		for _, id := range all {
			s.projects = append(s.projects, id.Project)
		}
	}
	slices.Sort(s.projects)
	s.projects = slices.Compact(s.projects)
	return s, nil
}

// line takes one line over. Its errors quote no field that may be a secret in the wrong place.
func (s *TokenSet) line(fields []string, names map[string]int, n int) error {
	switch {
	case fields[0] == "token" && (len(fields) == 4 || len(fields) == 5):
		return s.token(fields[1:], names, n)
	case fields[0] == "user" && len(fields) == 5:
		return s.user(fields[1:], names, n)
	}
	return fmt.Errorf(
		"want `token SECRET PROJECT ROLE [NAME]` or `user NAME PROJECT ROLE HASH`; this has %d words",
		len(fields),
	)
}

func (s *TokenSet) token(fields []string, names map[string]int, n int) error {
	secret := fields[0]
	if !secretForm.MatchString(secret) {
		return fmt.Errorf(
			"the token has %d characters, or others than printable ones: want %d to %d", len(secret),
			minSecret, maxSecret,
		)
	}
	sum := sha256.Sum256([]byte(secret))
	if _, twice := s.byToken[sum]; twice {
		return fmt.Errorf("the token is there already, in an earlier line")
	}
	id := Identity{Credential: credential("token", secret)}
	id.Name = "token-" + id.Credential[:8]
	if len(fields) == 4 {
		id.Name = fields[3]
	}
	if before, taken := names[id.Name]; taken {
		return fmt.Errorf("the name is taken by line %d", before)
	}
	if err := id.place(fields[1], fields[2]); err != nil {
		return err
	}
	names[id.Name] = n
	s.byToken[sum] = id
	s.byCredential[id.Credential] = []Identity{id}
	return nil
}

func (s *TokenSet) user(fields []string, names map[string]int, n int) error {
	name, hash := fields[0], fields[3]
	cost, err := bcrypt.Cost([]byte(hash))
	switch {
	case err != nil:
		return fmt.Errorf("the last word is no hash of a password by bcrypt; `kuryr sdn password` makes the line")
	case cost < s.minCost || cost > maxCost:
		return fmt.Errorf("the hash has the cost %d: want %d to %d", cost, s.minCost, maxCost)
	}
	id := Identity{Name: name, Credential: credential("user", name, hash)}
	if err := id.place(fields[1], fields[2]); err != nil {
		return err
	}
	known, more := s.users[name]
	switch {
	case more && string(known.hash) != hash:
		return fmt.Errorf("the user has another hash in an earlier line")
	case more &&
		slices.ContainsFunc(
			s.byCredential[id.Credential], func(o Identity) bool { return o.Project == id.Project },
		):
		return fmt.Errorf("the user has a line with this project already")
	case !more && names[name] != 0:
		return fmt.Errorf("the name is taken by line %d", names[name])
	}
	names[name], s.cost = n, max(s.cost, cost)
	s.users[name] = user{[]byte(hash), id.Credential}
	s.byCredential[id.Credential] = append(s.byCredential[id.Credential], id)
	return nil
}

// place sets project and role.
func (id *Identity) place(project, role string) error {
	if !wordForm.MatchString(id.Name) {
		return fmt.Errorf("a name must be 1 to 64 of a-z, A-Z, 0-9 and . _ @ -")
	}
	if !wordForm.MatchString(project) {
		return fmt.Errorf("a project must be 1 to 64 of a-z, A-Z, 0-9 and . _ @ -")
	}
	id.Project, id.Role = project, Role(role)
	if !slices.Contains(Roles, id.Role) {
		return fmt.Errorf("the role must be admin, member or reader")
	}
	return nil
}

func credential(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// Token gives who has a token. Hashes are compared, so that the time it takes
// tells nothing of the token.
func (s *TokenSet) Token(secret string) (Identity, bool) {
	id, ok := s.byToken[sha256.Sum256([]byte(secret))]
	return id, ok
}

// Password gives all that a user is, the default first, if the password is right. It
// takes tens of milliseconds of a processor, as long for a user that is not there.
func (s *TokenSet) Password(name, password string) ([]Identity, bool) {
	u, known := s.users[name]
	if !known {
		u.hash = decoy(s.cost)
	}
	err := bcrypt.CompareHashAndPassword(u.hash, []byte(password))
	if !known || err != nil || len(password) > maxPassword {
		return nil, false
	}
	return slices.Clone(s.byCredential[u.credential]), true
}

// Of gives all that the holder of a credential is; none where the file does not have it any more.
func (s *TokenSet) Of(credential string) []Identity { return slices.Clone(s.byCredential[credential]) }

// Projects are all that the file names, sorted.
func (s *TokenSet) Projects() []string { return slices.Clone(s.projects) }

// Len is how many tokens and users there are.
func (s *TokenSet) Len() int { return len(s.byCredential) }
