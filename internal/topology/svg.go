package topology

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/kuryr/kuryr/internal/table"
)

// Measures of the picture, in pixels. The host stands on the left, routers in the middle, networks with their ports on the
// right; what belongs together is joined by a curve.
const (
	margin      = 32
	hostWidth   = 150
	hostHeight  = 64
	columnGap   = 76
	routerWidth = 220
	netWidth    = 620
	headHeight  = 58
	rowHeight   = 30
	lineHeight  = 18
	blockGap    = 28
	routerGap   = 18 // more, between routers
	titleHeight = 60

	routerX = margin + hostWidth + columnGap
	netX    = routerX + routerWidth + columnGap
	width   = netX + netWidth + margin
)

const style = `
text{font-family:system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;font-size:13px;fill:#1f2933}
.mono{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,monospace;font-size:12px;fill:#3e4c59}
.title{font-size:20px;font-weight:600}
.name{font-weight:600;font-size:14px}
.small{font-size:11.5px;fill:#52606d}
.light{fill:#fff}
.pale{fill:#d9e8f6;font-size:11.5px}
.warn{fill:#b44d12;font-size:11.5px}
.edge{fill:none;stroke:#9fb3c8;stroke-width:2}
.cut{stroke-dasharray:3 5}
.row{stroke:#e4e7eb}
`

// SVG writes the graph as a picture that needs nothing else: no fonts, no scripts, no other files.
func (g Graph) SVG(w io.Writer) error {
	p := &picture{y: titleHeight + margin}
	var routers []place
	for _, r := range g.Routers {
		routers = append(routers, p.router(r))
		p.y += routerGap
	}
	for _, n := range g.Networks {
		p.network(n, "on no router")
	}
	if len(g.Routers)+len(g.Networks) == 0 {
		p.text(netX, p.y+20, "small", "no networks yet")
		p.y += rowHeight
	}
	height := p.y + margin - blockGap/2
	p.host(g.Host, routers)

	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&out, "<title>%s</title>\n<style>%s</style>\n", escape("Kuryr on "+g.Host), style)
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="#f8fafc"/>`+"\n", width, height)
	fmt.Fprintf(&out, `<text class="title" x="%d" y="%d">%s</text>`+"\n", margin, margin+14, escape(fit("Kuryr networks on "+g.Host, 80)))
	fmt.Fprintf(&out, `<text class="small" x="%d" y="%d">%s</text>`+"\n", margin, margin+34, escape(g.summary()))
	out.WriteString(p.edges.String())
	out.WriteString(p.boxes.String())
	out.WriteString("</svg>\n")
	_, err := io.WriteString(w, out.String())
	return err
}

func (g Graph) summary() string {
	networks, ports := len(g.Networks), 0
	count := func(all []Network) {
		for _, n := range all {
			ports += len(n.Ports)
		}
	}
	count(g.Networks)
	for _, r := range g.Routers {
		networks += len(r.Networks)
		count(r.Networks)
	}
	return plural(len(g.Routers), "router") + ", " + plural(networks, "network") + ", " + plural(ports, "port")
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// place is where the curve to a router ends, and whether there is one.
type place struct {
	y    int
	open bool
}

// picture is drawn from above to below; y is where the next block begins. Edges lie under boxes.
type picture struct {
	y            int
	edges, boxes strings.Builder
}

func (p *picture) text(x, y int, class, s string) {
	fmt.Fprintf(&p.boxes, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, x, y, escape(s))
}

func (p *picture) box(x, y, w, h int, fill, stroke string) {
	fmt.Fprintf(&p.boxes, `<rect x="%d" y="%d" width="%d" height="%d" rx="10" fill="%s" stroke="%s"/>`+"\n", x, y, w, h, fill, stroke)
}

func (p *picture) edge(x1, y1, x2, y2 int, class string) {
	bend := (x1 + x2) / 2
	fmt.Fprintf(&p.edges, `<path class="%s" d="M%d %d C%d %d %d %d %d %d"/>`+"\n", class, x1, y1, bend, y1, bend, y2, x2, y2)
}

func (p *picture) host(name string, routers []place) {
	top, bottom := titleHeight+margin, titleHeight+margin+hostHeight
	if len(routers) > 0 {
		middle := (routers[0].y + routers[len(routers)-1].y) / 2
		top, bottom = middle-hostHeight/2, middle+hostHeight/2
	}
	for _, r := range routers {
		if r.open {
			p.edge(margin+hostWidth, (top+bottom)/2, routerX, r.y, "edge")
		}
	}
	p.box(margin, top, hostWidth, hostHeight, "#334e68", "#243b53")
	p.text(margin+16, top+28, "name light", fit(name, 13))
	p.text(margin+16, top+48, "pale", "host and outside")
}

func (p *picture) router(r Router) place {
	start := p.y
	var lines []string
	lines = append(lines, wrap(r.way(), 30)...)
	height := headHeight - lineHeight + lineHeight*len(lines)
	var ends []int
	for _, n := range r.Networks {
		ends = append(ends, p.network(n, ""))
	}
	notesHeight := 0
	var notes []string
	for _, note := range r.Notes {
		notes = append(notes, wrap(note, 38)...)
	}
	if len(notes) > 0 {
		notesHeight = 8 + lineHeight*len(notes)
	}
	span := max(p.y-start, height+notesHeight+blockGap)
	p.y = start + span
	top := start + (span-blockGap-height-notesHeight)/2
	middle := top + height/2
	for _, y := range ends {
		p.edge(routerX+routerWidth, middle, netX, y, "edge")
	}
	p.box(routerX, top, routerWidth, height, "#e6f0fa", "#7fa8cf")
	p.text(routerX+16, top+26, "name", fit("router "+r.Name, 22))
	for i, line := range lines {
		p.text(routerX+16, top+46+lineHeight*i, "small", line)
	}
	for i, line := range notes {
		p.text(routerX+4, top+height+18+lineHeight*i, "warn", line)
	}
	return place{y: middle, open: len(r.Uplink) > 0}
}

// network draws a network with a row for each port, and returns where the curve to it ends.
func (p *picture) network(n Network, note string) int {
	head := headHeight
	ranges := n.rangeLines()
	head += lineHeight * (len(ranges) - 1)
	body := 0
	for _, port := range n.Ports {
		body += portHeight(port)
	}
	height := head + body
	if body > 0 {
		height += 6
	}
	p.box(netX, p.y, netWidth, height, "#ffffff", "#bcccdc")
	fmt.Fprintf(&p.boxes, `<rect x="%d" y="%d" width="6" height="%d" rx="3" fill="#3e9b6e"/>`+"\n", netX, p.y+10, head-20)
	title := "network " + n.Name
	if note != "" {
		title += " (" + note + ")"
	}
	p.text(netX+20, p.y+25, "name", fit(title, 62))
	fmt.Fprintf(&p.boxes, `<text class="small" x="%d" y="%d" text-anchor="end">MTU %d</text>`+"\n", netX+netWidth-16, p.y+25, n.MTU)
	for i, line := range ranges {
		p.text(netX+20, p.y+45+lineHeight*i, "mono", line)
	}
	y := p.y + head
	for _, port := range n.Ports {
		p.port(port, y)
		y += portHeight(port)
	}
	end := p.y + height/2
	p.y += height + blockGap
	return end
}

func (n Network) rangeLines() []string {
	lines := make([]string, 0, len(n.Ranges)+1)
	for _, r := range n.Ranges {
		line := r.CIDR
		if r.Gateway != "" {
			line += "  gateway " + r.Gateway
		}
		lines = append(lines, fit(line, 80))
	}
	if len(lines) == 0 {
		return []string{"no subnets"}
	}
	return lines
}

// portLines are the lines of a port's right column.
func portLines(port Port) []string {
	lines := make([]string, 0, len(port.Addresses)+1)
	for _, a := range port.Addresses {
		lines = append(lines, fit(a, 40))
	}
	if len(port.Published) > 0 {
		lines = append(lines, fit("⇐ "+strings.Join(port.Published, ", "), 40))
	}
	return lines
}

func portHeight(port Port) int {
	return rowHeight + lineHeight*(max(len(portLines(port)), 1)-1)
}

func (p *picture) port(port Port, y int) {
	fmt.Fprintf(&p.boxes, `<line class="row" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", netX+16, y, netX+netWidth-16, y)
	fill := "#3e9b6e"
	if !port.Plugged {
		fill = "#cbd2d9"
	}
	fmt.Fprintf(&p.boxes, `<circle cx="%d" cy="%d" r="4.5" fill="%s"/>`+"\n", netX+26, y+16, fill)
	p.text(netX+40, y+20, "", fit(port.Name, 26))
	p.text(netX+236, y+20, "mono", fit(port.MAC, 18))
	for i, line := range portLines(port) {
		p.text(netX+380, y+20+lineHeight*i, "mono", line)
	}
}

// fit cuts s to so many characters.
func fit(s string, most int) string {
	s = table.Printable(s)
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// wrap cuts s at spaces into lines of at most so many characters.
func wrap(s string, most int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(s) {
		word = fit(word, most)
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > most {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

func escape(s string) string {
	var out strings.Builder
	_ = xml.EscapeText(&out, []byte(table.Printable(s)))
	return out.String()
}
