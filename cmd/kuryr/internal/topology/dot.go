package topology

import (
	"fmt"
	"io"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
)

// DOT writes the graph in the language of Graphviz.
func (g Graph) DOT(w io.Writer) error {
	var out strings.Builder
	fmt.Fprintf(&out, "graph kuryr {\n\trankdir=LR;\n\tnode [shape=box];\n\thost [label=%s];\n", quoted("host "+g.Host))
	networks, ports := 0, 0
	draw := func(from string, all []Network) {
		for _, n := range all {
			networks++
			id := fmt.Sprintf("n%d", networks)
			lines := []string{"network " + n.Name}
			for _, r := range n.Ranges {
				lines = append(lines, r.CIDR)
			}
			fmt.Fprintf(&out, "\t%s [label=%s];\n", id, quoted(lines...))
			if from != "" {
				fmt.Fprintf(&out, "\t%s -- %s;\n", from, id)
			}
			for _, p := range n.Ports {
				ports++
				lines := append([]string{p.Name, p.MAC}, p.Addresses...)
				for _, published := range p.Published {
					lines = append(lines, "published "+published)
				}
				fmt.Fprintf(&out, "\tp%d [shape=ellipse, label=%s];\n\t%s -- p%d;\n", ports, quoted(lines...), id, ports)
			}
		}
	}
	for i, r := range g.Routers {
		id := fmt.Sprintf("r%d", i+1)
		lines := append([]string{"router " + r.Name, r.way()}, r.Notes...)
		fmt.Fprintf(&out, "\t%s [label=%s];\n", id, quoted(lines...))
		if len(r.Uplink) > 0 {
			fmt.Fprintf(&out, "\thost -- %s;\n", id)
		}
		draw(id, r.Networks)
	}
	draw("", g.Networks)
	out.WriteString("}\n")
	_, err := io.WriteString(w, out.String())
	return err
}

var dotEscape = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// quoted is a label of these lines.
func quoted(lines ...string) string {
	for i, l := range lines {
		lines[i] = dotEscape.Replace(table.Printable(l))
	}
	return `"` + strings.Join(lines, `\n`) + `"`
}
