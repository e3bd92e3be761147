//go:build linux

package nstest

import (
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// No test runs on the first thread, whose namespace /proc/self shows to all others.
func TestFirstThread(t *testing.T) {
	t.Parallel()
	var threads sync.WaitGroup
	for range 100 {
		threads.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if unix.Gettid() == unix.Getpid() {
				t.Error("a test has the first thread")
			}
		})
	}
	threads.Wait()
}

// report keeps that a test failed, instead of failing.
type report struct {
	testing.TB
	failed bool
}

func (r *report) Helper()               {}
func (r *report) Errorf(string, ...any) { r.failed = true }

// TestWantRuleset checks that a table, set, element or chain that the file lacks is a difference,
// and that the written file has none.
func TestWantRuleset(t *testing.T) {
	ns, file := New(t), t.TempDir()+"/test.ruleset"
	c, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		t.Fatal(err)
	}
	table := &nftables.Table{Name: "test", Family: nftables.TableFamilyINet}
	set := &nftables.Set{Table: table, Name: "marks", KeyType: nftables.TypeMark}
	steps := []struct {
		name   string
		change func() error
	}{
		{"table", func() error { c.AddTable(table); return nil }},
		{"set", func() error { return c.AddSet(set, nil) }},
		{"element", func() error {
			return c.SetAddElements(set, []nftables.SetElement{{Key: []byte{1, 2, 3, 4}}})
		}},
		{"chain", func() error { c.AddChain(&nftables.Chain{Table: table, Name: "empty"}); return nil }},
	}
	write := func() {
		t.Setenv(writeRulesets, "1")
		WantRuleset(t, ns, file)
		t.Setenv(writeRulesets, "")
	}
	for _, s := range steps {
		write()
		if err := s.change(); err != nil {
			t.Fatal(err)
		}
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		r := &report{TB: t}
		if WantRuleset(r, ns, file); !r.failed {
			t.Errorf("%s: no difference", s.name)
		}
	}
	write()
	WantRuleset(t, ns, file)
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		differences("a\nb", "a\nc"): "- b\n+ c\n",
		differences("a\nb", "b\na"): "the same lines in another order",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
