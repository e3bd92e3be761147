//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// What is measured of Services: changes one after another, connections, and bytes.
const (
	serviceChanges = 10
	serviceConns   = 500
	serviceBytes   = 1 << 30
	servicePort    = 80
	endpointPort   = 8080
	serviceWriters = 16
)

// Goals: no worse than kube-proxy anywhere, and what a VIP leaves of throughput.
const (
	goalProxy = 1
	goalVIP   = 0.95
)

// endpointRange has every endpoint's address; all of them are the host's own, as far as its kernel is concerned, so that one program answers for all.
var endpointRange = netip.MustParsePrefix("10.240.0.0/12")

// balancing is one of those that see to Services.
type balancing struct {
	name  string
	start func(context.Context) (*privatehost.Service, error)
	clean func(context.Context) error
}

// servicesRun is one of them at one size.
type servicesRun struct {
	first, more, changed, latency []time.Duration
	rate, throughput              float64
	kib                           float64
}

// services measures Kuryr's daemon of a node, which balances ClusterIPs too, against kube-proxy in nftables mode: the same host, API server and objects, one after the other.
func services(ctx context.Context, b *bench) error {
	c, err := startCluster(ctx, b)
	if err != nil {
		return err
	}
	defer c.Close()
	s := &servicesBench{cluster: c}
	if err := s.start(ctx); err != nil {
		return err
	}
	for _, size := range b.services {
		if err := s.grow(ctx, size); err != nil {
			return err
		}
		runs := map[string]*servicesRun{}
		for _, of := range []balancing{s.kuryrNode(), s.kubeProxy()} {
			run, err := s.measure(ctx, of)
			if err != nil {
				return fmt.Errorf("%d Services, %s: %w\n%s", size, of.name, err, c.Logs(5))
			}
			runs[of.name] = run
		}
		s.tell(b, size, runs["kuryr"], runs["kube-proxy"])
	}
	return nil
}

type servicesBench struct {
	*cluster
	all    []string // the Services' addresses
	direct float64  // bytes a second without a VIP
}

func (s *servicesBench) start(ctx context.Context) error {
	h := s.Central
	if r := h.Exec(ctx, "ip", "route", "add", "local", endpointRange.String(), "dev", "lo"); !r.OK() {
		return r.Err()
	}
	listener, err := h.Listen(ctx, "tcp", fmt.Sprintf(":%d", endpointPort))
	if err != nil {
		return err
	}
	go swallow(listener)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: kubelab.Nodes.Addr().String()}}}}
	made, err := s.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status = node.Status
	if _, err := s.Client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	s.direct, err = s.throughput(ctx, netip.AddrPortFrom(endpointRange.Addr().Next(), endpointPort).String())
	return err
}

// swallow takes connections, and what comes by them.
func swallow(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = c.Write([]byte{1})
			_, _ = io.Copy(io.Discard, c)
		}()
	}
}

// kuryrNode is Kuryr's daemon, with all of Services to see to.
func (s *servicesBench) kuryrNode() balancing {
	var daemon *privatehost.Service
	return balancing{"kuryr", func(ctx context.Context) (_ *privatehost.Service, err error) {
		env := []string{"NODE_NAME=node", "KUBECONFIG=" + s.kubeconfig, "KURYR_NODE_SERVICES=true", "KURYR_NODE_LOAD_BALANCERS=node", "KURYR_NODE_CONFLIST=" + filepath.Join(s.Central.Dir(), "kuryr.conflist")}
		daemon, err = s.Central.StartService(ctx, "kuryr-node", env, []string{s.kuryr, "node"}, nil)
		return daemon, err
	}, func(ctx context.Context) error {
		return s.Central.Exec(ctx, "nft", "flush", "ruleset").Err()
	}}
}

// kubeProxy is the release's own, in nftables mode, as it is set without a word.
func (s *servicesBench) kubeProxy() balancing {
	program := filepath.Join(os.Getenv(kubelab.ProgramsEnv), "kube-proxy")
	return balancing{"kube-proxy", func(ctx context.Context) (*privatehost.Service, error) {
		return s.Central.StartService(ctx, "kube-proxy", nil, []string{program, "--kubeconfig=" + s.kubeconfig, "--proxy-mode=nftables", "--hostname-override=node", "--cluster-cidr=" + endpointRange.String(),
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0", "--healthz-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"}, nil)
	}, func(ctx context.Context) error {
		return s.Central.Exec(ctx, "nft", "flush", "ruleset").Err()
	}}
}

// grow makes Services of two endpoints until there are so many.
func (s *servicesBench) grow(ctx context.Context, size int) error {
	was := len(s.all)
	s.all = append(s.all, make([]string, size-was)...)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(serviceWriters)
	for i := was; i < size; i++ {
		group.Go(func() (err error) {
			s.all[i], err = s.service(ctx, i)
			return err
		})
	}
	return group.Wait()
}

// endpoint is number j of Service i.
func endpoint(i, j int) string {
	a := endpointRange.Addr().As4()
	n := 16 + 4*i + j
	return netip.AddrFrom4([4]byte{a[0], a[1] + byte(n>>16), byte(n >> 8), byte(n)}).String()
}

// service makes number i, with its slice, and returns where it is to answer.
func (s *servicesBench) service(ctx context.Context, i int) (string, error) {
	name := fmt.Sprintf("s%d", i)
	made, err := s.Client.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Name: "tcp", Port: servicePort}},
	}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	port, yes, tcp := int32(endpointPort), true, corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &made.Spec.Ports[0].Name, Port: &port, Protocol: &tcp}},
	}
	for j := range 2 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{endpoint(i, j)}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}})
	}
	_, err = s.Client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
	return net.JoinHostPort(made.Spec.ClusterIP, strconv.Itoa(servicePort)), err
}

// answered waits until an address answers, or no longer does.
func (s *servicesBench) answered(ctx context.Context, at string, want bool) error {
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		took, err := s.connect(try, at)
		cancel()
		if (err == nil) == want && took >= 0 {
			return nil
		}
		time.Sleep(time.Millisecond) // who is not there yet refuses at once
	}
	return fmt.Errorf("%s: answers %v: %w", at, want, ctx.Err())
}

// connect is a connection until its first byte.
func (s *servicesBench) connect(ctx context.Context, at string) (time.Duration, error) {
	begin := time.Now()
	conn, err := s.Central.Dial(ctx, "tcp", at)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if deadline, is := ctx.Deadline(); is {
		_ = conn.SetDeadline(deadline)
	}
	_, err = conn.Read(make([]byte, 1))
	return time.Since(begin), err
}

func (s *servicesBench) measure(ctx context.Context, of balancing) (*servicesRun, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	run := &servicesRun{}
	begin := time.Now()
	process, err := of.start(ctx)
	if err != nil {
		return nil, err
	}
	for i := range min(50, len(s.all)) { // of all sizes and ages
		if err := s.answered(ctx, s.all[i*(len(s.all)-1)/49], true); err != nil {
			return nil, err
		}
	}
	run.first = []time.Duration{time.Since(begin)}
	if err := s.oneMore(ctx, run); err != nil {
		return nil, err
	}
	for range serviceConns {
		took, err := s.connect(ctx, s.all[rand.IntN(len(s.all))])
		if err != nil {
			return nil, err
		}
		run.latency = append(run.latency, took)
	}
	if run.rate, err = s.rate(ctx); err != nil {
		return nil, err
	}
	if run.throughput, err = s.throughput(ctx, s.all[len(s.all)/2]); err != nil {
		return nil, err
	}
	if run.kib, err = pss(process.Pid()); err != nil {
		return nil, err
	}
	if err := process.Stop(syscall.SIGTERM, time.Minute); err != nil {
		return nil, err
	}
	return run, of.clean(ctx)
}

// oneMore has one Service more come, several times, and one lose and have again an endpoint.
func (s *servicesBench) oneMore(ctx context.Context, run *servicesRun) error {
	slices := s.Client.DiscoveryV1().EndpointSlices("default")
	for n := range serviceChanges {
		i := len(s.all) + 1 + n
		begin := time.Now()
		at, err := s.service(ctx, i)
		if err == nil {
			err = s.answered(ctx, at, true)
		}
		if err != nil {
			return err
		}
		run.more = append(run.more, time.Since(begin))
		name := fmt.Sprintf("s%d", i)
		slice, err := slices.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		no := false
		for j := range slice.Endpoints {
			slice.Endpoints[j].Conditions.Ready = &no
		}
		begin = time.Now()
		if _, err := slices.Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
			return err
		}
		if err := s.answered(ctx, at, false); err != nil {
			return err
		}
		run.changed = append(run.changed, time.Since(begin))
		if err := s.Client.CoreV1().Services("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		if err := slices.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// rate is connections a second, from several at once.
func (s *servicesBench) rate(ctx context.Context) (float64, error) {
	begin := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for range 8 {
		group.Go(func() error {
			for range serviceConns {
				if _, err := s.connect(ctx, s.all[rand.IntN(len(s.all))]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	return 8 * serviceConns / time.Since(begin).Seconds(), err
}

// throughput is bytes a second of one connection.
func (s *servicesBench) throughput(ctx context.Context, at string) (float64, error) {
	conn, err := s.Central.Dial(ctx, "tcp", at)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	text := make([]byte, 1<<20)
	begin := time.Now()
	for sent := 0; sent < serviceBytes; sent += len(text) {
		if _, err := conn.Write(text); err != nil {
			return 0, err
		}
	}
	return serviceBytes / time.Since(begin).Seconds(), nil
}

// tell adds the rows of one size.
func (s *servicesBench) tell(b *bench, size int, ours, theirs *servicesRun) {
	in := fmt.Sprintf("%d Services: ", size)
	b.add(in+"the first time until all answer", ours.first, theirs.first, goalProxy)
	b.add(in+"one more, until it answers", ours.more, theirs.more, goalProxy)
	b.add(in+"its endpoints go, until it refuses", ours.changed, theirs.changed, goalProxy)
	b.add(in+"a connection's first byte, p50", ours.latency, theirs.latency, goalProxy)
	o, t := at99(ours.latency), at99(theirs.latency)
	b.rows = append(b.rows, row{name: in + "the same, p99", ours: o.String(), reference: t.String(), ratio: float64(o) / float64(t), goal: goalProxy},
		row{name: in + "connections a second", ours: fmt.Sprintf("%.0f", ours.rate), reference: fmt.Sprintf("%.0f", theirs.rate), ratio: ours.rate / theirs.rate, goal: goalProxy, atLeast: true},
		row{name: in + "memory", ours: fmt.Sprintf("%.0f MiB", ours.kib/1024), reference: fmt.Sprintf("%.0f MiB", theirs.kib/1024), ratio: ours.kib / theirs.kib, goal: goalProxy},
		row{name: in + "bytes a second by a VIP, to kube-proxy's", ours: gigabit(ours.throughput), reference: gigabit(theirs.throughput), ratio: ours.throughput / theirs.throughput, goal: goalVIP, atLeast: true},
		row{name: in + "the same, to no VIP", ours: gigabit(ours.throughput), reference: gigabit(s.direct), ratio: ours.throughput / s.direct, goal: goalVIP, atLeast: true})
}

func gigabit(bytes float64) string { return fmt.Sprintf("%.1f Gbit/s", bytes*8/1e9) }

func at99(samples []time.Duration) time.Duration {
	slices.Sort(samples)
	return samples[len(samples)*99/100].Round(10 * time.Microsecond)
}

// sizes are the numbers of a list with commas.
type sizes []int

func (s *sizes) String() string { return strings.Trim(fmt.Sprint([]int(*s)), "[]") }

func (s *sizes) Set(text string) error {
	*s = nil
	for _, word := range strings.Split(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 50 {
			return fmt.Errorf("%q: want numbers from 50 on, with commas between", text)
		}
		*s = append(*s, n)
	}
	slices.Sort(*s)
	return nil
}
