//go:build linux

package router

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/kuryr/kuryr/internal/nstest"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// A kernel that lacks something says "no such file or directory"; the operator is told what.
func TestWhatTheKernelLacks(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	hook := nftables.ChainHookPrerouting
	for name, c := range map[string]struct {
		table table
		says  []string
	}{
		"family": {table{family: nftables.TableFamily(77)}, []string{"family", "CONFIG_NF_TABLES_"}},
		"chain": {
			table{family: nftables.TableFamilyINet, chains: []nft.Chain{{Name: "good"}, {
				Name: "bad", Type: "kuryr", Hook: hook,
			}}},
			[]string{"chains of type kuryr", "inet"},
		},
		"rule": {
			table{family: nftables.TableFamilyINet, chains: []nft.Chain{{Name: "good",
				Type: nftables.ChainTypeFilter, Hook: hook, Rules: []nft.Rule{
					nft.NewRule("translate", nft.Masquerade), // only in a chain of type nat
				}}}},
			[]string{"translate", "CONFIG_NFT_MASQ"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := nft.Dial(int(ns))
			must(t, err)
			defer func() { _ = conn.Close() }()
			refused := c.table.create(conn, false)
			if refused == nil {
				t.Fatal("the kernel can do it")
			}
			err = c.table.explain(refused)
			for _, word := range c.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the message does not say %q: %v", word, err)
				}
			}
			if !errors.Is(err, refused) {
				t.Errorf("the message has lost its cause: %v", err)
			}
			tables, err := conn.ListTables()
			must(t, err)
			if len(tables) != 0 {
				t.Errorf("%d tables are left", len(tables))
			}
		})
	}
	// Another failure stays what it is.
	if err := (table{}).explain(unix.EPERM); !errors.Is(err, unix.EPERM) || strings.Contains(err.Error(), "CONFIG") {
		t.Error(err)
	}
}
