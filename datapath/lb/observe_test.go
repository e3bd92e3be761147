//go:build linux

package lb

import (
	"context"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
)

// Each transaction is told of with what it changes, whatever the kernel has besides: a
// change costs the change, and none costs nothing.
func TestTransactionsAreObserved(t *testing.T) {
	ns := nstest.New(t)
	var told []Transaction
	table := New(Config{
		Observe: func(one Transaction) { told = append(told, one) },
		Run: func(f func() error) (err error) {
			nstest.Do(t, ns, func() { err = f() })
			return err
		},
	})
	defer table.Close()
	ctx, many := context.Background(), crowd(300)
	elsewhere := member2(7)
	elsewhere.Endpoints = member2(400).Endpoints[:1]
	elsewhere.Endpoints = append(elsewhere.Endpoints, member2(7).Endpoints[0])
	for _, step := range []struct {
		name string
		do   func() error
		want []int // elements of each transaction
	}{
		// Each has a service, two endpoints and two addresses of endpoints, and all have one profile.
		{"all of them", func() error { return table.Restore(ctx, many) }, []int{300*5 + 1}},
		{"the same again", func() error { return table.Restore(ctx, many) }, nil},
		{"what is there already", func() error { return table.Apply(ctx, many[:2], nil) }, nil},
		{"one more", func() error { return table.Apply(ctx, []Frontend{member2(300)}, nil) }, []int{5}},
		{"another endpoint", func() error { return table.Apply(ctx, []Frontend{elsewhere}, nil) }, []int{4}},
		{"one less", func() error { return table.Apply(ctx, nil, []Key{member2(300).Key}) }, []int{5}},
		{"one that is not there", func() error { return table.Apply(ctx, nil, []Key{member2(300).Key}) }, nil},
	} {
		told = nil
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if len(told) != len(step.want) {
			t.Fatalf("%s: told of %+v, want transactions of %v elements", step.name, told, step.want)
		}
		for i, one := range told {
			if one.Elements != step.want[i] || one.Err != nil || one.Took <= 0 {
				t.Errorf("%s: told of %+v, want %d elements", step.name, one, step.want[i])
			}
		}
	}
}

// What the kernel refuses is told of with its error, and then what repairs it.
func TestRefusedTransactionIsObserved(t *testing.T) {
	ns := nstest.New(t)
	var told []Transaction
	inside := func(f func() error) (err error) {
		nstest.Do(t, ns, func() { err = f() })
		return err
	}
	ctx := context.Background()
	table := New(Config{Observe: func(one Transaction) { told = append(told, one) }, Run: inside})
	defer table.Close()
	must(t, table.Restore(ctx, crowd(1)))
	other := New(Config{Run: inside})
	must(t, other.Remove(ctx))
	must(t, other.Close())
	told = nil
	must(t, table.Apply(ctx, []Frontend{member2(1)}, nil))
	if len(told) != 2 || told[0].Err == nil || told[1].Err != nil || told[1].Elements != 2*5+1 {
		t.Errorf("told of %+v, want one that was refused, and then all anew", told)
	}
}
