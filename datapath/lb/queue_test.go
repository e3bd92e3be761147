//go:build linux

package lb

import (
	"context"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/nstest"
)

// TestUnknownSet checks that an element of a set that the tables do not have is an error, and
// that nothing is changed then.
func TestUnknownSet(t *testing.T) {
	t.Parallel()
	ctx, w := context.Background(), &world{t: t, router: nstest.New(t)}
	config := w.config()
	config.Bridges = ""
	w.table = New(config)
	t.Cleanup(func() { _ = w.table.Close() })
	w.restore(to(key(vip4, 6), "a"))
	known := key(vip4, 17).cleanup()
	for _, set := range []string{"unknown4", answers(nft.V4)} { // the latter is of the bridge table
		unknown := nft.Element{Set: set, Key: known.Key}
		for _, c := range []change{
			{add: []nft.Element{known, unknown}}, {remove: []nft.Element{unknown}, add: []nft.Element{known}},
		} {
			if err := w.table.kernel.commit(ctx, &c); err == nil || !strings.Contains(err.Error(), set) {
				t.Errorf("element of set %s: %v, want an error that names it", set, err)
			}
			w.table.reopen()
			must(t, w.table.open())
		}
		err := w.table.kernel.tidy(ctx, []nft.Element{unknown}, []string{"lead4_to1"})
		if err == nil || !strings.Contains(err.Error(), set) {
			t.Errorf("unused element of set %s: %v, want an error that names it", set, err)
		}
		w.table.reopen()
		must(t, w.table.open())
	}
	w.whole()
}
