package identity

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"
)

const (
	secretA = "aaaaaaaaaaaaaaaaaaaa"
	secretB = "bbbbbbbbbbbbbbbbbbbb"
)

// userLine is UserLine with a hash that takes little time.
func userLine(t *testing.T, name, project string, role Role, password string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("user %s %s %s %s", name, project, role, hash)
}

var quick = Parser{MinCost: bcrypt.MinCost}

func TestParse(t *testing.T) {
	t.Parallel()
	alice := userLine(t, "alice", "blue", Member, "correct horse")
	hash := alice[strings.LastIndexByte(alice, ' ')+1:]
	text := "# who may\n\n  token " + secretA + " blue admin ci\ntoken\t" + secretB + " red reader\n" +
		alice + "\nuser alice red reader " + hash + "\n"
	s, err := quick.Parse(strings.NewReader(text), "f")
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := s.Token(secretA); !ok || id.Name != "ci" || id.Project != "blue" || id.Role != Admin {
		t.Errorf("the first token is %+v, %v", id, ok)
	}
	if id, ok := s.Token(secretB); !ok || !strings.HasPrefix(id.Name, "token-") || id.Role != Reader ||
		strings.Contains(fmt.Sprint(id), secretB) {
		t.Errorf("the second token is %+v, %v", id, ok)
	}
	for _, wrong := range []string{"", "a", secretA[1:], secretA + "a", hash, "alice"} {
		if id, ok := s.Token(wrong); ok {
			t.Errorf("%q is %+v", wrong, id)
		}
	}
	ids, ok := s.Password("alice", "correct horse")
	if !ok || len(ids) != 2 || ids[0].Project != "blue" || ids[0].Role != Member ||
		ids[1].Project != "red" || ids[1].Role != Reader || ids[0].Credential != ids[1].Credential {
		t.Errorf("alice is %+v, %v", ids, ok)
	}
	if got := s.Of(ids[0].Credential); len(got) != 2 {
		t.Errorf("by her credential she is %+v", got)
	}
	for _, wrong := range [][2]string{
		{"alice", "correct hors"}, {"alice", ""}, {"alice", hash}, {"bob", "correct horse"},
		{"ci", secretA},
	} {
		if _, ok := s.Password(wrong[0], wrong[1]); ok {
			t.Errorf("%q is let in", wrong)
		}
	}
	if got := strings.Join(s.Projects(), " "); got != "blue red" || s.Len() != 3 {
		t.Errorf("projects %s, %d entries", got, s.Len())
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	alice := userLine(t, "alice", "blue", Member, "correct horse")
	other := userLine(t, "alice", "red", Member, "other horse")
	for name, tc := range map[string]struct{ text, want string }{
		"no role":     {"token " + secretA + " blue", ":1: want `token"},
		"bad role":    {"\n\ntoken " + secretA + " blue boss", ":3: the role must be"},
		"short":       {"token short blue admin", ":1: the token has 5"},
		"bad project": {"token " + secretA + " bl/ue admin", ":1: a project"},
		"bad name":    {"token " + secretA + " blue admin a/b", ":1: a name"},
		"word":        {"tokn " + secretA + " blue admin", ":1: want"},
		"twice": {
			"token " + secretA + " blue admin a\ntoken " + secretA + " red reader b",
			":2: the token is there already",
		},
		"name twice": {
			"token " + secretA + " blue admin a\ntoken " + secretB + " red reader a",
			":2: the name is taken by line 1",
		},
		"user as token":    {"token " + secretA + " blue admin alice\n" + alice, ":2: the name is taken by line 1"},
		"user twice":       {alice + "\n" + alice, ":2: the user has a line with this project"},
		"another password": {alice + "\n" + other, ":2: the user has another hash"},
		"plain password":   {"user alice blue member verysecretpassword", ":1: the last word is no hash"},
		"long line":        {"token " + strings.Repeat("a", 1<<17), "too long"},
	} {
		_, err := quick.Parse(strings.NewReader(tc.text), "f")
		if err == nil || !strings.HasPrefix(err.Error(), "f:") || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
			continue
		}
		for _, secret := range []string{secretA, "verysecretpassword", "$2a$"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error shows a secret: %v", name, err)
			}
		}
	}
}

// A hash that is too quick to check is refused, and so is one that would take too long.
func TestCosts(t *testing.T) {
	t.Parallel()
	weak := userLine(t, "alice", "blue", Member, "correct horse")
	for _, line := range []string{
		weak, strings.Replace(weak, "$04$", "$09$", 1), strings.Replace(weak, "$04$", "$15$", 1),
	} {
		if _, err := ParseTokens(strings.NewReader(line), "f"); err == nil ||
			!strings.Contains(err.Error(), "f:1: the hash has the cost") {
			t.Errorf("%s: %v", line, err)
		}
	}
	if _, err := ParseTokens(strings.NewReader(strings.Replace(weak, "$04$", "$10$", 1)), "f"); err != nil {
		t.Error(err)
	}
	line, err := UserLine("alice", "blue", Member, "correct horse")
	if err != nil {
		t.Fatal(err)
	}
	if s, err := ParseTokens(strings.NewReader(line), "f"); err != nil || s.Len() != 1 {
		t.Errorf("%s: %v", line, err)
	} else if _, ok := s.Password("alice", "correct horse"); !ok {
		t.Error("the line made does not let in")
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	line, secret, err := TokenLine("blue", Member, "")
	if err != nil {
		t.Fatal(err)
	}
	named, _, err := TokenLine("blue", Admin, "ci")
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseTokens(strings.NewReader(line+"\n"+named), "f")
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := s.Token(secret); !ok || id.Role != Member {
		t.Errorf("the new token is %+v, %v", id, ok)
	}
	for name, err := range map[string]error{
		"role":     second(TokenLine("blue", "boss", "")),
		"project":  second(TokenLine("", Admin, "")),
		"short":    first(UserLine("a", "b", Admin, "short")),
		"long":     first(UserLine("a", "b", Admin, strings.Repeat("x", 73))),
		"no name":  first(UserLine("", "b", Admin, "correct horse")),
		"new line": first(UserLine("a\nb", "b", Admin, "correct horse")),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func first(_ string, err error) error     { return err }
func second(_, _ string, err error) error { return err }

func put(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "tokens")
	log := slog.New(slog.DiscardHandler)
	if _, err := OpenTokens(path, log); !os.IsNotExist(err) {
		t.Errorf("a file that is not there: %v", err)
	}
	for _, mode := range []os.FileMode{0o644, 0o640, 0o620, 0o604, 0o660, 0o601} {
		put(t, path, "token "+secretA+" blue admin\n", mode)
		if _, err := OpenTokens(path, log); err == nil || !strings.Contains(err.Error(), "want 0600") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if _, err := OpenTokens(dir, log); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a folder: %v", err)
	}
	if os.Geteuid() == 0 {
		put(t, path, "", 0o600)
		if err := os.Chown(path, 12345, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenTokens(path, log); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
			t.Errorf("another's file: %v", err)
		}
	}
}

// A changed file is taken over at the next use; a spoilt one changes nothing, one that is
// gone or open to others lets no client in.
func TestFileChanges(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	line := func(secret string) string { return "token " + secret + " blue admin\n" }
	var log bytes.Buffer
	put(t, path, line(secretA), 0o600)
	f, err := OpenTokens(path, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	want := func(what, secret string, in bool) {
		t.Helper()
		if _, ok := f.Set().Token(secret); ok != in {
			t.Errorf("%s: %s is let in: %v", what, secret, ok)
		}
	}
	want("at first", secretA, true)
	put(t, path, line(secretB), 0o600) // of the same size, immediately
	want("changed", secretA, false)
	want("changed", secretB, true)
	put(t, path, line(secretA)+"nonsense\n", 0o600)
	want("spoilt", secretB, true)
	want("spoilt", secretA, false)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want("gone", secretB, false)
	put(t, path, line(secretB), 0o600)
	want("back", secretB, true)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	want("open to others", secretB, false)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	want("closed again", secretB, true)
	text := log.String()
	for _, said := range []string{"read again", "tokens:2: want", "its tokens are refused", "0644"} {
		if !strings.Contains(text, said) {
			t.Errorf("the log does not say %q:\n%s", said, text)
		}
	}
	if strings.Contains(text, secretA) || strings.Contains(text, secretB) {
		t.Errorf("the log holds a token:\n%s", text)
	}
}

// FuzzParse: whatever is in the file, only its lines let a client in.
func FuzzParse(f *testing.F) {
	f.Add("token " + secretA + " blue admin ci\n")
	f.Add("user a b admin $2a$11$abcdefghijklmnopqrstuuXOZbvvkNMRVN2Fvmf5bNyJyBdx8Z6Qe\n")
	f.Add("# x\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseTokens(strings.NewReader(text), "f")
		if err != nil {
			return
		}
		for _, all := range s.byCredential {
			for _, id := range all {
				if id.Project == "" || id.Name == "" || id.Role != Admin && id.Role != Member && id.Role != Reader {
					t.Errorf("%q lets in %+v", text, id)
				}
			}
		}
		if id, ok := s.Token(""); ok {
			t.Errorf("%q lets in nobody as %+v", text, id)
		}
	})
}
