//go:build linux

package trace

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

const (
	protocolTCP = unix.IPPROTO_TCP
	protocolUDP = unix.IPPROTO_UDP
)

// Hop is one thing that happened to a packet, or would.
type Hop struct {
	Where  string `json:"where"`
	Device string `json:"device,omitempty"`
	What   string `json:"what"`
	Rule   string `json:"rule,omitempty"` // that did it
	Answer bool   `json:"answer,omitempty"`
	Stop   bool   `json:"stop,omitempty"` // the packet goes no further
	Mend   string `json:"mend,omitempty"`
}

// Outcome is how it ended.
type Outcome string

// The ends that a probe may come to.
const (
	Answered Outcome = "answered"
	Reached  Outcome = "reached" // it got there, and nothing came back
	Refused  Outcome = "refused" // an ICMP error came back
	Dropped  Outcome = "dropped"
	Silent   Outcome = "silent" // it was last seen on its way, and no answer came
	Unsent   Outcome = "unsent" // the container's own kernel did not send it
)

// Result is what became of a probe.
type Result struct {
	Outcome Outcome `json:"outcome"`
	Text    string  `json:"text"`
	Hops    []Hop   `json:"hops"`
	At      int     `json:"at,omitempty"` // the hop that decided, from 1
	// Got tells that the packet got where it was to go, whatever was answered.
	Got bool `json:"got"`
}

// result makes of all that was seen a way and a verdict.
func (r *run) result(failed error) Result {
	b := &builder{run: r, hops: []Hop{}, chains: make([]map[string]*nftables.Chain, len(r.Sites))}
	b.build()
	out := Result{Hops: b.hops}
	out.Outcome, out.At, out.Text = b.verdict(failed)
	out.Got = out.Outcome == Answered || out.Outcome == Reached || b.got
	return out
}

// builder puts sightings and steps into one order.
type builder struct {
	*run
	hops    []Hop
	chains  []map[string]*nftables.Chain
	used    []bool
	last    [2]ends // of the request and of the answer, as seen last
	known   [2]bool
	drop    [2]int // the hop that dropped, from 1
	end     int    // the site where the request was seen last
	arrived bool   // seen at the site that is called
	reply   *seen  // what came back to where the probe was sent
	replyAt int
	got     bool
}

func (b *builder) build() {
	b.used = make([]bool, len(b.steps))
	for back := range 2 { // first the way there, then the way back
		for _, s := range b.way(back == 1) {
			name := b.device(s.site, s.index)
			if s.out {
				b.before(s.site, name, back)
			}
			b.sighted(s, name, back)
			if !s.out {
				b.after(s.site, name, back)
			}
		}
		b.rest(back)
	}
}

func (b *builder) device(site, index int) string {
	return cmp.Or(b.devices[site][index].name, fmt.Sprintf("device %d", index))
}

func (b *builder) sighted(s *seen, name string, back int) {
	now := s.ends()
	what := now.String()
	if s.text != "" {
		what = s.text + " " + what
	}
	if change := changed(b.last[back], now); b.known[back] && change != "" && s.kind != refusal {
		what += ": " + change
	}
	if s.kind != refusal {
		b.last[back], b.known[back] = now, true
	}
	way := "in"
	if s.out {
		way = "out"
	}
	b.hops = append(b.hops, Hop{Where: b.Sites[s.site].Name, Device: name + " " + way, What: what, Answer: back == 1})
	if back == 0 && s.site == b.To && !s.out {
		b.arrived = true
	}
	if back == 1 && s.site == 0 && !s.out {
		b.reply, b.replyAt = s, len(b.hops)
	}
}

// changed tells what a NAT did between two sightings.
func changed(a, now ends) string {
	var list []string
	if a.src != now.src {
		list = append(list, "SNAT "+show(a.src)+" → "+show(now.src))
	}
	if a.dst != now.dst {
		list = append(list, "DNAT "+show(a.dst)+" → "+show(now.dst))
	}
	return strings.Join(list, ", ")
}

// after tells what rules did with what came in by a device and is not known to go out by another.
func (b *builder) after(site int, device string, back int) {
	b.take(func(s step) bool {
		return s.site == site && b.device(site, int(s.iif)) == device && s.oif == 0
	}, back)
}

// before tells what rules did with what was about to leave by a device.
func (b *builder) before(site int, device string, back int) {
	b.take(func(s step) bool { return s.site == site && s.oif != 0 && b.device(site, int(s.oif)) == device }, back)
}

// rest tells what rules did that is not told yet, such as a drop of what is seen nowhere later.
func (b *builder) rest(back int) { b.take(func(step) bool { return true }, back) }

func (b *builder) take(want func(step) bool, back int) {
	for i, s := range b.steps {
		id := traced{s.site, s.id}
		if b.used[i] || b.replies[id] != (back == 1) || !want(s) {
			continue
		}
		b.used[i] = true
		if hop, ok := b.hopOf(s); ok {
			hop.Answer = back == 1
			b.hops = append(b.hops, hop)
			if hop.Stop && (b.drop[back] == 0 || b.resolving[id] == "") {
				b.drop[back] = len(b.hops)
			}
		}
	}
}

// hopOf makes a hop of a step that did something: dropped, queued, or translated.
func (b *builder) hopOf(s step) (Hop, bool) {
	hop := Hop{Where: b.Sites[s.site].Name, Device: b.devicesOf(s)}
	who := ""
	if what := b.resolving[traced{s.site, s.id}]; what != "" {
		who = what + " of the container "
	}
	switch {
	case s.verdict == verdictDrop:
		hop.What, hop.Stop = who+"dropped by", true
	case s.verdict == verdictQueue:
		hop.What = "given to a program (queue) by"
	case s.verdict == verdictStolen:
		hop.What = "taken by"
	case s.verdict == verdictAccept && !s.policy && s.handle != 0 && b.isNAT(s):
		hop.What = "translated by"
	default:
		return hop, false
	}
	comment, text := s.lookup(b.Sites[s.site].NS)
	hop.Rule = s.place()
	what := text
	if comment != "" && !strings.Contains(text, comment) {
		what = strings.TrimSpace(comment + ": " + text)
	}
	if comment, _, _ = strings.Cut(comment, " #"); comment != "" {
		hop.What += fmt.Sprintf(" %q,", comment)
	}
	hop.What += " " + s.place()
	if text != "" {
		hop.Rule = what
	}
	if s.policy {
		hop.What = strings.Replace(hop.What, ", policy", " (its policy: no rule accepted)", 1)
	}
	return hop, true
}

func (b *builder) devicesOf(s step) string {
	var list []string
	if s.iif != 0 {
		list = append(list, b.device(s.site, int(s.iif)))
	}
	if s.oif != 0 {
		list = append(list, b.device(s.site, int(s.oif)))
	}
	return strings.Join(list, " → ")
}

// isNAT reports whether the step's chain translates, or is called by one that does: what
// such a chain accepts by a rule it has looked at.
func (b *builder) isNAT(s step) bool {
	if b.chains[s.site] == nil {
		b.chains[s.site] = chainsOf(b.Sites[s.site].NS)
	}
	for _, other := range b.steps { // the base chain comes before the chains it calls
		if other.site == s.site && other.id == s.id && other.table == s.table && other.family == s.family {
			c := b.chains[s.site][chainKey(other.family, other.table, other.chain)]
			if c != nil && c.Type == nftables.ChainTypeNAT && (other.chain == s.chain || other.target != "") {
				return true
			}
		}
	}
	return false
}

func chainKey(family uint8, table, chain string) string {
	return fmt.Sprintf("%d %s %s", family, table, chain)
}

// verdict tells the end of it, the hop that decided and a sentence.
func (b *builder) verdict(failed error) (Outcome, int, string) {
	requests := slices.ContainsFunc(b.seen, func(s seen) bool { return s.kind == request })
	switch {
	case failed != nil:
		return Unsent, 0, "the container's kernel did not send it: " + unsent(failed)
	// A reset may be a firewall's, sent for what it dropped. Any other answer is of who was
	// called, whatever else of the flow was dropped: ARP, say.
	case b.reply != nil && b.reply.kind == answer && (b.drop[0] == 0 || b.reply.text != reset):
		text := "answered: " + b.reply.text + " from " + show(b.reply.ends().src)
		if b.reply.text == reset {
			text += ": nothing listens there"
		}
		return Answered, b.replyAt, text
	case b.reply != nil:
		return b.refused()
	case b.drop[0] != 0:
		return Dropped, b.drop[0], fmt.Sprintf("dropped at %d: %s", b.drop[0], b.line(b.drop[0]))
	case b.drop[1] != 0:
		b.got = true
		return Dropped, b.drop[1],
			fmt.Sprintf("it got there, but its answer was dropped at %d: %s", b.drop[1], b.line(b.drop[1]))
	case slices.ContainsFunc(b.hops, func(h Hop) bool { return h.Answer }):
		b.got = true
		return Silent, len(b.hops),
			fmt.Sprintf(
				"it got there, but its answer did not come back: last seen at %d in %s, %s, and no rule "+
					"of nftables dropped it",
				len(b.hops), b.hops[len(b.hops)-1].Where, b.hops[len(b.hops)-1].Device,
			)
	case b.arrived:
		return Reached, len(b.hops), "reached " + b.Sites[b.To].Name + ", which did not answer in " + b.Wait.String()
	case !requests:
		return Unsent, 0, "no packet left the container: its next hop does not answer when its MAC is asked for"
	}
	at := b.lastRequest()
	if b.left() {
		return Silent, at, fmt.Sprintf(
			"no answer after %s: it left this machine at %d by %s, and nothing came back", b.Wait, at,
			strings.TrimSuffix(b.hops[at-1].Device, " out"),
		)
	}
	if device := b.leaving(); device != "" {
		return Silent, at, fmt.Sprintf(
			"no answer after %s: it was to leave by %s in %s, where its next hop does not answer when "+
				"its MAC is asked for, or the kernel dropped it",
			b.Wait, device, b.Sites[b.end].Name,
		)
	}
	return Silent, at, fmt.Sprintf(
		"no answer after %s: last seen at %d in %s, %s; no rule of nftables dropped it", b.Wait, at,
		b.hops[at-1].Where, b.hops[at-1].Device,
	)
}

func (b *builder) refused() (Outcome, int, string) {
	from := b.reply.src
	// The called host may itself say that nothing listens there: the packet got to it.
	if b.reply.text == portUnreachable && from == b.Dst && b.drop[0] == 0 {
		b.got = true
		return Refused, b.replyAt, "answered: port unreachable from " + from.String() + ": nothing listens there"
	}
	text := fmt.Sprintf("refused: %s says %s", from, b.reply.text)
	if at := b.drop[0]; at != 0 {
		return Refused, at, fmt.Sprintf("%s; rejected at %d: %s", text, at, b.line(at))
	}
	return Refused, b.replyAt, text
}

func (b *builder) line(at int) string {
	h := b.hops[at-1]
	return strings.TrimPrefix(h.What, "dropped ") + " in " + h.Where
}

// left reports whether the request went out by a device that leads to none of the
// namespaces that are watched.
func (b *builder) left() bool {
	for _, s := range slices.Backward(b.seen) {
		if s.kind == request && s.site == b.end {
			return s.out && b.devices[s.site][s.index].peer < 0
		}
	}
	return false
}

// leaving is the device by which the request was to go out, as nftables saw it after
// routing, where it was not seen to do so.
func (b *builder) leaving() string {
	device := ""
	for _, s := range b.steps {
		if s.site == b.end && s.oif != 0 && !b.replies[traced{s.site, s.id}] {
			device = b.device(s.site, int(s.oif))
		}
	}
	for _, s := range b.seen {
		if s.kind == request && s.site == b.end && s.out && b.device(s.site, s.index) == device {
			return ""
		}
	}
	return device
}

func (b *builder) lastRequest() int {
	for i, h := range slices.Backward(b.hops) {
		if !h.Answer {
			return i + 1
		}
	}
	return 0
}

func unsent(err error) string {
	switch {
	case errors.Is(err, unix.ENETUNREACH):
		return "it has no route there"
	case errors.Is(err, unix.EHOSTUNREACH):
		return "the next hop is not reached"
	case errors.Is(err, unix.EPERM):
		return "a rule in the container's own namespace forbids it"
	case errors.Is(err, unix.EACCES):
		return "its route forbids it"
	}
	return err.Error()
}
