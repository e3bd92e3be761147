//go:build linux

package trace

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/netns"
	vns "github.com/vishvananda/netns"
)

// familyNames as nft spells them, by NFPROTO.
var familyNames = map[uint8]string{1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}

// place is a rule, or the end of a chain, by the names that nft knows it by.
func (s step) place() string {
	text := fmt.Sprintf("%s %s %s", familyNames[s.family], s.table, s.chain)
	if s.policy {
		return text + ", policy"
	}
	if s.handle != 0 {
		return fmt.Sprintf("%s, handle %d", text, s.handle)
	}
	return text
}

// lookup finds out what the rule of a step says: its comment, and its text where nft is installed.
func (s step) lookup(ns vns.NsHandle) (comment, text string) {
	if s.handle == 0 || s.policy {
		return "", ""
	}
	table := &nftables.Table{Name: s.table, Family: nftables.TableFamily(s.family)}
	if conn, err := nft.Dial(int(ns)); err == nil {
		defer func() { _ = conn.Close() }()
		rules, _ := conn.GetRules(table, &nftables.Chain{Name: s.chain, Table: table}) // one that is gone has no text
		for _, rule := range rules {
			if rule.Handle == s.handle {
				comment = commentOf(rule)
			}
		}
	}
	return comment, s.text(ns)
}

func commentOf(rule *nftables.Rule) string {
	if text, ok := userdata.GetString(rule.UserData, userdata.TypeComment); ok {
		return strings.TrimRight(text, "\x00")
	}
	for _, e := range rule.Exprs {
		if match, ok := e.(*expr.Match); ok && match.Name == "comment" {
			if info, ok := match.Info.(*xt.Comment); ok {
				text, _, _ := strings.Cut(string(*info), "\x00")
				return text
			}
		}
	}
	return ""
}

// textTimeout bounds a listing.
const textTimeout = 5 * time.Second

// text is how nft shows the rule; "" where it is not installed.
func (s step) text(ns vns.NsHandle) string {
	ctx, cancel := context.WithTimeout(context.Background(), textTimeout)
	defer cancel()
	var out []byte
	_ = netns.Do(ns, func() (err error) {
		out, err = exec.CommandContext(ctx, "nft", "-a", "list", "chain", familyNames[s.family], s.table, s.chain).Output()
		return err
	})
	return ruleText(string(out), s.handle)
}

// ruleText finds the rule of this handle in what "nft -a list chain" prints.
func ruleText(listing string, handle uint64) string {
	end := fmt.Sprintf(" # handle %d", handle)
	for line := range strings.Lines(listing) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutSuffix(line, end); ok && !strings.HasPrefix(line, "chain ") {
			return text
		}
	}
	return ""
}

// chainsOf are a namespace's chains by family, table and name.
func chainsOf(ns vns.NsHandle) map[string]*nftables.Chain {
	out := map[string]*nftables.Chain{}
	conn, err := nft.Dial(int(ns))
	if err != nil {
		return out
	}
	defer func() { _ = conn.Close() }()
	chains, _ := conn.ListChains()
	for _, c := range chains {
		out[chainKey(uint8(c.Table.Family), c.Table.Name, c.Name)] = c
	}
	return out
}
