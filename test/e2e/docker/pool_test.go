//go:build e2e

package docker_test

import (
	"context"
	"errors"
	"flag"
	"sync"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// hosts is the pool of hosts with an engine and Kuryr. It has as many as tests may run in
// parallel, so no test waits.
var hosts = sync.OnceValue(func() *privatehost.Pool {
	parallel := flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int)
	return privatehost.NewPool(parallel, bootHost)
})

// bootHost starts a host of the pool. Some objects are made once and kept: Kuryr's table of
// the firewall by its first network, the engine's tables for IPv6 by the first container on
// a bridge with IPv6, the link-local address of the engine's own bridge by its first
// container. So two networks and two containers come and go before the host's state is
// read.
func bootHost(ctx context.Context) (*privatehost.Host, error) {
	opts := privatehost.Options{Docker: true, Kuryr: kuryr}
	if onShared {
		opts, _ = shared(opts)
	}
	h, err := privatehost.New(ctx, opts)
	if err != nil {
		return nil, err
	}
	err = importBox(ctx, h)
	for _, args := range [][]string{
		createArgs("first", "--ipv6", "--subnet", "10.20.0.0/24", "--subnet", "fd20::/64"),
		{"network", "create", "--ipv6", "--subnet", "10.20.1.0/24", "--subnet", "fd20:1::/64", "second"},
		{"run", "--rm", "--network", "second", "box", "true"},
		{"run", "--rm", "box", "true"},
		{"network", "rm", "first", "second"},
	} {
		if err == nil {
			err = h.Docker(ctx, args...).Err()
		}
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// kuryrWith restarts Kuryr with these arguments (nil: those it has) and more variables.
// The end of the test undoes it.
func (r rig) kuryrWith(t *testing.T, args, env []string) rig {
	t.Helper()
	restart := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := errors.Join(r.KillKuryr(syscall.SIGTERM), r.StartKuryr(ctx, nil, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if args != nil {
		args = onThisSDN(args)
	}
	undo := r.KuryrWith(args, env)
	t.Cleanup(func() {
		undo()
		restart()
	})
	restart()
	return r
}
