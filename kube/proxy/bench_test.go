//go:build linux

package proxy

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/internal/nstest"
)

// numbered is one of many Services, with its ClusterIP and two endpoints.
func numbered(i int) (*corev1.Service, *discoveryv1.EndpointSlice) {
	addr := func(a, b byte) string {
		return netip.AddrFrom4([4]byte{a, b + byte(i>>16), byte(i >> 8), byte(i)}).String()
	}
	s := named(fmt.Sprint("many-", i), 0, func(s *corev1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeClusterIP, 0
		s.Spec.ClusterIP = addr(10, 96)
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	})
	e := sliceOf(s.Name, addr(10, 128), addr(10, 192))
	e.Labels[discoveryv1.LabelServiceName] = s.Name
	return s, e
}

// BenchmarkMore has the daemon load many Services into the kernel, and then follow one more and its end, in turns with the same beside the fewest; it gives the ratios of the medians.
// What the API server and the watches cost is not in it.
func BenchmarkMore(b *testing.B) {
	nstest.Require(b)
	sizes := []int{1000, 10000, 30000}
	of := map[int]*Controller{}
	began := map[int]time.Duration{}
	step := func(c *Controller, f func(*index)) time.Duration {
		start := time.Now()
		c.change(f)
		must(b, c.step(b.Context()))
		return time.Since(start)
	}
	for _, n := range sizes {
		ns := nstest.New(b)
		table := lb.New(lb.Config{Logger: slog.New(slog.DiscardHandler), Inside: []string{"kr"}, Run: func(f func() error) (err error) {
			nstest.Do(b, ns, func() { err = f() })
			return err
		}})
		b.Cleanup(func() { must(b, table.Close()) })
		of[n] = New(Config{Node: "n1", Table: table, Rules: Rules{ClusterIPs: true}})
		began[n] = step(of[n], func(x *index) {
			for i := range n {
				s, e := numbered(i)
				x.setService(s)
				x.setSlice(e)
			}
		})
	}
	one, ends := numbered(sizes[2])
	turn := func(c *Controller) time.Duration {
		took := step(c, func(x *index) { x.setService(one); x.setSlice(ends) })
		step(c, func(x *index) {
			x.dropSlice(types.NamespacedName{Namespace: ends.Namespace, Name: ends.Name})
			x.dropService(types.NamespacedName{Namespace: one.Namespace, Name: one.Name})
		})
		return took
	}
	for _, n := range sizes {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			var own, least []time.Duration
			for b.Loop() {
				own = append(own, turn(of[n]))
				least = append(least, turn(of[sizes[0]]))
			}
			slices.Sort(own)
			slices.Sort(least)
			b.ReportMetric(float64(own[len(own)/2].Microseconds()), "µs/more")
			b.ReportMetric(float64(own[len(own)/2])/float64(least[len(least)/2]), fmt.Sprint("ratio", n))
			b.ReportMetric(float64(began[n].Milliseconds()), "ms/start")
		})
	}
}
