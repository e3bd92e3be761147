//go:build linux

package lb

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

// crowd is n frontends of two endpoints each.
func crowd(n int) []Frontend {
	list := make([]Frontend, n)
	for i := range list {
		list[i] = member2(i)
	}
	return list
}

func member2(i int) Frontend {
	a := func(first byte) netip.Addr { return netip.AddrFrom4([4]byte{10, first, byte(i >> 8), byte(i)}) }
	return Frontend{Key: Key{a(100), sdn.TCP, 80}, Endpoints: []netip.AddrPort{
		netip.AddrPortFrom(a(50), 8080), netip.AddrPortFrom(a(51), 8080),
	}}
}

var sizes = []int{1000, 10000, 30000}

// BenchmarkLoad is Restore of frontends that are not there, and again of the same, which are.
func BenchmarkLoad(b *testing.B) {
	ctx := context.Background()
	ns := nstest.New(b)
	inside := func(f func() error) (err error) {
		nstest.Do(b, ns, func() { err = f() })
		return err
	}
	for _, n := range sizes {
		for _, bridges := range []string{"", "br-"} {
			all := crowd(n)
			b.Run(fmt.Sprintf("frontends=%d/bridges=%t", n, bridges != ""), func(b *testing.B) {
				var cold, again, kernel time.Duration
				for b.Loop() {
					t := New(Config{Run: inside, Bridges: bridges})
					start, before := time.Now(), inKernel()
					must(b, t.Restore(ctx, all))
					cold += time.Since(start)
					kernel += inKernel() - before
					must(b, t.Close())
					t = New(Config{Run: inside, Bridges: bridges})
					start = time.Now()
					must(b, t.Restore(ctx, all))
					again += time.Since(start)
					must(b, t.Remove(ctx))
				}
				b.ReportMetric(cold.Seconds()*1000/float64(b.N), "ms/cold")
				b.ReportMetric(kernel.Seconds()*1000/float64(b.N), "ms-in-kernel/cold")
				b.ReportMetric(again.Seconds()*1000/float64(b.N), "ms/again")
			})
		}
	}
}

// BenchmarkChange makes one change beside many frontends, in turns with the same beside
// the fewest, and gives the ratio of the medians.
func BenchmarkChange(b *testing.B) {
	ctx := context.Background()
	tables := map[int]*Table{}
	for _, n := range sizes {
		ns := nstest.New(b)
		tables[n] = New(Config{Bridges: "br-", Run: func(f func() error) (err error) {
			nstest.Do(b, ns, func() { err = f() })
			return err
		}})
		must(b, tables[n].Restore(ctx, crowd(n)))
		defer tables[n].Close()
	}
	one := member2(40000)
	changed := member2(7)
	changed.Endpoints = []netip.AddrPort{changed.Endpoints[0], netip.MustParseAddrPort("10.52.0.1:8080")}
	steps := []struct {
		name     string
		do, undo func(*Table) error
	}{
		{"add", func(t *Table) error { return t.Apply(ctx, []Frontend{one}, nil) }, func(t *Table) error {
			return t.Apply(ctx, nil, []Key{one.Key})
		}},
		{
			"endpoint", func(t *Table) error { return t.Apply(ctx, []Frontend{changed}, nil) },
			func(t *Table) error { return t.Apply(ctx, []Frontend{member2(7)}, nil) },
		},
	}
	for _, step := range steps {
		for _, n := range sizes {
			b.Run(fmt.Sprintf("%s/frontends=%d", step.name, n), func(b *testing.B) {
				var own, least []time.Duration
				turn := func(t *Table) time.Duration {
					start := time.Now()
					must(b, step.do(t))
					took := time.Since(start)
					must(b, step.undo(t))
					return took
				}
				for b.Loop() {
					own = append(own, turn(tables[n]))
					least = append(least, turn(tables[sizes[0]]))
				}
				b.ReportMetric(float64(median(own).Microseconds()), "µs/change")
				b.ReportMetric(float64(median(own))/float64(median(least)), "x/least")
			})
		}
	}
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}

// BenchmarkConnect is a connection by way of a frontend beside 30,000 others, in turns
// with one straight to the endpoint: on one bridge, and from outside.
func BenchmarkConnect(b *testing.B) {
	w := newWorld(b)
	w.serve("b", 8080)
	w.restore(append(crowd(30000), to(key(vip4, sdn.TCP), "b"))...)
	for _, from := range []string{"a", "c", "out"} {
		b.Run(from, func(b *testing.B) {
			var led, straight []time.Duration
			nstest.Do(b, w.ns[from], func() {
				for b.Loop() {
					for _, way := range []struct {
						to   string
						list *[]time.Duration
					}{{at(vip4, 80), &led}, {at(addrs["b"][0], 8080), &straight}} {
						start := time.Now()
						c, err := net.Dial("tcp", way.to)
						must(b, err)
						*way.list = append(*way.list, time.Since(start))
						c.Close()
					}
				}
			})
			b.ReportMetric(float64(median(led))/float64(median(straight)), "x/straight")
		})
	}
}

// BenchmarkThroughput sends and gets by way of a frontend, in turns with straight to the
// endpoint at its balanced port, and at one that is not balanced. It gives the ratios of
// the medians, of bytes by time and by time of the processor, which says more where
// others use it too; a ratio above 1 is better than straight.
func BenchmarkThroughput(b *testing.B) {
	const size = 64 << 20
	w := newWorld(b)
	for _, port := range []string{":8080", ":8081"} {
		nstest.Do(b, w.ns["b"], func() {
			l, err := net.Listen("tcp4", port)
			must(b, err)
			b.Cleanup(func() { l.Close() })
			go transfer(l, size)
		})
	}
	w.restore(to(key(vip4, sdn.TCP), "b"))
	ways := []string{at(vip4, 80), at(addrs["b"][0], 8080), at(addrs["b"][0], 8081)}
	for _, from := range []string{"a", "c"} {
		for _, way := range []string{"up", "down"} {
			b.Run(from+"/"+way, func(b *testing.B) {
				took, used := map[string][]time.Duration{}, map[string][]time.Duration{}
				buffer := make([]byte, 1<<20)
				nstest.Do(b, w.ns[from], func() {
					for b.Loop() {
						for _, to := range ways {
							c, err := net.Dial("tcp", to)
							must(b, err)
							start, before := time.Now(), processor()
							_, err = c.Write([]byte(way[:1]))
							must(b, err)
							if way == "up" {
								for range size / len(buffer) {
									_, err := c.Write(buffer)
									must(b, err)
								}
							}
							_, err = io.Copy(io.Discard, c)
							must(b, err)
							took[to] = append(took[to], time.Since(start))
							used[to] = append(used[to], processor()-before)
							c.Close()
						}
					}
				})
				for i, name := range []string{"balanced-port", "other-port"} {
					b.ReportMetric(float64(median(took[ways[i+1]]))/float64(median(took[ways[0]])), "x/"+name)
					b.ReportMetric(float64(median(used[ways[i+1]]))/float64(median(used[ways[0]])), "cpu-x/"+name)
				}
			})
		}
	}
}

// transfer sends so many bytes to who asks for it, and takes them from others.
func transfer(l net.Listener, size int64) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			way := make([]byte, 1)
			if _, err := io.ReadFull(c, way); err != nil {
				return
			}
			if way[0] == 'd' {
				_, _ = c.Write(make([]byte, size))
				return
			}
			_, _ = io.CopyN(io.Discard, c, size)
			_, _ = c.Write(way)
		}()
	}
}

// inKernel is the part of processor that the kernel has had.
func inKernel() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Stime.Nano())
}

// processor is the time that this process, with both ends in it, has had.
func processor() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
