package local

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// A disk that fails after a change has become visible, or before: the kernel follows what readers of the store see, the error says what was
// wrong and with which file, and a repeat succeeds when the disk is well again.
func TestDiskFailure(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, end := range map[string]func(*bbolt.Tx) error{
		"before": func(b *bbolt.Tx) error { return errors.Join(unix.EIO, b.Rollback()) },
		"after":  func(b *bbolt.Tx) error { return errors.Join(unix.EIO, b.Commit()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFake()
			p := open(t, Options{Datapath: fake})
			onDisk(p, end)
			spec := sdn.NetworkSpec{Base: sdn.Base{Key: sdn.Key{Owner: p.Installation(), Kind: "k", Name: "n"}}}
			_, err := p.EnsureNetwork(ctx, spec)
			if !sdn.IsUnavailable(err) || !strings.Contains(err.Error(), unix.EIO.Error()) || !strings.Contains(err.Error(), p.db.Path()) || !sdn.IsOfHost(err) {
				t.Errorf("the error is %v", err)
			}
			checkSum(t, p)
			if p.store.(*boltStore).unsynced != (name == "after") {
				t.Errorf("unsynced: %v", p.store.(*boltStore).unsynced)
			}
			onDisk(p, (*bbolt.Tx).Commit)
			n, err := p.EnsureNetwork(ctx, spec)
			ok(t, err)
			if p.store.(*boltStore).unsynced {
				t.Error("the store is unsynced after a change that was written")
			}
			ok(t, p.DeleteNetwork(ctx, n.ID))
			checkSum(t, p)
		})
	}
}

// A range that the host cannot reach because another router has the like is reached when that one goes, or lets go of it.
func TestReachedWhenFree(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, free := range map[string]func(*testing.T, *Provider, sdn.Router, sdn.ID){
		"detached": func(t *testing.T, p *Provider, r sdn.Router, s sdn.ID) { ok(t, p.DetachSubnet(ctx, r.ID, s)) },
		"detached while the kernel failed": func(t *testing.T, p *Provider, r sdn.Router, s sdn.ID) {
			fake := p.datapath.(*fakeKernel)
			fake.fail = func(string, string) error { return errInjected }
			ok(t, p.DetachSubnet(ctx, r.ID, s))
			fake.fail = nil
			ok(t, p.sync.retry(ctx))
		},
		"without a way out": func(t *testing.T, p *Provider, r sdn.Router, _ sdn.ID) {
			_, err := p.UpdateRouter(ctx, r.ID, sdn.RouterPatch{Gateway: &sdn.ExternalGateway{}})
			ok(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFake()
			fake.alone = true
			p := open(t, Options{Datapath: fake})
			var routers []sdn.Router
			var subnets []sdn.ID
			for range 3 {
				n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
				ok(t, err)
				r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork}})
				ok(t, err)
				ok(t, p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}))
				routers, subnets = append(routers, r), append(subnets, n.Subnets[0])
			}
			unreached := func() (n int) {
				for _, r := range routers {
					r, err := p.Router(ctx, r.ID)
					ok(t, err)
					n += len(r.Unreached)
				}
				return n
			}
			if n := unreached(); n != 2 {
				t.Fatalf("%d ranges are not reached, want 2", n)
			}
			free(t, p, routers[0], subnets[0])
			if n := unreached(); n != 1 {
				t.Errorf("%d ranges are not reached, want 1: two routers share a place that was freed", n)
			}
			checkSum(t, p)
		})
	}
}

// What is not the kernel's affair is changed also while the kernel fails: a network that is to go is marked so.
func TestTagsDoNotWaitForTheKernel(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	fake := newFake()
	p := open(t, Options{Datapath: fake})
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}}})
	ok(t, err)
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork}})
	ok(t, err)
	fake.fail = func(string, string) error { return errInjected }
	if err := p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}); !sdn.IsUnavailable(err) {
		t.Fatal("the kernel fails, and the answer is: ", err)
	}
	tags := []string{"to go"}
	if _, err := p.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{Tags: &tags}}); err != nil {
		t.Errorf("a tag waited for the kernel: %v", err)
	}
	ok(t, p.DetachSubnet(ctx, r.ID, n.Subnets[0]))
	ok(t, p.DeleteRouter(ctx, r.ID))
	ok(t, p.DeleteNetwork(ctx, n.ID))
}

// onDisk sets how the provider's store commits.
func onDisk(p *Provider, commit func(*bbolt.Tx) error) { p.store.(*boltStore).commit = commit }
