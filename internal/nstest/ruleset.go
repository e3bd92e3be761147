//go:build linux

package nstest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// writeRulesets is an environment variable that makes WantRuleset write its files. Their
// difference shows what another version of the nftables library makes of the kernel's rules.
const writeRulesets = "KURYR_WRITE_RULESETS"

// WantRuleset compares the namespace's tables with those in a file. It reads what the kernel has
// without a library of nftables and without nft, which cannot load all of its own listings.
func WantRuleset(t testing.TB, ns netns.NsHandle, file string) {
	t.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(ns)})
	if err != nil {
		t.Fatalf("netlink: %v", err)
	}
	defer func() { _ = conn.Close() }()
	got := ruleset{t, conn}.String()
	if os.Getenv(writeRulesets) != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the ruleset differs from %s; %s=1 writes the file:\n%s", file, writeRulesets,
			differences(string(want), got))
	}
}

// differences returns the lines that one text has and the other has not.
func differences(want, got string) string {
	var b strings.Builder
	only := func(sign, text, other string) {
		others := strings.Split(other, "\n")
		for line := range strings.SplitSeq(text, "\n") {
			if !slices.Contains(others, line) {
				fmt.Fprintf(&b, "%s %s\n", sign, line)
			}
		}
	}
	only("-", want, got)
	only("+", got, want)
	if b.Len() == 0 {
		return "the same lines in another order"
	}
	return b.String()
}

// The families that have tables of ours.
var families = []struct {
	number byte
	name   string
}{{unix.NFPROTO_INET, "inet"}, {unix.NFPROTO_BRIDGE, "bridge"}}

// ruleset is the tables of a namespace.
type ruleset struct {
	t    testing.TB
	conn *netlink.Conn
}

// String has a line for each table, chain, rule, set and element. All but rules are sorted.
// Handles and counters are left out, and when elements expire.
func (r ruleset) String() string {
	r.t.Helper()
	var b strings.Builder
	for _, family := range families {
		for _, table := range r.dump(family.number, unix.NFT_MSG_GETTABLE) {
			name := table.text(unix.NFTA_TABLE_NAME)
			fmt.Fprintf(&b, "table %s %s\n", family.name, name)
			in := netlink.Attribute{Type: unix.NFTA_CHAIN_TABLE, Data: []byte(name + "\x00")}
			var lines []string
			for _, chain := range r.dump(family.number, unix.NFT_MSG_GETCHAIN, in) {
				if chain.text(unix.NFTA_CHAIN_TABLE) == name {
					lines = append(lines, r.chain(family.number, chain, in))
				}
			}
			for _, set := range r.dump(family.number, unix.NFT_MSG_GETSET, in) {
				lines = append(lines, r.set(family.number, set, in))
			}
			slices.Sort(lines)
			b.WriteString(strings.Join(lines, ""))
		}
	}
	return b.String()
}

func (r ruleset) chain(family byte, chain attributes, table netlink.Attribute) string {
	name := chain.text(unix.NFTA_CHAIN_NAME)
	line := "  chain " + name + numbered(chain, "", "", "", "hook", "policy", "", "type", "", "",
		"flags")
	rules := r.dump(family, unix.NFT_MSG_GETRULE, table,
		netlink.Attribute{Type: unix.NFTA_RULE_CHAIN, Data: []byte(name + "\x00")})
	for _, rule := range rules {
		line += fmt.Sprintf("    rule %q%s\n", comment(rule[unix.NFTA_RULE_USERDATA]),
			expressions(rule[unix.NFTA_RULE_EXPRESSIONS]))
	}
	return line
}

func (r ruleset) set(family byte, set attributes, table netlink.Attribute) string {
	name := set.text(unix.NFTA_SET_NAME)
	line := "  set " + name + numbered(set, "", "", "flags", "key_type", "key_len", "data_type",
		"data_len", "policy", "desc", "", "timeout", "gc_interval", "userdata", "", "", "", "expr",
		"exprs")
	var elements []string
	for _, part := range r.dump(family, unix.NFT_MSG_GETSETELEM, table,
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(name + "\x00")}) {
		for _, element := range list(part[unix.NFTA_SET_ELEM_LIST_ELEMENTS]) {
			elements = append(elements, "    element"+numbered(parse(element.Data), "key", "data",
				"flags", "timeout", "", "userdata", "expr", "", "", "key_end"))
		}
	}
	slices.Sort(elements)
	return line + strings.Join(slices.Compact(elements), "")
}

// dump asks for all objects of a type.
func (r ruleset) dump(family byte, kind uint16, in ...netlink.Attribute) []attributes {
	r.t.Helper()
	data, err := netlink.MarshalAttributes(in)
	if err != nil {
		r.t.Fatal(err)
	}
	messages, err := r.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind),
			Flags: netlink.Request | netlink.Dump},
		Data: append([]byte{family, unix.NFNETLINK_V0, 0, 0}, data...),
	})
	if err != nil {
		r.t.Fatalf("read nftables: %v", err)
	}
	var all []attributes
	for _, m := range messages {
		all = append(all, parse(m.Data[4:]))
	}
	return all
}

// attributes are what the kernel says of an object, by the attributes' numbers.
type attributes map[uint16][]byte

func list(data []byte) []netlink.Attribute {
	all, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		panic(fmt.Sprintf("attributes %x: %v", data, err))
	}
	return all
}

func parse(data []byte) attributes {
	byNumber := attributes{}
	for _, a := range list(data) {
		byNumber[a.Type&^(netlink.Nested|netlink.NetByteOrder)] = a.Data
	}
	return byNumber
}

func (a attributes) text(number uint16) string { return string(bytes.TrimRight(a[number], "\x00")) }

// numbered ends a line with the attributes that have a name; the first name is that of number 1.
func numbered(a attributes, names ...string) string { return fields(a, names) + "\n" }

func fields(a attributes, names []string) string {
	var b strings.Builder
	for i, name := range names {
		if data, there := a[uint16(i+1)]; there && name != "" {
			fmt.Fprintf(&b, " %s=%s", name, value(name, data))
		}
	}
	return b.String()
}

func value(name string, data []byte) string {
	switch name {
	case "set", "type":
		if text := bytes.TrimRight(data, "\x00"); len(text) > 0 && text[0] >= 'a' {
			return string(text)
		}
	case "key", "key_end", "data", "mask", "xor":
		return datum(parse(data))
	case "hook":
		return "{" + strings.TrimSpace(fields(parse(data), []string{"number", "priority"})) + "}"
	case "expr":
		return expression(parse(data))
	case "exprs":
		return strings.TrimSpace(expressions(data))
	case "userdata", "desc":
		return fmt.Sprintf("%x", data)
	}
	switch len(data) {
	case 1:
		return fmt.Sprint(data[0])
	case 2:
		return fmt.Sprint(binary.BigEndian.Uint16(data))
	case 4:
		return fmt.Sprint(int32(binary.BigEndian.Uint32(data)))
	case 8:
		return fmt.Sprint(binary.BigEndian.Uint64(data))
	}
	return fmt.Sprintf("%x", data)
}

var verdicts = map[string]string{"0": "drop", "1": "accept", "-3": "jump", "-4": "goto", "-5": "return"}

// datum is bytes or a verdict.
func datum(a attributes) string {
	if verdict, is := a[unix.NFTA_DATA_VERDICT]; is {
		of := parse(verdict)
		code := value("code", of[unix.NFTA_VERDICT_CODE])
		return strings.TrimSpace(verdicts[code] + " " + of.text(unix.NFTA_VERDICT_CHAIN))
	}
	return fmt.Sprintf("%x", a[unix.NFTA_DATA_VALUE])
}

// attributeNames are those of the expressions' attributes, as in linux/netfilter/nf_tables.h.
var attributeNames = map[string][]string{
	"bitwise":   {"sreg", "dreg", "len", "mask", "xor", "op", "data"},
	"cmp":       {"sreg", "op", "data"},
	"connlimit": {"count", "flags"},
	"counter":   {},
	"ct":        {"dreg", "key_number", "direction", "sreg"},
	"dynset": {"set", "set_id", "op", "sreg_key", "sreg_data", "timeout", "expr", "", "flags",
		"exprs"},
	"exthdr":    {"dreg", "header", "offset", "len", "flags", "op", "sreg"},
	"fib":       {"dreg", "result", "flags"},
	"immediate": {"dreg", "data"},
	"limit":     {"rate", "unit", "burst", "kind", "flags"},
	"lookup":    {"set", "sreg", "dreg", "set_id", "flags"},
	"masq":      {"flags", "reg_proto_min", "reg_proto_max"},
	"meta":      {"dreg", "key_number", "sreg"},
	"nat": {"kind", "family", "reg_addr_min", "reg_addr_max", "reg_proto_min", "reg_proto_max",
		"flags"},
	"numgen": {"dreg", "modulus", "kind", "offset"},
	"payload": {"dreg", "base", "offset", "len", "sreg", "csum_type", "csum_offset",
		"csum_flags"},
	"reject": {"kind", "code"},
}

func expressions(data []byte) string {
	var b strings.Builder
	for _, e := range list(data) {
		b.WriteString(" " + expression(parse(e.Data)))
	}
	return b.String()
}

func expression(a attributes) string {
	name := a.text(unix.NFTA_EXPR_NAME)
	of, known := attributeNames[name]
	if !known {
		return fmt.Sprintf("[%s %x]", name, a[unix.NFTA_EXPR_DATA])
	}
	return "[" + name + fields(parse(a[unix.NFTA_EXPR_DATA]), of) + "]"
}

// comment finds the comment in a rule's user data: type, length and bytes of each field.
func comment(data []byte) string {
	for len(data) > 2 && len(data) >= 2+int(data[1]) {
		length := int(data[1])
		if data[0] == 0 {
			return string(bytes.TrimRight(data[2:2+length], "\x00"))
		}
		data = data[2+length:]
	}
	return ""
}
