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
	"syscall"
	"time"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// What is measured of Services, for each number of them.
const (
	serviceChanges  = 20 // one after another, or
	fewestChanges   = 1  // where they take longer than
	changesLasting  = 10 * time.Second
	serviceConnects = 2000 // one after another, for latencies
	serviceClients  = 4    // at once, for their rate
	serviceTurns    = 7    // of rates and streams
	rateLasting     = time.Second
	streamSize      = 512 << 20
	mostLoads       = 30000 // Services that are loaded by each in all, so that few are loaded several times
	loadLimit       = 10 * time.Minute
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
	c, err := startCluster(ctx, b)
	if err != nil {
		return err
	}
	defer c.Close()
	s := &servicesBench{bench: b}
	defer s.close()
	if err := s.start(ctx, c); err != nil {
		return fmt.Errorf("%w\n%s", err, c.Logs(10))
	}
	for _, size := range b.services {
		if err := s.size(ctx, size); err != nil {
			return fmt.Errorf("%d Services: %w\n%s\n%s", size, err, s.ours.host.Logs(20), s.theirs.host.Logs(20))
		}
	}
	return nil
}

type servicesBench struct {
	*bench
	api          *servicesAPI
	ours, theirs *balancerHost
	oneMore      time.Duration // of ours, of the least size
}

// balanced is what one of them did at one size.
type balanced struct {
	load, loadCPU, loadKernel []time.Duration
	more, told, changed       []time.Duration // told: from when the API server has answered
	moreCPU                   time.Duration   // of one more
	transaction               time.Duration   // of any change, as the daemon itself has taken the time of telling the kernel
	kib                       float64

	connects       []time.Duration
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
	s.ours.kuryrNode(c.kuryr, c.kubeconfig)
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
	if err := s.loads(ctx, s.theirs, &theirs); err != nil {
		return err
	}
	if err := s.theirs.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := s.connections(ctx, &ours, &theirs, &straight); err != nil {
		return err
	}
	if err := errors.Join(s.theirs.signal(syscall.SIGCONT), s.singles(ctx, s.theirs, &theirs), s.theirs.stop()); err != nil {
		return err
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

// load starts the daemon and waits until the last Service answers, and then some of all ages.
func (s *servicesBench) load(ctx context.Context, h *balancerHost, to *balanced) error {
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	begin := time.Now()
	if err := h.start(ctx); err != nil {
		return err
	}
	return inNamespace(h.client, func() error {
		const probes = 50
		for i := range probes {
			if err := answers(ctx, s.at(s.api.have-1-i*(s.api.have-1)/(probes-1))); err != nil {
				return err
			}
		}
		to.load = append(to.load, time.Since(begin))
		fmt.Fprintf(os.Stderr, " %s has loaded them in %.1f s …", h.name, time.Since(begin).Seconds())
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
	next, cpu := s.api.have, time.Duration(0)
	count, took, err := h.transactions(ctx)
	if err != nil {
		return err
	}
	for began := time.Now(); more(began, to.more); {
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
	to.kib, err = pss(h.daemon.Pid())
	return err
}

// more tells whether there is to be one sample more.
func more(began time.Time, have []time.Duration) bool {
	return len(have) < fewestChanges || len(have) < serviceChanges && time.Since(began) < changesLasting
}

// connections are measured in turns: by Kuryr's kernel, by kube-proxy's, and straight to an endpoint.
func (s *servicesBench) connections(ctx context.Context, ours, theirs, straight *balanced) error {
	ways := []struct {
		host *balancerHost
		to   *balanced
		pick func() netip.AddrPort
	}{
		{s.ours, ours, s.any}, {s.theirs, theirs, s.any},
		{s.ours, straight, func() netip.AddrPort {
			return netip.AddrPortFrom(plus(firstTarget, 2*rand.IntN(s.api.have)), endpointPort)
		}},
	}
	const block = 100
	for range serviceConnects / block {
		for _, w := range ways {
			if err := inNamespace(w.host.client, func() error {
				for range block {
					took, err := connectTo(w.pick(), patience)
					if err != nil {
						return fmt.Errorf("%s: connect: %w", w.host.name, err)
					}
					w.to.connects = append(w.to.connects, took)
				}
				return nil
			}); err != nil {
				return err
			}
		}
	}
	for range serviceTurns {
		for _, w := range ways {
			rate, err := connectRate(ctx, w.host.client, serviceClients, rateLasting, w.pick)
			if err != nil {
				return fmt.Errorf("%s: connections: %w", w.host.name, err)
			}
			w.to.rates = append(w.to.rates, rate)
			if rate, err = stream(w.host.client, w.pick(), streamSize); err != nil {
				return fmt.Errorf("%s: throughput: %w", w.host.name, err)
			}
			w.to.streams = append(w.to.streams, rate)
		}
	}
	return nil
}

// tell adds the rows of one size.
func (s *servicesBench) tell(size int, ours, theirs, straight *balanced) {
	in := fmt.Sprintf("%d Services: ", size)
	one := func(d time.Duration) []time.Duration { return []time.Duration{d} }
	s.add(in+"the daemon's start until all answer", ours.load, theirs.load, goalProxy)
	s.add(in+"CPU of that", ours.loadCPU, theirs.loadCPU, goalProxy)
	s.add(in+"CPU of that in the kernel", ours.loadKernel, theirs.loadKernel, goalProxy)
	s.add(in+"CPU of that in the kernel, to the goal", ours.loadKernel, one(goalKernelLoad), 1)
	s.add(in+"one more, from its creation until the kernel has it", ours.more, theirs.more, goalProxy)
	s.add(in+"what of that is after the API server's answer", ours.told, theirs.told, goalProxy)
	s.add(in+"the same, to the goal", ours.told, one(goalOneMore), 1)
	if s.oneMore == 0 {
		s.oneMore = median(ours.more)
	} else {
		s.add(in+"one more, from its creation, to that of the least number measured", ours.more, one(s.oneMore), 0)
	}
	s.add(in+"CPU of one more", one(ours.moreCPU), one(theirs.moreCPU), goalProxy)
	s.micros(in+"any of these changes, the telling of the kernel by the daemon's own metrics", ours.transaction, theirs.transaction, goalProxy)
	s.add(in+"one endpoint changed, until the kernel has it", ours.changed, theirs.changed, goalProxy)
	s.rows = append(s.rows, row{name: in + "memory of the daemon", ours: fmt.Sprintf("%.0f MiB", ours.kib/1024), reference: fmt.Sprintf("%.0f MiB", theirs.kib/1024), ratio: ours.kib / theirs.kib, goal: goalProxy})
	s.micros(in+"a connection's first packet and answer, p50", median(ours.connects), median(theirs.connects), goalProxy)
	s.micros(in+"the same, p99", percentile99(ours.connects), percentile99(theirs.connects), goalProxy)
	s.micros(in+"the same, p50, to straight", median(ours.connects), median(straight.connects), 0)
	s.rate(in+"connections a second", "%.0f", 1, ours.rates, theirs.rates, goalProxy)
	s.rate(in+"the same, to straight", "%.0f", 1, ours.rates, straight.rates, 0)
	const gigabit = 1e9 / 8
	s.rate(in+"throughput by a VIP", "%.1f Gbit/s", gigabit, ours.streams, theirs.streams, goalProxy)
	s.rate(in+"the same, to straight", "%.1f Gbit/s", gigabit, ours.streams, straight.streams, goalVIP)
}

func (s *servicesBench) micros(name string, ours, reference time.Duration, goal float64) {
	s.rows = append(s.rows, row{name: name, ours: ours.Round(100 * time.Nanosecond).String(), reference: reference.Round(100 * time.Nanosecond).String(), ratio: float64(ours) / float64(reference), goal: goal})
}

// rate compares medians of what is the better the more it is.
func (s *servicesBench) rate(name, format string, unit float64, ours, reference []float64, goal float64) {
	o, r := median(ours), median(reference)
	s.rows = append(s.rows, row{name: name, ours: fmt.Sprintf(format, o/unit), reference: fmt.Sprintf(format, r/unit), ratio: o / r, goal: goal, atLeast: true})
}
