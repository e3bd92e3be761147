//go:build linux

package firewall

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ruleset is one iptables filter table as `iptables -S` prints it.
type ruleset struct {
	// link names the links whose rules are ours.
	link string
	// policies has the built-in chains, user the others.
	policies map[string]string
	user     map[string]bool
	rules    map[string][]rule
	// passed are chains that count as passing on what they get, whatever their rules.
	passed map[string]outcome
}

// rule is one line "-A chain …".
type rule struct {
	// spec is the text after "-A chain ", in the tool's own quoting, which "-D chain spec"
	// and iptables-restore take back.
	spec string
	// conditions are the words that restrict the rule: all but comment, target and the
	// target's options.
	conditions []string
	comment    string
	// target is empty for a rule that only counts.
	target string
	isGoto bool
}

// ours reports whether the rule carries Kuryr's mark and is about these links. Two Hosts
// with other links, those of routers and a node's own port, share a table.
func (r rule) ours(link string) bool {
	return r.comment == comment && slices.Contains(r.conditions, link)
}

// parseRuleset reads the output of `iptables -S`. An error names the line that has another form.
func parseRuleset(text string) (*ruleset, error) {
	rs := &ruleset{policies: map[string]string{}, user: map[string]bool{}, rules: map[string][]rule{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		words, err := splitWords(line)
		if err != nil {
			return nil, fmt.Errorf("iptables -S: line %q: %w", line, err)
		}
		switch {
		case words[0] == "-P" && len(words) >= 3:
			rs.policies[words[1]] = words[2]
		case words[0] == "-N" && len(words) == 2:
			rs.user[words[1]] = true
		case words[0] == "-A" && len(words) >= 2:
			r := parseRule(words[2:])
			// Chain names have no blanks, so they are never quoted.
			r.spec = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(strings.TrimPrefix(line, "-A")), words[1]))
			rs.rules[words[1]] = append(rs.rules[words[1]], r)
		default:
			return nil, fmt.Errorf("iptables -S: line %q: not a policy, chain or rule", line)
		}
	}
	return rs, nil
}

func parseRule(words []string) rule {
	var r rule
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case (w == "-j" || w == "-g") && i+1 < len(words):
			r.target, r.isGoto = words[i+1], w == "-g"
			return r // what follows are the target's options
		case w == "-m" && i+1 < len(words) && words[i+1] == "comment":
			i++
		case w == "--comment" && i+1 < len(words):
			i++
			r.comment = words[i]
		default:
			r.conditions = append(r.conditions, w)
		}
	}
	return r
}

// splitWords splits a line at blanks; double quotes hold a word together, and a backslash
// takes the next byte unchanged.
func splitWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, quoted := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && i+1 < len(line):
			i++
			word.WriteByte(line[i])
			inWord = true
		case c == '"':
			quoted = !quoted
			inWord = true
		case (c == ' ' || c == '\t') && !quoted:
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if quoted {
		return nil, errors.New("a quote is not closed")
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// outcome is what becomes of a packet that meets no condition of any rule.
type outcome int

const (
	passesOn outcome = iota // the chain ends without a decision
	accepted
	dropped
)

// outcome follows the unconditional rules of a chain. What it cannot know (a packet
// queued to a program) counts as accepted.
func (rs *ruleset) outcome(chain string) outcome {
	return rs.follow(chain, rs.known())
}

// passing returns the same table where a chain counts as passing on what it gets.
func (rs *ruleset) passing(chain string) *ruleset {
	changed := *rs
	changed.passed = map[string]outcome{chain: passesOn}
	return &changed
}

// known is where following a chain begins.
func (rs *ruleset) known() map[string]outcome {
	known := map[string]outcome{}
	maps.Copy(known, rs.passed)
	return known
}

// drops reports whether a user-defined chain exists and has a rule that drops.
func (rs *ruleset) drops(chain string) bool {
	return rs.user[chain] && slices.ContainsFunc(rs.rules[chain], func(r rule) bool {
		return r.target == "DROP" && !r.ours(rs.link)
	})
}

func (rs *ruleset) follow(chain string, known map[string]outcome) outcome {
	if o, ok := known[chain]; ok {
		return o
	}
	known[chain] = passesOn // iptables allows no loops; a text that has one must not make us run round in it
	o := rs.policyOutcome(chain)
	for _, r := range rs.rules[chain] {
		if len(r.conditions) > 0 {
			continue
		}
		end, final := rs.effect(r, known)
		if final {
			if end != passesOn { // else back to the caller, which for a built-in chain is its policy
				o = end
			}
			break
		}
	}
	known[chain] = o
	return o
}

// effect returns what an unconditional rule does, and whether the chain's later rules are
// then out of reach.
func (rs *ruleset) effect(r rule, known map[string]outcome) (outcome, bool) {
	switch r.target {
	case "ACCEPT", "QUEUE", "NFQUEUE":
		return accepted, true
	case "DROP", "REJECT":
		return dropped, true
	case "RETURN":
		return passesOn, true
	}
	if !rs.user[r.target] {
		return passesOn, false
	}
	end := rs.follow(r.target, known)
	return end, end != passesOn || r.isGoto
}

func (rs *ruleset) policyOutcome(chain string) outcome {
	switch rs.policies[chain] {
	case "ACCEPT":
		return accepted
	case "DROP":
		return dropped
	}
	return passesOn
}

// end returns the index, among the foreign rules of a chain, of the first one that leaves
// the later ones out of reach.
func (rs *ruleset) end(chain string) int {
	known := rs.known()
	n := 0
	for _, r := range rs.rules[chain] {
		if r.ours(rs.link) {
			continue
		}
		if len(r.conditions) == 0 {
			if _, final := rs.effect(r, known); final {
				break
			}
		}
		n++
	}
	return n
}

// reaches reports whether every packet in from is handed to the chain to, unless a
// condition is met.
func (rs *ruleset) reaches(from, to string) bool {
	known := rs.known()
	for _, r := range rs.rules[from] {
		if len(r.conditions) > 0 {
			continue
		}
		if r.target == to && rs.user[to] {
			return true
		}
		if _, final := rs.effect(r, known); final {
			return false
		}
	}
	return false
}
