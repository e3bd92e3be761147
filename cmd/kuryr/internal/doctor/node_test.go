package doctor

import (
	"errors"
	"testing"
)

func TestNode(t *testing.T) {
	for _, row := range []struct {
		facts NodeFacts
		want  Verdict
		n     int
	}{
		{NodeFacts{Socket: "/s"}, OK, 0},
		{NodeFacts{There: true, Answers: true}, OK, 1},
		{NodeFacts{There: true}, Problem, 1},
		{NodeFacts{There: true, Owed: 2}, Problem, 2},
		{NodeFacts{There: true, Answers: true, Owed: 2}, Warning, 1},
		{NodeFacts{There: true, Answers: true, Conflist: "/c", Missing: errors.New("gone")}, Warning, 1},
		{NodeFacts{There: true, Answers: true, Err: errors.New("no JSON")}, Warning, 1},
	} {
		if got := Node(row.facts); len(got) != row.n || Worst(got) != row.want {
			t.Errorf("%+v: %+v", row.facts, got)
		}
	}
}
