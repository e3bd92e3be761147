//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// What is measured of Services, for each number of them.
const (
	serviceChanges  = 20 // one after another, or
	fewestChanges   = 1  // where they take longer than
	changesLasting  = 10 * time.Second
	connectTurns    = 40  // of so many connections
	serviceConnects = 500 // one after another, for latencies
	serviceClients  = 4   // at once, for their rate
	rateTurns       = 9
	rateLasting     = time.Second
	streamTurns     = 25
	streamSize      = 256 << 20
	mostLoads       = 30000 // Services that are loaded by each in all, so that few are loaded several times
	loadLimit       = 5 * time.Minute
	changeLimit     = 4 * time.Minute
)

// Goals: no worse than kube-proxy, what a VIP leaves of throughput, and times that are the daemon's alone.
const (
	goalProxy      = 1
	goalVIP        = 0.95
	goalOneMore    = 5 * time.Millisecond
	goalKernelLoad = time.Second
)

// services measures Kuryr's daemon of a node, which balances ClusterIPs too, against kube-proxy in nftables mode: the same machine, API server and objects, each on a host of its own. What is
// changed is measured on one after the other, connections in turns, while one daemon has ended, the other is stopped, and what they told their kernels is there.
func services(ctx context.Context, b *bench) error {
	s := &servicesBench{bench: b}
	return s.measure(ctx, "", b.services, func(ctx context.Context, c *cluster) error {
		s.ours.kuryrNode(c.kuryr, c.kubeconfig)
		return nil
	})
}

type servicesBench struct {
	*bench
	api          *servicesAPI
	ours, theirs *balancerHost
	prefix       string        // of rows
	apart        bool          // Services come one by one, nothing of it can be forgotten, and connections take another way
	oneMore      time.Duration // of ours, of the least size
}

// measure measures sizes, one after the other, in a cluster of its own. use says what there is on our host.
func (s *servicesBench) measure(ctx context.Context, prefix string, sizes []int, use func(context.Context, *cluster) error) error {
	s.prefix = prefix
	c, err := startCluster(ctx, s.bench)
	if err != nil {
		return err
	}
	defer c.Close()
	defer s.close()
	if err := s.start(ctx, c); err != nil {
		return fmt.Errorf("%w\n%s", err, c.Logs(10))
	}
	if err := use(ctx, c); err != nil {
		return err
	}
	for _, size := range sizes {
		if err := s.size(ctx, size); err != nil {
			return fmt.Errorf("%d Services: %w\n%s\n%s", size, err, s.ours.host.Logs(20), s.theirs.host.Logs(20))
		}
	}
	return nil
}

// balanced is what one of them did at one size.
type balanced struct {
	load, loadCPU, loadKernel []time.Duration
	more, told, changed       []time.Duration // told: from when the API server has answered
	moreCPU                   time.Duration   // of one more
	transaction               time.Duration   // of any change, as the daemon itself has taken the time of telling the kernel
	kib                       []float64       // of each daemon

	late           bool              // not all was there in time, and nothing more was measured
	connects       [][]time.Duration // by turn
	rates, streams []float64
}

func (s *servicesBench) start(ctx context.Context, c *cluster) (err error) {
	if s.api, err = newServicesAPI(c.Cluster); err != nil {
		return err
	}
	if s.ours, err = newBalancerHost(ctx, c.Cluster, "kuryr", 1); err != nil {
		return err
	}
	if s.theirs, err = newBalancerHost(ctx, c.Cluster, "proxy", 2); err != nil {
		return err
	}
	s.theirs.kubeProxy(c.kubeconfig)
	if err := c.namespace(ctx, "default"); err != nil {
		return err
	}
	first := kubelab.Nodes.Addr().As4()
	first[3] = 1
	return s.api.addNode(ctx, netip.AddrFrom4(first))
}

func (s *servicesBench) close() {
	for _, h := range []*balancerHost{s.ours, s.theirs} {
		if h != nil {
			h.close()
		}
	}
	s.ours, s.theirs = nil, nil
}

func (s *servicesBench) size(ctx context.Context, size int) error {
	begin := time.Now()
	if err := s.api.grow(ctx, size); err != nil {
		return fmt.Errorf("make them: %w", err)
	}
	fmt.Fprintf(os.Stderr, " %d Services made in %.0f s …", size, time.Since(begin).Seconds())
	if s.wait {
		fmt.Fprintln(os.Stderr, " waiting for a line on standard input")
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			return fmt.Errorf("wait for a line: %w", err)
		}
	}
	var ours, theirs, straight balanced
	if err := s.loads(ctx, s.ours, &ours); err != nil {
		return err
	}
	if err := errors.Join(s.singles(ctx, s.ours, &ours), s.ours.stop()); err != nil {
		return err
	}
	switch err := s.loads(ctx, s.theirs, &theirs); {
	case errors.Is(err, errLate):
		theirs.late = true
		if err := s.theirs.stop(); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if err := s.theirs.signal(syscall.SIGSTOP); err != nil {
			return err
		}
	}
	if !s.apart {
		if err := s.connections(ctx, &ours, &theirs, &straight); err != nil {
			return err
		}
	}
	if !theirs.late {
		if err := errors.Join(s.theirs.signal(syscall.SIGCONT), s.singles(ctx, s.theirs, &theirs), s.theirs.stop()); err != nil {
			return err
		}
	}
	if err := errors.Join(s.ours.forget(ctx), s.theirs.forget(ctx)); err != nil {
		return err
	}
	s.tell(size, &ours, &theirs, &straight)
	return nil
}

// loads has one of them load all there is, and goes on with the last time.
func (s *servicesBench) loads(ctx context.Context, h *balancerHost, to *balanced) error {
	loads := min(3, max(1, mostLoads/s.api.have))
	if s.apart {
		loads = 1
	}
	for i := range loads {
		if err := s.load(ctx, h, to); err != nil {
			return fmt.Errorf("%s: load: %w", h.name, err)
		}
		if i == loads-1 {
			break
		}
		if err := errors.Join(h.stop(), h.forget(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// errLate is of a load that takes longer than anybody waits for.
var errLate = errors.New("not all answer in time")

// load starts the daemon and waits until the last Service answers, and then some of all ages.
func (s *servicesBench) load(ctx context.Context, h *balancerHost, to *balanced) error {
	ctx, cancel := context.WithTimeoutCause(ctx, loadLimit, errLate)
	defer cancel()
	begin := time.Now()
	if err := h.start(ctx); err != nil {
		return err
	}
	return inNamespace(h.client, func() error {
		probes := 50
		if s.apart {
			probes = s.api.have
		}
		for i := range probes {
			if err := answers(ctx, s.at(s.api.have-1-i*(s.api.have-1)/(probes-1))); err != nil {
				return errors.Join(err, context.Cause(ctx))
			}
		}
		to.load = append(to.load, time.Since(begin))
		fmt.Fprintf(os.Stderr, " %s has loaded them in %.1f s …", h.name, time.Since(begin).Seconds())
		// Packets may go by rules whose telling the daemon is still at.
		if err := eventually(ctx, probeEvery, func() error {
			count, _, err := h.transactions(ctx)
			if err == nil && count == 0 {
				err = fmt.Errorf("metrics: %s does not count", h.timed)
			}
			return err
		}); err != nil {
			return err
		}
		all, kernel, err := h.spent()
		to.loadCPU, to.loadKernel = append(to.loadCPU, all), append(to.loadKernel, kernel)
		return err
	})
}

func (s *servicesBench) at(i int) netip.AddrPort { return netip.AddrPortFrom(vip(i), servicePort) }

func (s *servicesBench) any() netip.AddrPort { return s.at(rand.IntN(s.api.have)) }

// singles has Services come and go, and endpoints change, one after another: the next when the kernel has been told of the last.
func (s *servicesBench) singles(ctx context.Context, h *balancerHost, to *balanced) error {
	ctx, cancel := context.WithTimeout(ctx, changeLimit)
	defer cancel()
	var watch *nftWatch
	if err := h.within(func() (err error) {
		watch, err = watchNFT()
		return err
	}); err != nil {
		return err
	}
	defer watch.close()
	cpu := time.Duration(0)
	count, took, err := h.transactions(ctx)
	if err != nil {
		return err
	}
	for began := time.Now(); more(began, to.more); {
		next := s.api.have + len(to.more) // another each time: what went may not be gone everywhere
		if err := s.api.makeSlice(ctx, next); err != nil {
			return err
		}
		before, _, err := h.spent()
		if err != nil {
			return err
		}
		seen := watch.expect(vip(next))
		begin := time.Now()
		if err := s.api.makeService(ctx, next); err != nil {
			return err
		}
		answered := time.Now()
		at, err := seen(ctx)
		if err != nil {
			return fmt.Errorf("one Service more: %w", err)
		}
		to.more, to.told = append(to.more, at.Sub(begin)), append(to.told, max(0, at.Sub(answered)))
		if err := inNamespace(h.client, func() error { return answers(ctx, s.at(next)) }); err != nil {
			return err
		}
		after, _, err := h.spent()
		if err != nil {
			return err
		}
		cpu += after - before
		seen = watch.expect(vip(next))
		if err := s.api.remove(ctx, next); err != nil {
			return err
		}
		if _, err := seen(ctx); err != nil {
			return fmt.Errorf("that Service goes: %w", err)
		}
		if err := s.api.removeSlice(ctx, next); err != nil {
			return err
		}
	}
	for began := time.Now(); more(began, to.changed); {
		i, spare := rand.IntN(s.api.have), s.api.nextSpare()
		seen := watch.expect(spare)
		begin := time.Now()
		if err := s.api.moveEndpoint(ctx, i, spare); err != nil {
			return err
		}
		at, err := seen(ctx)
		if err != nil {
			return fmt.Errorf("an endpoint changes: %w", err)
		}
		to.changed = append(to.changed, at.Sub(begin))
	}
	to.moreCPU = cpu / time.Duration(len(to.more))
	countAfter, tookAfter, err := h.transactions(ctx)
	if err != nil {
		return err
	}
	if countAfter == count {
		return fmt.Errorf("metrics: %s does not count", h.timed)
	}
	to.transaction = time.Duration((tookAfter - took) / (countAfter - count) * float64(time.Second))
	to.kib, err = h.memory()
	return err
}

// more tells whether there is to be one sample more.
func more(began time.Time, have []time.Duration) bool {
	return len(have) < fewestChanges || len(have) < serviceChanges && time.Since(began) < changesLasting
}

// connections are measured in turns: by Kuryr's kernel, by kube-proxy's, and straight to an endpoint. Each turn begins with another of them.
func (s *servicesBench) connections(ctx context.Context, ours, theirs, straight *balanced) error {
	ways := []way{
		{s.ours, ours, s.any}, {s.theirs, theirs, s.any},
		{s.ours, straight, func() netip.AddrPort {
			return netip.AddrPortFrom(plus(firstTarget, 2*rand.IntN(s.api.have)), endpointPort)
		}},
	}
	if theirs.late {
		ways = slices.Delete(ways, 1, 2)
	}
	for _, part := range []struct {
		turns int
		take  func(way, context.Context) error
	}{{connectTurns, way.connects}, {rateTurns, way.rate}, {streamTurns, way.stream}} {
		for turn := range part.turns {
			for i := range ways {
				w := ways[(turn+i)%len(ways)]
				if err := part.take(w, ctx); err != nil {
					return fmt.Errorf("%s: %w", w.host.name, err)
				}
			}
		}
	}
	return nil
}

// way is how connections are led, and where what is measured of them goes to.
type way struct {
	host *balancerHost
	to   *balanced
	pick func() netip.AddrPort
}

func (w way) connects(context.Context) error {
	return inNamespace(w.host.client, func() error {
		all := make([]time.Duration, serviceConnects)
		for i := range all {
			var err error
			to := w.pick()
			if all[i], err = connectTo(to, patience); err != nil {
				return fmt.Errorf("connect to %s: %w", to, err)
			}
		}
		w.to.connects = append(w.to.connects, all)
		return nil
	})
}

func (w way) rate(ctx context.Context) error {
	rate, err := connectRate(ctx, w.host.client, serviceClients, rateLasting, w.pick)
	if err != nil {
		return fmt.Errorf("connections: %w", err)
	}
	w.to.rates = append(w.to.rates, rate)
	return nil
}

func (w way) stream(context.Context) error {
	rate, err := stream(w.host.client, w.pick(), streamSize)
	if err != nil {
		return fmt.Errorf("throughput: %w", err)
	}
	w.to.streams = append(w.to.streams, rate)
	return nil
}
