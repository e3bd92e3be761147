package sdn

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestKeyRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		k := Key{
			Owner: rapid.StringMatching(`[a-z0-9-]{1,16}`).Draw(r, "owner"),
			Kind:  rapid.StringMatching(`[a-z0-9-]{1,16}`).Draw(r, "kind"),
			Name:  rapid.StringMatching(`[!-~]{1,150}`).Draw(r, "name"),
		}
		if err := k.Validate(); err != nil {
			r.Fatal(err)
		}
		if got, ok := ParseKey(k.String()); !ok || got != k {
			r.Fatalf("%q parses to %+v, %v, want %+v", k.String(), got, ok, k)
		}
	})
}

func TestKeyLimits(t *testing.T) {
	t.Parallel()
	good := Key{Owner: "o", Kind: "k", Name: "n"}
	longest := good
	longest.Name = strings.Repeat("n", MaxKeyLen-len("kuryr/o/k/"))
	for _, c := range []struct {
		key   Key
		field string // "" is valid
	}{
		{Key{}, ""},
		{good, ""},
		{longest, ""},
		{Key{"o", "k", "a/b:c"}, ""},
		{Key{"o", "k", longest.Name + "n"}, "key.name"},
		{Key{"", "k", "n"}, "key.owner"},
		{Key{"o/p", "k", "n"}, "key.owner"},
		{Key{"o", "Upper", "n"}, "key.kind"},
		{Key{"o", "", "n"}, "key.kind"},
		{Key{"o", "k", ""}, "key.name"},
		{Key{"o", "k", "a b"}, "key.name"},
		{Key{"o", "k", "ü"}, "key.name"},
		{Key{"o", "k", "a\x00"}, "key.name"},
	} {
		err := c.key.Validate()
		if (err == nil) != (c.field == "") || err != nil && (!IsInvalid(err) || FieldOf(err) != c.field) {
			t.Errorf("%+v: got error %v, want field %q", c.key, err, c.field)
		}
	}
}

func TestParseKeyOfOthersText(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "kuryr", "kuryr/", "kuryr/o/k", "kuryr/o/k/", "kuryr//k/n", "a note", "Kuryr/o/k/n", " kuryr/o/k/n", "kuryr/o/k/n n"} {
		if k, ok := ParseKey(s); ok {
			t.Errorf("%q parses to %+v", s, k)
		}
	}
}

func TestShort(t *testing.T) {
	t.Parallel()
	for id, want := range map[ID]string{"": "", "abc": "abc", "1f0e9a3c-7744-4000-8000-000000000000": "1f0e9a3c-77"} {
		if got := id.Short(); got != want {
			t.Errorf("%q.Short() = %q, want %q", id, got, want)
		}
	}
}

// FuzzParseKey: what parses is valid and is what was parsed.
func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"", "kuryr/o/k/n", "kuryr/o/k/n/m", "kuryr///", "kuryr/O/k/n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, ok := ParseKey(s)
		if !ok {
			return
		}
		if err := k.Validate(); err != nil {
			t.Errorf("%q parses to an invalid key: %v", s, err)
		}
		if k.String() != s {
			t.Errorf("%q parses to %q", s, k)
		}
	})
}
