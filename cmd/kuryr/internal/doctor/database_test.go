package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/reconcile"
)

func TestDatabase(t *testing.T) {
	t.Parallel()
	const path = "/var/lib/kuryr/docker.db"
	there := func(err error) reconcile.Health { return reconcile.Health{Exists: true, Err: err} }
	for name, test := range map[string]struct {
		facts   DatabaseFacts
		verdict Verdict // "" finds nothing
		what    string
	}{
		"none":    {DatabaseFacts{Path: path}, "", ""},
		"open":    {DatabaseFacts{Path: path, Running: true, Health: there(reconcile.ErrInUse)}, OK, "is whole"},
		"stopped": {DatabaseFacts{Path: path, Health: there(nil)}, OK, "is whole"},
		"held":    {DatabaseFacts{Path: path, Health: there(reconcile.ErrInUse)}, Problem, "open in another process"},
		"newer":   {DatabaseFacts{Path: path, Health: there(reconcile.ErrNewer)}, Problem, "later version"},
		"damaged": {DatabaseFacts{Path: path, Health: there(errors.New("damaged"))}, Problem, "cannot be read"},
		"full": {DatabaseFacts{Path: path, Running: true, Health: reconcile.Health{
			Exists: true, Err: reconcile.ErrInUse, Full: true,
		}}, Problem, "no room"},
		"replaced": {DatabaseFacts{Path: path, Running: true, Health: reconcile.Health{
			Exists: true, Err: reconcile.ErrInUse, Damaged: path + ".damaged",
		}}, Warning, "was damaged"},
	} {
		found := Database(test.facts)
		switch {
		case test.verdict == "" && len(found) == 0:
		case len(found) != 1 || found[0].Verdict != test.verdict || !strings.Contains(found[0].What, test.what):
			t.Errorf("%s: %+v", name, found)
		case found[0].Verdict != OK && found[0].Remediation == "":
			t.Errorf("%s: there is no remedy", name)
		}
	}
}
