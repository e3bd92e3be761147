//go:build linux

package bind

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/bind/ovsdb"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// floorPlug does the work of a Plug in the fewest messages: the pair in one, the host
// end's alias in one, the container's configuration in one batch. It checks nothing, and
// reuses router, a socket in the router's namespace.
func floorPlug(router *socket, bridge int32, i Interface, far int) error {
	conf, err := newSetup(i.Port, i.Subnets)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	back, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(back)
	if err := unix.Setns(far, unix.CLONE_NEWNET); err != nil {
		return err
	}
	defer func() { _ = unix.Setns(back, unix.CLONE_NEWNET) }()
	s, err := openSocket()
	if err != nil {
		return err
	}
	defer s.close()
	var b batch
	name := HostName(i.Port.ID)
	b.add("pair", unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, ifInfo(0, 0, unix.IFF_UP, unix.IFF_UP))
	b.text(unix.IFLA_IFNAME, name)
	b.u32(unix.IFLA_MTU, uint32(i.MTU))
	if bridge != 0 {
		b.u32(unix.IFLA_MASTER, uint32(bridge))
	}
	b.u32(unix.IFLA_GROUP, groupPort)
	b.nest(unix.IFLA_LINKINFO, func() {
		b.attr(unix.IFLA_INFO_KIND, []byte("veth"))
		b.nest(unix.IFLA_INFO_DATA, func() {
			b.nest(vethInfoPeer, func() {
				b.buf = append(b.buf, ifInfo(0, 0, 0, 0)...)
				b.text(unix.IFLA_IFNAME, i.Name)
				b.attr(unix.IFLA_ADDRESS, i.Port.MAC)
				b.u32(unix.IFLA_MTU, uint32(i.MTU))
				b.u32(unix.IFLA_NET_NS_FD, uint32(far))
			})
		})
	})
	b.add("alias", unix.RTM_SETLINK, 0, ifInfo(0, 0, 0, 0))
	b.text(unix.IFLA_IFNAME, name)
	b.text(unix.IFLA_IFALIAS, Alias(i.Port.ID))
	if err := router.do(&b); err != nil {
		return err
	}
	index, err := s.index(i.Name)
	if err != nil {
		return err
	}
	if err := writeSysctl("ipv6", i.Name, "accept_ra", "0"); err != nil {
		return err
	}
	if err := noLinkLocal(s, index); err != nil {
		return err
	}
	return s.do(conf.messages(index, i.Port.MAC, i.MTU))
}

// fixture is a world with n containers that ports are plugged into, and n sockets in the
// router's namespace for the floor.
type fixture struct {
	*world
	boxes   []netns.NsHandle
	sockets []*socket
	bridge  int32
	kind    func() sdn.Port
	join    func(sdn.Port) error // what the floor does besides
}

func newFixture(b *testing.B, n int) *fixture {
	r := &fixture{world: newWorld(b), join: func(sdn.Port) error { return nil }}
	r.kind = r.port
	r.open(b, n, r.router)
	must(b, visit(func() (err error) {
		r.bridge, err = r.sockets[0].index("br0")
		return err
	}))
	return r
}

// open makes n containers, and sockets in the namespace of their host ends.
func (r *fixture) open(b *testing.B, n int, near netns.NsHandle) {
	must(b, writeAddrGenDefault(b, near))
	for range n {
		r.boxes = append(r.boxes, nstest.New(b))
		must(b, visit(func() error {
			s, err := namespace{fd: int(near)}.socket()
			r.sockets = append(r.sockets, s)
			return err
		}))
		b.Cleanup(r.sockets[len(r.sockets)-1].close)
	}
}

// newSwitchFixture is a fixture of ports in Open vSwitch, whose floor is the fewest messages to
// the kernel and one transaction, without a look, on a connection of its own.
func newSwitchFixture(b *testing.B, n int) *fixture {
	r := &fixture{world: newWorld(b)}
	v := newSwitch(r.world, true)
	r.binder(v.db)
	r.kind = r.ovsPort
	r.open(b, n, r.host)
	r.join = func(p sdn.Port) error {
		conn, err := ovsdb.Dial(b.Context(), v.db)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Transact(b.Context(), inSwitch{name: "br-int"}.joining(HostName(p.ID), externalIDs(p))...)
		return err
	}
	return r
}

// writeAddrGenDefault does what the owner of a router's namespace does, so that neither
// side makes link-local addresses on host ends.
func writeAddrGenDefault(b *testing.B, ns netns.NsHandle) (err error) {
	nstest.Do(b, ns, func() { err = writeSysctl("ipv6", "default", "addr_gen_mode", "1") })
	return err
}

// round plugs one port into each container, all concurrently, by Plug or by the floor, and
// returns how long that took.
func (r *fixture) round(b *testing.B, floor bool) time.Duration {
	asks := make([]Interface, len(r.boxes))
	for n := range asks {
		asks[n] = r.in(r.kind(), r.boxes[n])
	}
	var all sync.WaitGroup
	errs := make([]error, len(asks))
	start := time.Now()
	for n, i := range asks {
		all.Go(func() {
			if floor {
				if errs[n] = floorPlug(r.sockets[n], r.bridge, i, int(r.boxes[n])); errs[n] == nil {
					errs[n] = r.join(i.Port)
				}
			} else {
				_, errs[n] = r.b.Plug(context.Background(), i)
			}
		})
	}
	all.Wait()
	took := time.Since(start)
	for n, i := range asks {
		must(b, errs[n])
		must(b, r.b.Unplug(context.Background(), i.Port))
	}
	must(b, r.b.Collect(context.Background(), asks[0].Port.VIF.Details[sdn.DetailNamespace]))
	return took
}

func benchmarkRatio(b *testing.B, at int, r *fixture) {
	r.round(b, false)
	r.round(b, true)
	var ours, floor []time.Duration
	for b.Loop() {
		ours = append(ours, r.round(b, false))
		floor = append(floor, r.round(b, true))
	}
	slices.Sort(ours)
	slices.Sort(floor)
	o, f := ours[len(ours)/2], floor[len(floor)/2]
	b.ReportMetric(float64(o)/float64(f), "ratio")
	b.ReportMetric(float64(o.Microseconds())/1000, "ms-plug"+strconv.Itoa(at))
	b.ReportMetric(float64(f.Microseconds())/1000, "ms-floor"+strconv.Itoa(at))
	b.ReportMetric(0, "ns/op") // half of it is unplugging
}

// Medians of one port, and of forty concurrently, against the floor in the same run.
func BenchmarkPlugRatio(b *testing.B)   { benchmarkRatio(b, 1, newFixture(b, 1)) }
func BenchmarkPlug40Ratio(b *testing.B) { benchmarkRatio(b, 40, newFixture(b, 40)) }

// The same with Open vSwitch in user space.
func BenchmarkPlugOVSRatio(b *testing.B)   { benchmarkRatio(b, 1, newSwitchFixture(b, 1)) }
func BenchmarkPlugOVS40Ratio(b *testing.B) { benchmarkRatio(b, 40, newSwitchFixture(b, 40)) }

func benchmarkRounds(b *testing.B, at int, floor bool) {
	r := newFixture(b, at)
	var took time.Duration
	for b.Loop() {
		took += r.round(b, floor)
	}
	b.ReportMetric(float64(took.Microseconds())/float64(b.N)/1000, "ms/round")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkPlug(b *testing.B)        { benchmarkRounds(b, 1, false) }
func BenchmarkPlugFloor(b *testing.B)   { benchmarkRounds(b, 1, true) }
func BenchmarkPlug40(b *testing.B)      { benchmarkRounds(b, 40, false) }
func BenchmarkPlug40Floor(b *testing.B) { benchmarkRounds(b, 40, true) }

// BenchmarkUnplug is what a caller waits for.
func BenchmarkUnplug(b *testing.B) {
	r := newFixture(b, 1)
	var took []time.Duration
	for b.Loop() {
		p := r.port()
		r.plug(r.in(p, r.boxes[0]))
		start := time.Now()
		r.unplug(p)
		took = append(took, time.Since(start))
		r.collect()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "us-unplug")
	b.ReportMetric(0, "ns/op")
}
