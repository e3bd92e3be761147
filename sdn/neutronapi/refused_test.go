package neutronapi

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

var update = flag.Bool("update", false, "write the table of refused attributes in docs/sdn-api.md")

const (
	refusedDoc   = "../../docs/sdn-api.md"
	refusedBegin = "<!-- This table is written by: go test ./sdn/neutronapi -run TestRefusedAttributes -update -->\n"
	refusedEnd   = "<!-- end of the table -->\n"
)

// tables returns the tables of all resources.
func (s *server) tables() []*table {
	members := s.members(part[sdn.Pool]{}).table
	return []*table{
		s.networks().table, s.subnets().table, s.subnetPools().table, s.ports().table, s.routers().table,
		s.floatingIPs().table, s.forwards(sdn.FloatingIP{}).table,
		s.securityGroups().table, s.securityGroupRules().table, s.addressGroups().table, s.trunks().table,
		s.qosPolicies().table, s.limitRules(sdn.QoSPolicy{}, bandwidthLimit).table,
		s.limitRules(sdn.QoSPolicy{}, dscpMarking).table,
		s.loadBalancers().table, s.listeners().table, s.pools().table, members, s.healthMonitors().table,
	}
}

// takenValues lists the values that a body of the resource may have of an attribute that the SDN
// lacks. They are found by trying.
func takenValues(s *server, a *field) string {
	if a.taken != "" {
		return a.taken
	}
	tried := []any{nil, false, true, "", []any{}, "NONE", checkMethod, checkCodes}
	var out []string
	for _, value := range tried {
		b := &body{call: &call{server: s}, post: true, values: map[string]any{a.name: value}}
		if got, given := a.is(b, a.name); b.err != nil || given && !a.allows(got) {
			continue
		}
		shown, _ := json.Marshal(value)
		if text := "`" + string(shown) + "`"; !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return strings.Join(out, ", ")
}

// refusedTable is the table of the attributes whose values are refused, all or some.
func refusedTable(s *server) string {
	type row struct{ title, taken, why string }
	var order []row
	names := map[row][]string{}
	for _, t := range s.tables() {
		for i := range t.fields {
			a := &t.fields[i]
			if a.why == "" {
				continue
			}
			title := t.title
			if title == "QoS rule" {
				title = strings.ReplaceAll(t.member, "_", " ")
			}
			r := row{title, takenValues(s, a), a.why}
			if names[r] == nil {
				order = append(order, r)
			}
			names[r] = append(names[r], "`"+a.name+"`")
		}
	}
	out := "| resource | attribute | taken | why no other value |\n| --- | --- | --- | --- |\n"
	for _, r := range order {
		out += fmt.Sprintf("| %s | %s | %s | %s |\n", r.title, strings.Join(names[r], ", "), r.taken, r.why)
	}
	return out
}

// The documentation's table of refused attributes is that of the resources.
func TestRefusedAttributes(t *testing.T) {
	w := newWorld(t)
	table := refusedTable(&server{p: w.sdn})
	doc, err := os.ReadFile(refusedDoc)
	must(t, err)
	before, rest, begins := strings.Cut(string(doc), refusedBegin)
	_, after, ends := strings.Cut(rest, refusedEnd)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table", refusedDoc)
	}
	want := before + refusedBegin + "\n" + table + "\n" + refusedEnd + after
	if *update {
		must(t, os.WriteFile(refusedDoc, []byte(want), 0o644))
		return
	}
	if want != string(doc) {
		t.Errorf("the table in %s is stale; go test -run TestRefusedAttributes -update writes it:\n%s", refusedDoc, table)
	}
	for _, name := range whyInCode(t) {
		if !strings.Contains(table, "`"+name+"`") {
			t.Errorf("the table lacks %s, which the code refuses: is its resource in tables?", name)
		}
	}
	if strings.Contains(table, "|  |") {
		t.Errorf("an attribute takes no value:\n%s", table)
	}
}

// whyInCode returns the names of the attributes for which the package says why they are refused.
func whyInCode(t *testing.T) (names []string) {
	files, err := filepath.Glob("*.go")
	must(t, err)
	inspect := func(n ast.Node) bool {
		literal, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		values := map[string]ast.Expr{}
		for _, element := range literal.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				if key, ok := pair.Key.(*ast.Ident); ok {
					values[key.Name] = pair.Value
				}
			}
		}
		if name, ok := values["name"].(*ast.BasicLit); ok && values["why"] != nil {
			text, err := strconv.Unquote(name.Value)
			must(t, err)
			names = append(names, text)
		}
		return true
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		must(t, err)
		ast.Inspect(file, inspect)
	}
	if len(names) < 30 {
		t.Errorf("%d attributes are refused by the code", len(names))
	}
	return names
}
