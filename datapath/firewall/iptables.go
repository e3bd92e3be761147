//go:build linux

package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/nftables"
)

// family is one of iptables' two programs.
type family struct {
	name     string
	program  string
	ufwChain string
	nft      nftables.TableFamily
}

var families = []family{
	{name: "ipv4", program: "iptables", ufwChain: "ufw-before-forward", nft: nftables.TableFamilyIPv4},
	{name: "ipv6", program: "ip6tables", ufwChain: "ufw6-before-forward", nft: nftables.TableFamilyIPv6},
}

// lockWait is how many seconds the programs wait for another user of theirs.
const lockWait = "10"

// errUnreadable is in the chain when a filter table has rules that iptables cannot show.
var errUnreadable = errors.New("the filter table has rules that iptables cannot show")

// owns reports whether an nftables table is the family's filter table.
func (f family) owns(t *nftables.Table) bool { return t.Name == "filter" && t.Family == f.nft }

// read returns the family's filter table; nil where there is no such program, or no such
// family in the kernel. It makes nothing: `iptables -S` shows an absent table without
// creating it.
func (f family) read(ctx context.Context) (*ruleset, error) {
	path, ok := f.find(ctx, "")
	if !ok {
		return nil, nil
	}
	text, err := run(ctx, "", path, "-w", lockWait, "-S")
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "is incompatible"):
		return nil, fmt.Errorf("%s: %w (%w)", f.name, errUnreadable, err)
	case strings.Contains(err.Error(), "do you need to insmod"),
		strings.Contains(err.Error(), "Protocol not supported"),
		strings.Contains(err.Error(), "family not supported"):
		return nil, nil
	default:
		return nil, err
	}
	rs, err := parseRuleset(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	return rs, nil
}

// apply changes the filter table by lines of iptables-restore, all or none.
func (f family) apply(ctx context.Context, lines []string) error {
	path, ok := f.find(ctx, "-restore")
	if !ok {
		return fmt.Errorf("%s-restore is not installed, though %s is", f.program, f.program)
	}
	_, err := run(ctx, "*filter\n"+strings.Join(lines, "\n")+"\nCOMMIT\n", path, "-w", lockWait, "--noflush")
	return err
}

// legacy reports whether the family's program keeps its rules outside nftables, where the
// kernel has no events of changes.
func (f family) legacy(ctx context.Context) bool {
	path, ok := f.find(ctx, "")
	if !ok {
		return false
	}
	text, err := run(ctx, "", path, "-V")
	return err == nil && !strings.Contains(text, "nf_tables")
}

// findProgram looks in PATH and in the folders of system programs, which a service's PATH may lack.
func findProgram(name string) (string, bool) {
	for _, candidate := range []string{name, filepath.Join("/usr/sbin", name), filepath.Join("/sbin", name)} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path, true
		}
	}
	return "", false
}

// run returns what a program printed; its error has its messages.
func run(ctx context.Context, input, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(cmd.Environ(), "LC_ALL=C")
	cmd.Stdin = strings.NewReader(input)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf(
			"%s %s: %w: %s", filepath.Base(path), strings.Join(args, " "), err,
			strings.TrimSpace(complaint.String()),
		)
	}
	return out.String(), nil
}
