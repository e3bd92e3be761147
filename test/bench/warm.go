//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/sys/unix"
)

// Goals of an ADD from a warm pool: against bridge with host-local, thirty at once, against what nobody can do without; and of the daemon's memory in MiB.
const (
	goalWarm       = 0.33
	goalWarmAtOnce = 0.25
	goalWarmFloor  = 1.5
	goalNodeMemory = 30
)

// warmADD measures kuryr-cni from exec to exit as a kubelet's containerd runs it, for pods whose node has free ports: the daemon is the real one, with a real API server. The reference
// is Debian's bridge with host-local on the same host in turns.
func warmADD(ctx context.Context, b *bench) error {
	c, err := startCluster(ctx, b)
	if err != nil {
		return err
	}
	defer c.Close()
	w := warm{cluster: c}
	if err := w.start(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, c.Logs(20))
	}
	if err := b.addMemory("CNI: memory of kuryr node", w.daemon, goalNodeMemory); err != nil {
		return err
	}
	empty, err := emptyProgram(ctx)
	if err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Dir(empty))
	ours := cniPlugin{path: filepath.Join(filepath.Dir(b.kuryr), "kuryr-cni"), config: `{"cniVersion": "1.0.0", "name": "kuryr", "type": "kuryr"}`, args: podArgs}
	bridge := bridgePlugin()
	h := c.Central
	for _, p := range []cniPlugin{ours, bridge} { // the first of everything
		if _, _, err := p.many(ctx, h, atOnce); err != nil {
			return fmt.Errorf("%w\n%s", err, c.Logs(20))
		}
	}
	var adds, dels, theirAdds, theirDels, floor []time.Duration
	var cpu, theirCPU time.Duration
	ours.cpu, bridge.cpu = &cpu, &theirCPU
	before, err := cpuTime(w.daemon)
	if err != nil {
		return err
	}
	for range b.rounds {
		add, del, err := ours.once(ctx, h, "many0")
		if err != nil {
			return err
		}
		adds, dels = append(adds, add), append(dels, del)
		if add, del, err = bridge.once(ctx, h, "many0"); err != nil {
			return err
		}
		theirAdds, theirDels = append(theirAdds, add), append(theirDels, del)
		least, err := leastADD(ctx, h, empty)
		if err != nil {
			return err
		}
		floor = append(floor, least)
	}
	ours.cpu, bridge.cpu = nil, nil
	after, err := cpuTime(w.daemon)
	if err != nil {
		return err
	}
	b.add("CNI ADD from a warm pool, exec to exit: against bridge and host-local", adds, theirAdds, goalWarm)
	b.add("CNI ADD from a warm pool: against raw netlink and an empty program", adds, floor, goalWarmFloor)
	b.add("CNI DEL back into the pool: against bridge and host-local", dels, theirDels, 0)
	b.add("CNI ADD and DEL: CPU, with what the daemon tells the API server behind the answer: against bridge", []time.Duration{(cpu + after - before) / time.Duration(b.rounds)}, []time.Duration{theirCPU / time.Duration(b.rounds)}, 0)
	var many, manyDel, theirMany, theirManyDel []time.Duration
	for range max(3, b.rounds/3) {
		add, del, err := ours.many(ctx, h, atOnce)
		if err != nil {
			return err
		}
		many, manyDel = append(many, add...), append(manyDel, del...)
		if add, del, err = bridge.many(ctx, h, atOnce); err != nil {
			return err
		}
		theirMany, theirManyDel = append(theirMany, add...), append(theirManyDel, del...)
	}
	b.add(fmt.Sprintf("CNI ADD from a warm pool, %d at once, p99: against bridge", atOnce), []time.Duration{percentile99(many)}, []time.Duration{percentile99(theirMany)}, goalWarmAtOnce)
	b.add(fmt.Sprintf("CNI DEL back into the pool, %d at once, p99: against bridge", atOnce), []time.Duration{percentile99(manyDel)}, []time.Duration{percentile99(theirManyDel)}, 0)
	return w.alone(ctx, b, ours)
}

// alone has ADDs made while neither the API server nor Raven nor the SDN can answer: a call of any of them in an ADD's path would not come back.
func (w *warm) alone(ctx context.Context, b *bench, ours cniPlugin) error {
	if err := w.FreezeAPIServer(); err != nil {
		return err
	}
	for _, pid := range []int{w.sdn, w.raven} {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			return err
		}
	}
	took, _, err := ours.many(ctx, w.Central, atOnce)
	done := 0
	if err == nil {
		done = len(took)
	}
	b.rows = append(b.rows, row{name: "CNI ADDs done with API server, Raven and SDN stopped", ours: fmt.Sprint(done), reference: fmt.Sprint(atOnce), ratio: float64(done) / atOnce, goal: 1, atLeast: true})
	return err
}

// podArgs are CNI_ARGS for the pod that is called as its namespace.
func podArgs(ns string) string {
	return "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + ns + ";K8S_POD_INFRA_CONTAINER_ID=" + ns
}

// warm is a node that has all of Kuryr and a free port for each of its pods.
type warm struct {
	*cluster
	sdn, raven, daemon int
}

// warmNode is the node's name.
const warmNode = "central"

func (w *warm) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := w.namespace(ctx, metav1.NamespaceDefault); err != nil {
		return err
	}
	if err := w.api.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: warmNode}}); err != nil {
		return err
	}
	for i := range atOnce {
		if _, err := w.pod(ctx, metav1.NamespaceDefault, fmt.Sprint("many", i), warmNode); err != nil {
			return err
		}
	}
	// A node's /run is in memory, and so is the daemon's journal.
	for _, argv := range [][]string{{"mkdir", "-p", "/run/kuryr/claims"}, {"mount", "-t", "tmpfs", "tmpfs", "/run/kuryr/claims"}} {
		if r := w.Central.Exec(ctx, argv...); !r.OK() {
			return r.Err()
		}
	}
	var err error
	kubernetes := []string{"--kubernetes-kubeconfig", w.kubeconfig}
	if w.sdn, err = w.run(ctx, "kuryr-sdn", nil, w.answers("/run/kuryr/kuryr.sock", "/readyz"), "sdn", "--host", warmNode); err != nil {
		return err
	}
	if w.raven, err = w.run(ctx, "kuryr-controller", nil, nil, append([]string{
		"controller", "--host", warmNode, "--provider", "sdn", "--controller-namespace", "default", "--controller-listen", "", "--controller-leader-election=false",
		"--controller-pool-minimum", fmt.Sprint(atOnce), "--controller-pool-batch", fmt.Sprint(2 * atOnce),
	}, kubernetes...)...); err != nil {
		return err
	}
	if w.daemon, err = w.run(ctx, "kuryr-node", []string{"NODE_NAME=" + warmNode}, func(context.Context) bool {
		_, err := os.Stat(w.Central.Path("/etc/cni/net.d/10-kuryr.conflist"))
		return err == nil
	}, append([]string{"node"}, kubernetes...)...); err != nil {
		return err
	}
	return eventually(ctx, 100*time.Millisecond, func() error {
		var ports v1.KuryrPortList
		if err := w.api.List(ctx, &ports, client.MatchingLabels{v1.LabelPortStatus: string(v1.PortAvailable)}); err != nil {
			return err
		}
		if len(ports.Items) < atOnce {
			return fmt.Errorf("the node has %d free ports", len(ports.Items))
		}
		return nil
	})
}
