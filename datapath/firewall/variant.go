//go:build linux

package firewall

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
)

// procNet is where the kernel tells of the host's legacy tables. /proc/net is the first
// thread's, which may be visiting another namespace.
const procNet = "/proc/thread-self/net"

// find gives the path of the family's program, or of the one beside it with the suffix.
// Where there is none by the plain name, which is the host's own choice, but both
// variants (Docker's managed plugin brings them along), it is the one that the host's
// rules are made with.
func (f family) find(ctx context.Context, suffix string) (string, bool) {
	if path, ok := findProgram(f.program + suffix); ok {
		return path, true
	}
	if f.madeByLegacy(ctx, procNet) {
		return findProgram(f.program + "-legacy" + suffix)
	}
	return findProgram(f.program + "-nft" + suffix)
}

// madeByLegacy reports whether the filter table's rules are kept outside nftables: the
// legacy one has something in it, and Docker's chains are not in the other. It makes no
// table, since the kernel is first asked which there are.
func (f family) madeByLegacy(ctx context.Context, procNet string) bool {
	tables, err := os.ReadFile(procNet + "/" + strings.TrimSuffix(f.program, "tables") + "_tables_names")
	if err != nil || !slices.Contains(strings.Fields(string(tables)), "filter") {
		return false
	}
	return !dockersChain.MatchString(f.list(ctx, "-nft")) && notEmpty.MatchString(f.list(ctx, "-legacy"))
}

var (
	dockersChain = regexp.MustCompile(`(?m)^-N DOCKER\b`)
	notEmpty     = regexp.MustCompile(`(?m)^(-[NAI] |-P \S+ DROP)`)
)

// list shows the filter table as a variant of the program sees it; "" where there is no such.
func (f family) list(ctx context.Context, variant string) string {
	path, ok := findProgram(f.program + variant)
	if !ok {
		return ""
	}
	text, err := run(ctx, "", path, "-w", lockWait, "-S")
	if err != nil {
		return ""
	}
	return text
}
