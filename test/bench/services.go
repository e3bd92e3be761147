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
	serviceChanges = 20 // one after another, or
	fewestChanges  = 1  // where they take longer than
	changesLasting = 10 * time.Second
	serviceClients = 4 // at once, for their rate
	rateTurns      = 9
	rateLasting    = time.Second
	streamTurns    = 25
	streamSize     = 256 << 20
	mostLoads      = 30000           // Services that are loaded by each in all, so that few are loaded several times
	changeLimit    = 4 * time.Minute // no one waits longer for one kind of change
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

// balanced is what one of them did at one size, and has not what it did not reach in time.
type balanced struct {
	load, loadCPU, loadKernel []time.Duration
	more, told, changed       []time.Duration // told: from when the API server has answered
	moreCPU                   []time.Duration // of one more
	transaction               []time.Duration // of any change, as the daemon itself has taken the time of telling the kernel
	kib                       []float64       // of each daemon

	connects, exchanges [][]time.Duration // by turn
	rates, streams      []float64

	lateLoad, lateMore, lateChanged time.Duration // what it was given, of what was begun and was not there in time
}

// loaded tells whether it answered at all of them, so that more could be measured.
func (b *balanced) loaded() bool { return len(b.load) > 0 }

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
	var ours, theirs, straight, again balanced
	if err := s.loads(ctx, s.ours, &ours); err != nil {
		return err
	}
	if ours.loaded() {
		if err := errors.Join(s.singles(ctx, s.ours, &ours), s.ours.stop()); err != nil {
			return err
		}
	}
	if err := s.loads(ctx, s.theirs, &theirs); err != nil {
		return err
	}
	if theirs.loaded() {
		if err := s.theirs.signal(syscall.SIGSTOP); err != nil {
			return err
		}
	}
	if !s.apart && ours.loaded() {
		ways := []way{{s.ours, &ours, s.any}, {s.ours, &straight, s.anyEndpoint}, {s.ours, &again, s.anyEndpoint}}
		if theirs.loaded() {
			ways = append(ways, way{s.theirs, &theirs, s.any})
		}
		if err := sideBySide(ctx, ways); err != nil {
			return err
		}
	}
	if theirs.loaded() {
		if err := errors.Join(s.theirs.signal(syscall.SIGCONT), s.singles(ctx, s.theirs, &theirs), s.theirs.stop()); err != nil {
			return err
		}
	}
	if err := errors.Join(s.ours.forget(ctx), s.theirs.forget(ctx)); err != nil {
		return err
	}
	s.tell(size, &ours, &theirs, &straight, &again)
	return nil
}

// errLate is of what takes longer than anybody waits for.
var errLate = errors.New("not in time")

// loads has one of them load all there is, and goes on with the last time. One that is late is stopped, and its kernel is empty, so that it holds up nothing else.
func (s *servicesBench) loads(ctx context.Context, h *balancerHost, to *balanced) error {
	loads := min(3, max(1, mostLoads/s.api.have))
	if s.apart {
		loads = 1
	}
	for i := range loads {
		err := s.load(ctx, h, to)
		if errors.Is(err, errLate) {
			fmt.Fprintf(os.Stderr, " %s has not loaded them in %s …", h.name, s.patience)
			*to = balanced{lateLoad: s.patience}
			return errors.Join(h.stop(), h.forget(ctx))
		}
		if err != nil {
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
	return within(ctx, s.patience, func(ctx context.Context) error {
		begin := time.Now()
		if err := h.start(ctx); err != nil {
			return err
		}
		ctx, cancel := h.whileRunning(ctx)
		defer cancel()
		return inNamespace(h.client, func() error {
			probes := 50
			if s.apart {
				probes = s.api.have
			}
			for i := range probes {
				if err := answers(ctx, s.at(s.api.have-1-i*(s.api.have-1)/(probes-1))); err != nil {
					return err
				}
			}
			took := time.Since(begin)
			fmt.Fprintf(os.Stderr, " %s has loaded them in %.1f s …", h.name, took.Seconds())
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
			to.load, to.loadCPU, to.loadKernel = append(to.load, took), append(to.loadCPU, all), append(to.loadKernel, kernel)
			return err
		})
	})
}

// within gives f so much time; what fails when that is over is late.
func within(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	defer cancel()
	err := f(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errLate) {
		err = errors.Join(errLate, err)
	}
	return err
}

func (s *servicesBench) at(i int) netip.AddrPort { return netip.AddrPortFrom(vip(i), servicePort) }

func (s *servicesBench) any() netip.AddrPort { return s.at(rand.IntN(s.api.have)) }

// anyEndpoint is one that nothing has moved.
func (s *servicesBench) anyEndpoint() netip.AddrPort {
	return netip.AddrPortFrom(plus(firstTarget, 2*rand.IntN(s.api.have)), endpointPort)
}
