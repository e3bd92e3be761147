package engine

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/kuryr/kuryr/sdn"
)

// What the clients of a subnet's addresses do, and what they are answered.
type (
	allocation struct {
		wanted  netip.Addr // invalid: any
		release netip.Addr // valid: give this back
	}
	answer struct {
		got    netip.Addr
		reason sdn.Reason // why not
	}
)

// allocator is the sequential meaning of a subnet's addresses: each is taken or not. Which address
// an operation was about is known from the answer at the latest, so each address has a history of
// its own (linearizability is compositional).
func allocator() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byAddr := map[netip.Addr][]porcupine.Operation{}
			for _, op := range history {
				in, out := op.Input.(allocation), op.Output.(answer)
				a := out.got
				for _, other := range []netip.Addr{in.wanted, in.release} {
					if other.IsValid() {
						a = other
					}
				}
				byAddr[a] = append(byAddr[a], op)
			}
			return slices.Collect(maps.Values(byAddr))
		},
		Init: func() any { return false },
		Step: func(state, in, out any) (bool, any) {
			taken, op, ans := state.(bool), in.(allocation), out.(answer)
			switch {
			case op.release.IsValid():
				return taken, false
			case ans.reason == sdn.AddressInUse:
				return taken, taken
			}
			return !taken && (!op.wanted.IsValid() || op.wanted == ans.got), true
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
	}
}

func TestAllocationIsLinearizable(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	ctx := context.Background()
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: netip.MustParsePrefix("10.0.0.0/25")}}})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var history []porcupine.Operation
	begin := time.Now()
	record := func(client int, in allocation, call func() answer) answer {
		from := time.Since(begin).Nanoseconds()
		out := call()
		to := time.Since(begin).Nanoseconds()
		mu.Lock()
		defer mu.Unlock()
		history = append(history, porcupine.Operation{ClientId: client, Input: in, Call: from, Output: out, Return: to})
		return out
	}
	var clients sync.WaitGroup
	for client := range 64 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(client), 1))
			for range 16 {
				op := allocation{}
				spec := sdn.PortSpec{Network: n.ID}
				if random.IntN(2) == 0 {
					op.wanted = netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + random.IntN(125))})
					spec.Addresses = []sdn.Address{{Addr: op.wanted}}
				}
				var id sdn.ID
				got := record(client, op, func() answer {
					ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{spec})
					if err != nil {
						if sdn.ReasonOf(err) == sdn.AddressInUse {
							return answer{reason: sdn.AddressInUse}
						}
						t.Error(err)
						return answer{}
					}
					id = ports[0].ID
					return answer{got: ports[0].Addresses[0].Addr}
				})
				if id != "" {
					record(client, allocation{release: got.got}, func() answer {
						if err := p.DeletePorts(ctx, []sdn.ID{id}); err != nil {
							t.Error(err)
						}
						return answer{}
					})
				}
			}
		})
	}
	clients.Wait()
	if t.Failed() {
		return
	}
	result, info := porcupine.CheckOperationsVerbose(allocator(), history, time.Minute)
	if result != porcupine.Ok {
		path := t.TempDir() + "/history.html"
		_ = porcupine.VisualizePath(allocator(), info, path)
		t.Fatalf("the history of %d operations is not linearizable: %s", len(history), result)
	}
}
