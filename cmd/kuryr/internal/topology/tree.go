package topology

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
)

// node is a line of the tree with what is below it.
type node struct {
	text  string
	below []node
}

// Tree writes the graph for a terminal.
func (g Graph) Tree(w io.Writer) error {
	root := node{text: "host " + g.Host}
	for _, r := range g.Routers {
		root.below = append(root.below, r.node())
	}
	for _, n := range g.Networks {
		root.below = append(root.below, n.node(" (on no router)"))
	}
	if len(root.below) == 0 {
		root.below = []node{{text: "no networks yet: docker network create -d kuryr --ipam-driver kuryr NAME"}}
	}
	var out strings.Builder
	out.WriteString(table.Printable(root.text) + "\n")
	root.write(&out, "")
	_, err := io.WriteString(w, out.String())
	return err
}

func (n node) write(out *strings.Builder, indent string) {
	for i, child := range n.below {
		branch, deeper := "├─ ", "│  "
		if i == len(n.below)-1 {
			branch, deeper = "└─ ", "   "
		}
		out.WriteString(indent + branch + table.Printable(child.text) + "\n")
		child.write(out, indent+deeper)
	}
}

func (r Router) node() node {
	n := node{text: "router " + r.Name + " · " + r.way()}
	for _, note := range r.Notes {
		n.below = append(n.below, node{text: "! " + note})
	}
	for _, network := range r.Networks {
		n.below = append(n.below, network.node(""))
	}
	return n
}

// way says how the router reaches the outside.
func (r Router) way() string {
	switch {
	case len(r.Uplink) == 0:
		return "no way out"
	case r.SNAT:
		return "uplink " + strings.Join(r.Uplink, ", ") + ", NAT"
	}
	return "uplink " + strings.Join(r.Uplink, ", ")
}

func (n Network) node(suffix string) node {
	parts := []string{"network " + n.Name + suffix}
	for _, r := range n.Ranges {
		text := r.CIDR
		if r.Gateway != "" {
			text += " gateway " + r.Gateway
		}
		parts = append(parts, text)
	}
	parts = append(parts, fmt.Sprintf("MTU %d", n.MTU))
	out := node{text: strings.Join(parts, " · ")}
	width := 0
	for _, p := range n.Ports {
		width = max(width, utf8.RuneCountInString(p.Name))
	}
	for _, p := range n.Ports {
		text := p.Name + strings.Repeat(" ", width-utf8.RuneCountInString(p.Name)) + "  " + p.MAC + "  " +
			strings.Join(p.Addresses, ", ")
		if len(p.Published) > 0 {
			text += "  ⇐ " + strings.Join(p.Published, ", ")
		}
		out.below = append(out.below, node{text: text})
	}
	return out
}
