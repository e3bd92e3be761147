package ipproto

import (
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		p           sdn.Protocol
		numeric, ok bool
	}{
		"tcp": {6, false, true}, "TCP": {6, false, true}, "6": {6, true, true}, " 17 ": {17, true, true},
		"0": {0, true, true}, "255": {255, true, true},
		"icmpv6": {58, false, true}, "ipv6-icmp": {58, false, true}, "ip": {0, false, true}, "hopopt": {0, false, true},
		"256": {0, true, false}, "-1": {255, true, false}, "": {0, false, false}, "quic": {0, false, false},
	} {
		p, numeric, ok := Parse(text)
		if ok != want.ok || ok && (p != want.p || numeric != want.numeric) {
			t.Errorf("%q is %d, by number %t, %t; want %+v", text, p, numeric, ok, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"tcp", "6", "ICMP", "hopopt", "256", "-1", " 17", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, _, ok := Parse(text)
		if !ok || p == 0 {
			return
		}
		if again, _, ok := Parse(Name(p)); !ok || again != p {
			t.Errorf("%q is %d, shown as %q, which is %d", text, p, Name(p), again)
		}
	})
}

// What a protocol is shown as is read as that protocol, and by number only where it has no name.
func TestShownIsRead(t *testing.T) {
	t.Parallel()
	for n := range 256 {
		p := sdn.Protocol(n)
		again, numeric, ok := Parse(Name(p))
		if !ok || again != p || numeric == Named(p) {
			t.Errorf("%d is shown as %q, which is %d, by number %t, %t", p, Name(p), again, numeric, ok)
		}
	}
	for _, name := range Names() {
		if p, numeric, ok := Parse(name); !ok || numeric || p == 0 {
			t.Errorf("%q is %d, %t", name, p, ok)
		}
	}
}
