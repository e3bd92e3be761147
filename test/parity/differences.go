package parity

import (
	"fmt"
	"path"
	"slices"
)

// A Difference is one that there is between the two, and why. Steps and Where are patterns of path.Match.
type Difference struct {
	Steps  string // by name
	Where  string // "status", "error", "value of …", or where in the answer
	Reason string
}

// Check compares the answers of a Neutron with those of Kuryr. It gives a line for each difference that is not listed, and for each that is listed and is
// none.
func Check(neutron, kuryr map[string]Answer) []string {
	var wrong []string
	seen := make([]bool, len(Differences))
	for _, step := range Table {
		for _, line := range compare(neutron[step.Name], kuryr[step.Name]) {
			where := line[:lastColon(line)]
			listed := false
			for i, d := range Differences {
				if fits(d.Steps, step.Name) && fits(d.Where, where) {
					seen[i], listed = true, true
				}
			}
			if !listed {
				wrong = append(wrong, fmt.Sprintf("%s: %s", step.Name, line))
			}
		}
	}
	for i, d := range Differences {
		if !seen[i] {
			wrong = append(wrong, fmt.Sprintf("listed, and no difference any more: %+v", d))
		}
	}
	return slices.Clip(wrong)
}

// lastColon is where the place ends in a line of compare: names of attributes have colons too, but no space behind them.
func lastColon(line string) int {
	for i := range len(line) - 1 {
		if line[i] == ':' && line[i+1] == ' ' {
			return i
		}
	}
	return len(line)
}

func fits(pattern, s string) bool {
	ok, err := path.Match(pattern, s)
	return err == nil && ok
}

// Differences are all that there are between Neutron (with OVN) and Kuryr's REST API over the embedded SDN.
var Differences = []Difference{}
