//go:build linux

package trace

import "testing"

// What answered was reached, though a frame of the flow was dropped on the way; but a
// reset may be the dropping firewall's own.
func TestAnsweredDespiteADrop(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Outcome{"echo reply": Answered, "SYN+ACK": Answered, reset: Refused} {
		b := &builder{run: &run{}, hops: []Hop{{What: "dropped by a rule", Where: "router"}, {Answer: true}}}
		b.reply, b.replyAt, b.drop[0] = &seen{kind: answer, text: text}, 2, 1
		if got, _, said := b.verdict(nil); got != want {
			t.Errorf("%s: %s (%s), want %s", text, got, said, want)
		}
	}
}
