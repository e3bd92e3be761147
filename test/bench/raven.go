//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What is measured of Raven: so many pods on each node of a cluster, and changes one after another; writers is how many make pods at once.
const (
	podsOnNode    = 20
	fewPods       = 2 * podsOnNode
	ravenSpaces   = 10 // namespaces
	singleChanges = 20
	ravenWriters  = 16
	slowPods      = 10 * podsOnNode
)

// Goals: of writes of the API server for a pod, of pods a second against kwok's own without networking, and how much more a change may cost in a large cluster.
const (
	goalWrites  = 4
	goalPodRate = 0.9
	goalSame    = 1.2
)

// What was published of the Python kuryr-kubernetes: pods a second, and what its controller asks of a node's memory in MiB.
const (
	peerPodRate    = 0.45
	peerController = 500
)

// ravenScale measures Raven with thousands of pods on nodes that kwok plays and that have no daemons, so that Raven claims and annotates too: on a real API server, with an SDN that does
// nothing but keep its store. Before it, in a cluster of its own, kwok alone plays as many.
func ravenScale(ctx context.Context, b *bench) error {
	ceiling, err := kwokCeiling(ctx, b, fewPods)
	if err != nil {
		return err
	}
	c, err := startCluster(ctx, b)
	if err != nil {
		return err
	}
	defer c.Close()
	r := &ravenBench{played: &played{cluster: c}, bench: b, ceiling: ceiling}
	if r.sdn, err = serveSDN(ctx, c.Central.Dir()); err != nil {
		return err
	}
	defer r.sdn.close()
	if err := r.measure(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, c.Logs(10))
	}
	return nil
}

type ravenBench struct {
	*played
	*bench
	sdn        *servedSDN
	pid        int
	ceiling    alone         // without networking
	cpuOfWrite time.Duration // of a bare client
}

// tally is what Raven has asked so far: of the API server, and of the SDN.
type tally struct{ reads, writes, sdn float64 }

func (t tally) less(before tally) tally {
	return tally{t.reads - before.reads, t.writes - before.writes, t.sdn - before.sdn}
}

func (r *ravenBench) measure(ctx context.Context) error {
	if err := r.played.start(ctx, kwokWaits); err != nil {
		return err
	}
	if err := r.namespace(ctx, metav1.NamespaceDefault); err != nil {
		return err
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := r.fill(ctx, 0, fewPods); err != nil {
		return err
	}
	little, err := r.changes(ctx)
	if err != nil {
		return err
	}
	littleStart, _, err := r.restart(ctx)
	if err != nil {
		return err
	}
	bare, err := r.bareWrites(ctx)
	if err != nil {
		return err
	}
	if err := r.many(ctx, bare); err != nil {
		return err
	}
	large, err := r.changes(ctx)
	if err != nil {
		return err
	}
	in := fmt.Sprintf("Raven: one pod comes and goes among %d: ", r.pods)
	r.add(in+"time to its port, to that among 40", large.took, little.took, 0)
	for _, line := range []struct {
		what      string
		here, few float64
	}{{"writes of the API server", large.calls.writes, little.calls.writes}, {"reads of it", large.calls.reads, little.calls.reads}, {"requests of the SDN", large.calls.sdn, little.calls.sdn}} {
		ratio := 1.0
		if line.few > 0 {
			ratio = line.here / line.few
		}
		r.rows = append(r.rows, row{name: in + line.what + ", to those among 40", ours: fmt.Sprintf("%.2f", line.here), reference: fmt.Sprintf("%.2f", line.few), ratio: ratio, goal: goalSame})
	}
	if err := r.starts(ctx, littleStart); err != nil {
		return err
	}
	return r.slowly(ctx)
}

// slowly fills a few nodes more while the SDN is as slow as Neutron, which is all that pods may wait for.
func (r *ravenBench) slowly(ctx context.Context) error {
	r.sdn.slow.Store(true)
	begin := time.Now()
	if err := r.fill(ctx, r.pods, r.pods+slowPods); err != nil {
		return err
	}
	rate := slowPods / time.Since(begin).Seconds()
	most := 1 / neutronCreate.Seconds()
	r.rows = append(r.rows, row{
		name: "Raven: pods a second on an SDN as slow as Neutron, to the ports that it makes a second",
		ours: fmt.Sprintf("%.2f", rate), reference: fmt.Sprintf("%.2f", most), ratio: rate / most, goal: goalPodRate, atLeast: true,
	})
	return nil
}

// many fills the cluster up and tells what each pod cost.
func (r *ravenBench) many(ctx context.Context, bare float64) error {
	before, cpuBefore, err := r.spent(ctx)
	if err != nil {
		return err
	}
	asked, err := r.writesByKind(ctx)
	if err != nil {
		return err
	}
	others, err := r.cpuOfEach()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := r.fill(ctx, fewPods, r.pods); err != nil {
		return err
	}
	rate := float64(r.pods-fewPods) / time.Since(begin).Seconds()
	if others, err = r.cpuSince(others, r.pods-fewPods); err != nil {
		return err
	}
	after, cpuAfter, err := r.spent(ctx)
	if err != nil {
		return err
	}
	made := float64(r.pods - fewPods)
	calls := after.less(before)
	r.rows = append(r.rows,
		row{name: "Raven: pods a second that run, to kwok's without networking", ours: fmt.Sprintf("%.0f", rate), reference: fmt.Sprintf("%.0f", r.ceiling.rate), ratio: rate / r.ceiling.rate, goal: goalPodRate, atLeast: true},
		row{name: "Raven: pods a second that run, to a client that makes them and writes each once", ours: fmt.Sprintf("%.0f", rate), reference: fmt.Sprintf("%.0f", bare/2), ratio: rate / (bare / 2)},
		row{name: "Raven: pods a second, to the peer's", ours: fmt.Sprintf("%.0f", rate), reference: fmt.Sprint(peerPodRate), ratio: rate / peerPodRate, goal: 1, atLeast: true},
		row{name: "Raven: writes of the API server for each pod", ours: fmt.Sprintf("%.2f", calls.writes/made), reference: fmt.Sprint(goalWrites), ratio: calls.writes / made / goalWrites, goal: 1},
		row{name: "Raven: requests of the SDN for each pod, to one each", ours: fmt.Sprintf("%.2f", calls.sdn/made), reference: "1", ratio: calls.sdn / made, goal: 1},
		row{name: "Raven: CPU for each pod, to that of one write by a bare client", ours: ((cpuAfter - cpuBefore) / time.Duration(made)).Round(time.Microsecond).String(), reference: r.cpuOfWrite.Round(time.Microsecond).String(), ratio: float64(cpuAfter-cpuBefore) / made / float64(r.cpuOfWrite)},
	)
	for _, name := range slices.Sorted(maps.Keys(others)) { // where the processors are the bound, this is why
		r.add("Raven: CPU of "+name+" for each pod, to without networking", []time.Duration{others[name]}, []time.Duration{r.ceiling.cpu[name]}, 0)
	}
	if err := r.addWrites(ctx, asked, made); err != nil {
		return err
	}
	return r.addMemory(fmt.Sprintf("Raven: memory with %d pods, to what the peer's asks for", r.pods), r.pid, peerController)
}

// starts tells what a start with all of the pods there costs: it asks for all there is once, and the SDN for nothing of it.
func (r *ravenBench) starts(ctx context.Context, little time.Duration) error {
	took, calls, err := r.restart(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	for _, list := range []client.ObjectList{&corev1.PodList{}, &v1.KuryrPortList{}, &v1.KuryrPortPoolList{}, &corev1.NodeList{}} {
		if err := r.api.List(ctx, list); err != nil {
			return err
		}
	}
	in := fmt.Sprintf("Raven: start among %d pods, exec to the port of one that waits: ", r.pods)
	r.add(in+"to bare lists of all that it watches", []time.Duration{took}, []time.Duration{time.Since(begin)}, 0)
	r.add(in+"to that among 40", []time.Duration{took}, []time.Duration{little}, 0)
	r.rows = append(r.rows,
		row{name: "Raven: such a start: requests of the SDN for each pool", ours: fmt.Sprintf("%.0f", calls.sdn), reference: fmt.Sprint(r.pods / podsOnNode), ratio: calls.sdn / float64(r.pods/podsOnNode), goal: 0.1},
		row{name: "Raven: such a start: writes of the API server for each pool", ours: fmt.Sprintf("%.0f", calls.writes), reference: fmt.Sprint(r.pods / podsOnNode), ratio: calls.writes / float64(r.pods/podsOnNode), goal: 0.1})
	return r.addMemory(fmt.Sprintf("Raven: memory after a start with %d pods, to what the peer's asks for", r.pods), r.pid, peerController)
}

func (r *ravenBench) start(ctx context.Context) (err error) {
	r.pid, err = r.cluster.run(ctx, "kuryr-controller", nil, nil, "controller", "--host", warmNode, "--provider", "sdn", "--installation", "bench", "--sdn-socket", r.sdn.socket,
		"--kubernetes-kubeconfig", r.kubeconfig, "--controller-namespace", "default", "--controller-listen", ravenMetrics, "--controller-leader-election=false", "--controller-audit", "0",
		"--controller-pool-minimum", "2", "--controller-pool-batch", "5", "--controller-pool-ttl", "0", "--log-level", "warn")
	return err
}

// restart kills Raven, has a pod wait, and tells how long Raven took from its start to that pod's port, and what it asked for until it had no more to do.
func (r *ravenBench) restart(ctx context.Context) (took time.Duration, calls tally, err error) {
	if err := syscall.Kill(r.pid, syscall.SIGKILL); err != nil {
		return 0, tally{}, err
	}
	p, err := r.pod(ctx, space(0), fmt.Sprint("waits", time.Now().UnixNano()), nodeName(0))
	if err != nil {
		return 0, tally{}, err
	}
	begin := time.Now()
	if err := r.start(ctx); err != nil {
		return 0, tally{}, err
	}
	if err := r.seen.wait(ctx, ported, p.UID); err != nil {
		return 0, tally{}, err
	}
	took = time.Since(begin)
	calls, err = r.quiet(ctx)
	return took, calls, err
}

// change is what a pod that comes and goes costs by itself.
type change struct {
	took  []time.Duration
	calls tally
}

func (r *ravenBench) changes(ctx context.Context) (change, error) {
	var c change
	before, err := r.quiet(ctx)
	if err != nil {
		return c, err
	}
	for i := range singleChanges {
		begin := time.Now()
		p, err := r.pod(ctx, space(0), fmt.Sprintf("single%d-%d", i, begin.UnixNano()), nodeName(0))
		if err != nil {
			return c, err
		}
		if err := r.seen.wait(ctx, ported, p.UID); err != nil {
			return c, err
		}
		c.took = append(c.took, time.Since(begin))
		if err := r.api.Delete(ctx, p, client.GracePeriodSeconds(0)); err != nil {
			return c, err
		}
	}
	after, err := r.quiet(ctx)
	c.calls = after.less(before)
	c.calls.reads, c.calls.writes, c.calls.sdn = c.calls.reads/singleChanges, c.calls.writes/singleChanges, c.calls.sdn/singleChanges
	return c, err
}

// bareWrites are how many writes a second a client has done that does nothing else, and notes its CPU for one.
func (r *ravenBench) bareWrites(ctx context.Context) (float64, error) {
	const writes = 2000
	cpu, err := cpuTime(os.Getpid())
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	var g errgroup.Group
	g.SetLimit(ravenWriters)
	for i := range writes {
		g.Go(func() error {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: space(0), Name: fmt.Sprint("p", i%podsOnNode)}}
			patch := fmt.Appendf(nil, `{"metadata": {"annotations": {"example.org/bare": "%d"}}}`, i)
			return r.api.Status().Patch(ctx, p, client.RawPatch(types.MergePatchType, patch))
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	after, err := cpuTime(os.Getpid())
	r.cpuOfWrite = max((after-cpu)/writes, time.Microsecond)
	return writes / took.Seconds(), err
}

// spent is what Raven has asked for and used so far.
func (r *ravenBench) spent(ctx context.Context) (tally, time.Duration, error) {
	t, err := r.tally(ctx)
	if err != nil {
		return t, 0, err
	}
	cpu, err := cpuTime(r.pid)
	return t, cpu, err
}

// writesByKind are the writes that the API server has had so far, everybody's, by verb and resource.
func (r *ravenBench) writesByKind(ctx context.Context) (map[string]float64, error) {
	text, err := r.Client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	writes := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		labels, is := strings.CutPrefix(line, "apiserver_request_total{")
		labels, value, found := strings.Cut(labels, "} ")
		if !is || !found {
			continue
		}
		of := map[string]string{}
		for pair := range strings.SplitSeq(labels, ",") {
			name, text, _ := strings.Cut(pair, "=")
			of[name] = strings.Trim(text, `"`)
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return nil, fmt.Errorf("metrics of the API server: %s: %w", line, err)
		}
		if verb := of["verb"]; verb == "POST" || verb == "PUT" || verb == "PATCH" || verb == "DELETE" || verb == "APPLY" {
			writes[strings.TrimSuffix(verb+" "+of["resource"]+"/"+of["subresource"], "/")] += n
		}
	}
	return writes, nil
}

// addWrites tells which writes each pod cost: of the resources that Raven alone writes, and of pods' status, which kwok writes once.
func (r *ravenBench) addWrites(ctx context.Context, before map[string]float64, made float64) error {
	after, err := r.writesByKind(ctx)
	if err != nil {
		return err
	}
	for _, kind := range slices.Sorted(maps.Keys(after)) {
		n := (after[kind] - before[kind]) / made
		theirs := 0.0
		switch {
		case kind == "PATCH pods/status":
			theirs = 1
		case !strings.Contains(kind, " kuryr") && !strings.Contains(kind, " events"):
			continue
		}
		if n -= theirs; n >= 0.005 {
			r.rows = append(r.rows, row{name: "Raven: of these " + kind, ours: fmt.Sprintf("%.2f", n), reference: "1", ratio: n})
		}
	}
	return nil
}

// ravenMetrics is where Raven tells its metrics, on the central host.
const ravenMetrics = "127.0.0.1:9900"

// tally reads Raven's own metrics.
func (r *ravenBench) tally(ctx context.Context) (t tally, err error) {
	asker := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return r.Central.Dial(ctx, network, address)
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ravenMetrics+"/metrics", nil)
	if err != nil {
		return t, err
	}
	answer, err := asker.Do(request)
	if err != nil {
		return t, err
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "} ")
		n, failed := strconv.ParseFloat(value, 64)
		switch {
		case failed != nil:
		case strings.HasPrefix(name, "rest_client_requests_total{") && strings.Contains(name, `method="GET"`):
			t.reads += n
		case strings.HasPrefix(name, "rest_client_requests_total{"):
			t.writes += n
		case strings.HasPrefix(name, "kuryr_neutron_requests_total{"):
			t.sdn += n
		}
	}
	return t, nil
}

// quietTime is longer than Raven leaves counts that have changed unwritten.
const quietTime = 7 * time.Second

// quiet waits until Raven writes nothing and asks the SDN nothing any more.
func (r *ravenBench) quiet(ctx context.Context) (last tally, err error) {
	since := time.Now()
	return last, eventually(ctx, 500*time.Millisecond, func() error {
		now, err := r.tally(ctx)
		if err != nil || now.writes != last.writes || now.sdn != last.sdn {
			since, last = time.Now(), now
		}
		last.reads = now.reads
		if time.Since(since) < quietTime {
			return fmt.Errorf("work is not over: %+v, %w", now, err)
		}
		return nil
	})
}
