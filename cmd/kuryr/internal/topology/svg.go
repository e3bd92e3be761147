package topology

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
)

// Measures of the picture, in pixels. Routers are cards with their networks and ports, one
// below the other in as many columns as give a picture of about the shape of a screen.
const (
	margin      = 32
	titleHeight = 60
	columnGap   = 24
	cardGap     = 18
	padding     = 16
	leastWidth  = 520
	charWidth   = 7.4  // of a character of the monospaced font
	headWidth   = 8.6  // of one of a heading
	shape       = 1.5  // width to height
	slack       = 1.05 // for cards that are broken, whose titles stand again
	nameChars   = 64   // longer names are broken
	textChars   = 80   // and longer lines
)

const style = `
text{font-family:system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;font-size:13px;fill:#1f2933}
.mono{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,monospace;font-size:12px;fill:#3e4c59}
.title{font-size:20px;font-weight:600}
.name{font-weight:600;font-size:14px}
.small{font-size:11.5px;fill:#52606d}
.warn{fill:#b44d12;font-size:11.5px}
.row{stroke:#e4e7eb}
`

// cell is a text of a row; its column stands at a number of characters from the left.
type cell struct {
	class, text string
	column      int
}

// row is a line of a card.
type row struct {
	cells    []cell
	height   int
	kind     rowKind
	plugged  bool
	together int // so many rows after it stay in its column
}

type rowKind int

const (
	rowText rowKind = iota
	rowRouter
	rowNetwork
	rowPort
)

// card is a router with its networks, or a network on no router.
type card struct {
	title string
	rows  []row
}

// SVG writes the graph as a picture that needs nothing else: no fonts, no scripts, no other
// files.
func (g Graph) SVG(w io.Writer) error {
	cards := g.cards()
	p := &picture{width: cardWidth(cards)}
	p.place(cards)
	width := max(2*margin+p.columns*p.width+(p.columns-1)*columnGap, 2*margin+leastWidth)
	height := p.bottom + margin

	var out strings.Builder
	const head = `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">` + "\n"
	fmt.Fprintf(&out, head, width, height, width, height)
	fmt.Fprintf(&out, "<title>%s</title>\n<style>%s</style>\n", escape("Kuryr on "+g.Host), style)
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="#f8fafc"/>`+"\n", width, height)
	fmt.Fprintf(&out, `<text class="title" x="%d" y="%d">%s</text>`+"\n",
		margin, margin+14, escape("Kuryr networks on "+g.Host))
	fmt.Fprintf(&out, `<text class="small" x="%d" y="%d">%s</text>`+"\n", margin, margin+34, escape(g.summary()))
	out.WriteString(p.out.String())
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

func (g Graph) cards() []card {
	var all []card
	for _, r := range g.Routers {
		c := card{title: "router " + r.Name}
		c.text("name", c.title, rowRouter)
		c.text("small", r.way(), rowText)
		for _, note := range r.Notes {
			c.text("warn", note, rowText)
		}
		for _, n := range r.Networks {
			c.network(n, "")
		}
		all = append(all, c)
	}
	for _, n := range g.Networks {
		c := card{title: "network " + n.Name}
		c.network(n, " (on no router)")
		all = append(all, c)
	}
	if len(all) == 0 {
		c := card{}
		c.text("small", "no networks yet", rowText)
		all = []card{c}
	}
	return all
}

// text adds a text in as many rows as it needs.
func (c *card) text(class, text string, kind rowKind) {
	height := 18
	if class == "name" {
		height = 26
	}
	for _, line := range wrap(text, textChars) {
		c.rows = append(c.rows, row{cells: []cell{{class: class, text: line}}, height: height, kind: kind, together: 1})
		kind = rowText
	}
}

func (c *card) network(n Network, suffix string) {
	start := len(c.rows)
	c.text("name", "network "+n.Name+suffix, rowNetwork)
	for _, r := range n.Ranges {
		line := r.CIDR
		if r.Gateway != "" {
			line += "  gateway " + r.Gateway
		}
		c.text("mono", line, rowText)
	}
	if len(n.Ranges) == 0 {
		c.text("mono", "no subnets", rowText)
	}
	c.text("small", fmt.Sprintf("MTU %d", n.MTU), rowText)
	for i := start; i < len(c.rows); i++ { // with the first port
		c.rows[i].together = len(c.rows) - i
	}
	if len(n.Ports) == 0 {
		c.rows[len(c.rows)-1].together = 0
	}
	names := 0
	for _, p := range n.Ports {
		names = max(names, min(utf8.RuneCountInString(table.Printable(p.Name)), nameChars))
	}
	for _, p := range n.Ports {
		c.port(p, names)
	}
}

// port adds a port: its name, its MAC, and a line for each address and for what is published.
func (c *card) port(p Port, names int) {
	right := append([]string(nil), p.Addresses...)
	for _, published := range p.Published {
		right = append(right, "⇐ "+published)
	}
	left := wrap(p.Name, nameChars)
	lines := max(len(left), len(right), 1)
	for i := range lines {
		r := row{height: 18, together: lines - 1 - i}
		if i == 0 {
			r.kind, r.plugged = rowPort, p.Plugged
			r.height = 22
			r.cells = append(r.cells, cell{class: "mono", text: p.MAC, column: 5 + names})
		}
		if i < len(left) {
			r.cells = append(r.cells, cell{class: "mono", text: left[i], column: 3})
		}
		if i < len(right) {
			r.cells = append(r.cells, cell{class: "mono", text: right[i], column: 5 + names + 19})
		}
		c.rows = append(c.rows, r)
	}
}

// cardWidth is what the widest row needs.
func cardWidth(cards []card) int {
	width := float64(leastWidth)
	for _, c := range cards {
		for _, r := range c.rows {
			for _, t := range r.cells {
				of := charWidth
				if t.class == "name" {
					of = headWidth
				}
				end := float64(t.column)*charWidth + float64(utf8.RuneCountInString(table.Printable(t.text)))*of
				width = max(width, end+2*padding)
			}
		}
	}
	return int(math.Ceil(width))
}

// picture is drawn column by column.
type picture struct {
	width   int // of a column
	columns int
	bottom  int // the lowest that is drawn
	out     strings.Builder
}

const top = titleHeight + margin

// place draws the cards. One that does not fit goes on in the next column.
func (p *picture) place(cards []card) {
	total := 0
	for _, c := range cards {
		total += c.height() + cardGap
	}
	columns := max(1, math.Round(math.Sqrt(shape*float64(total)/float64(p.width+columnGap))))
	limit := top + int(math.Ceil(slack*float64(total)/columns))
	p.columns, p.bottom = 1, top
	y := top
	for _, c := range cards {
		rows := c.rows
		for len(rows) > 0 {
			n, height := fitting(rows, limit-y-2*padding)
			if n == 0 && y > top {
				p.columns++
				y = top
				continue
			}
			if n == 0 { // the column is empty, and too low for what stays together
				n, height = unbroken(rows)
			}
			p.card(rows[:n], y, height+2*padding)
			y += height + 2*padding + cardGap
			p.bottom = max(p.bottom, y-cardGap)
			rows = rows[n:]
			if len(rows) > 0 {
				again := card{}
				again.text("name", c.title+" (continued)", rowRouter)
				rows = append(again.rows, rows...)
				p.columns++
				y = top
			}
		}
	}
}

func (c card) height() int {
	height := 2 * padding
	for _, r := range c.rows {
		height += r.height
	}
	return height
}

// fitting returns how many of the rows fit, and how high they are.
func fitting(rows []row, space int) (n, height int) {
	sum := 0
	for i, r := range rows {
		sum += r.height
		if sum > space {
			break
		}
		last := i == len(rows)-1
		if r.together == 0 || last {
			n, height = i+1, sum
		}
	}
	return n, height
}

// unbroken returns how many of the first rows must stay together, and their height.
func unbroken(rows []row) (n, height int) {
	for i, r := range rows {
		n, height = i+1, height+r.height
		if r.together == 0 {
			break
		}
	}
	return n, height
}

// card draws rows in a box.
func (p *picture) card(rows []row, y, height int) {
	x := margin + (p.columns-1)*(p.width+columnGap)
	fmt.Fprintf(&p.out, `<rect x="%d" y="%d" width="%d" height="%d" rx="10" fill="#ffffff" stroke="#bcccdc"/>`+"\n",
		x, y, p.width, height)
	y += padding
	for _, r := range rows {
		switch r.kind {
		case rowRouter:
			p.bar(x, y, r.height, "#7fa8cf")
		case rowNetwork:
			p.bar(x, y, r.height, "#3e9b6e")
		case rowPort:
			fmt.Fprintf(&p.out, `<line class="row" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n",
				x+padding, y+1, x+p.width-padding, y+1)
			fill := "#3e9b6e"
			if !r.plugged {
				fill = "#cbd2d9"
			}
			fmt.Fprintf(&p.out, `<circle cx="%d" cy="%d" r="4" fill="%s"/>`+"\n", x+padding+8, y+r.height-8, fill)
		}
		for _, t := range r.cells {
			fmt.Fprintf(&p.out, `<text class="%s" x="%.0f" y="%d">%s</text>`+"\n",
				t.class, float64(x+padding)+float64(t.column)*charWidth, y+r.height-4, escape(t.text))
		}
		y += r.height
	}
}

// bar marks a heading.
func (p *picture) bar(x, y, height int, fill string) {
	fmt.Fprintf(&p.out, `<rect x="%d" y="%d" width="6" height="%d" rx="3" fill="%s"/>`+"\n", x, y+4, height-4, fill)
}

// wrap breaks s into lines of at most so many characters: at spaces, and a longer word
// anywhere.
func wrap(s string, most int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(table.Printable(s)) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > most {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
		for utf8.RuneCountInString(line) > most {
			runes := []rune(line)
			lines = append(lines, string(runes[:most]))
			line = string(runes[most:])
		}
	}
	return append(lines, line)
}

func escape(s string) string {
	var out strings.Builder
	_ = xml.EscapeText(&out, []byte(table.Printable(s)))
	return out.String()
}
