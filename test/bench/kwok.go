//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
)

// kwokEnv names the program that hack/kwok.sh prints.
const kwokEnv = "KURYR_BENCH_KWOK"

// What kwok does as the kubelet of each node that has its annotation: a node becomes ready, and a pod of it runs; %s is what else a pod is to have first.
const (
	kwokNode   = "kwok.x-k8s.io/node"
	kwokStages = `apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select(.type == "Ready") | .status', operator: NotIn, values: ["True"]}
  next:
    statusTemplate: |
      conditions:
      - {type: Ready, status: "True", reason: Played, lastHeartbeatTime: {{ Now | Quote }}, lastTransitionTime: {{ Now | Quote }}}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-runs}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Pending]}
%s  next:
    statusTemplate: |
      phase: Running
      startTime: {{ Now | Quote }}
      conditions:
      - {type: Ready, status: "True", lastTransitionTime: {{ Now | Quote }}}
`
	// A kubelet runs a pod when CNI has answered, which waits for the port: here, for Raven's annotation, since nodes without a daemon have that.
	kwokWaits = `    - {key: '.metadata.annotations["` + v1.AnnotationVIF + `"]', operator: Exists}
`
)

// startKwok has kwok play the nodes and pods of the cluster. Nodes renew no Lease: that would only take time from both sides.
func (c *cluster) startKwok(ctx context.Context, waits string) error {
	program := os.Getenv(kwokEnv)
	if program == "" {
		return errors.New(kwokEnv + " is not set: run hack/kwok.sh and give the path that it prints")
	}
	stages := filepath.Join(c.Central.Dir(), "kwok.yaml")
	if err := os.WriteFile(stages, fmt.Appendf(nil, kwokStages, waits), 0o600); err != nil {
		return err
	}
	s, err := c.Central.StartService(ctx, "kwok", nil, []string{program, "--config", stages, "--kubeconfig", c.kubeconfig,
		"--manage-nodes-with-annotation-selector", kwokNode + "=fake", "--node-lease-duration-seconds", "0"}, nil)
	if err == nil {
		c.kwok = s.Pid()
	}
	return err
}

// alone is what kwok does in a cluster of the same nodes and pods that has no networking: pods a second, and whose CPU each took.
type alone struct {
	rate float64
	cpu  map[string]time.Duration
}

// kwokCeiling measures it.
func kwokCeiling(ctx context.Context, b *bench, few int) (a alone, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	c, err := startCluster(ctx, b)
	if err != nil {
		return a, err
	}
	defer c.Close()
	p := &played{cluster: c}
	if err := p.start(ctx, ""); err != nil {
		return a, err
	}
	if err := p.fill(ctx, 0, few); err != nil {
		return a, fmt.Errorf("kwok without networking: %w\n%s", err, c.Logs(10))
	}
	before, err := c.cpuOfEach()
	if err != nil {
		return a, err
	}
	begin := time.Now()
	if err := p.fill(ctx, few, b.pods); err != nil {
		return a, fmt.Errorf("kwok without networking: %w\n%s", err, c.Logs(10))
	}
	a.rate = float64(b.pods-few) / time.Since(begin).Seconds()
	a.cpu, err = c.cpuSince(before, b.pods-few)
	return a, err
}

// cpuOfEach is the CPU that the cluster's processes have used, and the measurement itself, which makes the pods and is the SDN.
func (c *cluster) cpuOfEach() (map[string]time.Duration, error) {
	pids := c.ControlPids()
	pids["kwok"], pids["the client (and the SDN)"] = c.kwok, os.Getpid()
	all := map[string]time.Duration{}
	for name, pid := range pids {
		var err error
		if all[name], err = cpuTime(pid); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return all, nil
}

// cpuSince is what they have used since for each of so many pods.
func (c *cluster) cpuSince(before map[string]time.Duration, pods int) (map[string]time.Duration, error) {
	all, err := c.cpuOfEach()
	for name := range all {
		all[name] = (all[name] - before[name]) / time.Duration(pods)
	}
	return all, err
}

// played is a cluster whose nodes and pods kwok plays.
type played struct {
	*cluster
	seen *noted
}

func (p *played) start(ctx context.Context, waits string) error {
	p.seen = p.watchPods(ctx)
	return p.startKwok(ctx, waits)
}

// fill makes pods number from to number to, with their nodes and namespaces, and waits until each runs.
func (p *played) fill(ctx context.Context, from, to int) error {
	var g errgroup.Group
	g.SetLimit(ravenWriters)
	for i := range ravenSpaces {
		g.Go(func() error { return p.namespace(ctx, space(i)) })
	}
	for n := from / podsOnNode; n < to/podsOnNode; n++ {
		g.Go(func() error {
			return p.api.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Name: nodeName(n), Labels: map[string]string{v1.LabelClaimant: v1.ClaimantRaven}, Annotations: map[string]string{kwokNode: "fake"},
			}})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := p.nodesReady(ctx, to/podsOnNode); err != nil {
		return err
	}
	uids := make([]types.UID, to-from)
	for i := from; i < to; i++ {
		g.Go(func() error {
			node := i / podsOnNode
			pod, err := p.pod(ctx, space(node%ravenSpaces), fmt.Sprint("p", i), nodeName(node))
			uids[i-from] = pod.UID
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := p.seen.wait(ctx, running, uids...); err != nil {
		return errors.Join(err, p.standing(ctx))
	}
	return nil
}

// standing tells how far the pods are that do not run.
func (p *played) standing(ctx context.Context) error {
	var pods corev1.PodList
	if err := p.api.List(ctx, &pods); err != nil {
		return err
	}
	var without, with []string
	for i := range pods.Items {
		o := &pods.Items[i]
		switch {
		case o.Status.Phase == corev1.PodRunning:
		case o.Annotations[v1.AnnotationVIF] == "":
			without = append(without, o.Spec.NodeName+"/"+o.Name)
		default:
			with = append(with, o.Spec.NodeName+"/"+o.Name)
		}
	}
	return fmt.Errorf("%d of %d have no port (%.200s), %d have one and kwok does not run them (%.200s)", len(without), len(pods.Items), strings.Join(without, " "), len(with), strings.Join(with, " "))
}

// nodesReady waits until kwok has taken so many nodes: as a scheduler does, before pods come to them.
func (p *played) nodesReady(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	return eventually(ctx, 200*time.Millisecond, func() error {
		var nodes corev1.NodeList
		if err := p.api.List(ctx, &nodes); err != nil {
			return err
		}
		ready := 0
		for i := range nodes.Items {
			if slices.ContainsFunc(nodes.Items[i].Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}) {
				ready++
			}
		}
		if ready < want {
			return fmt.Errorf("kwok plays %d nodes, want %d", ready, want)
		}
		return nil
	})
}

func space(i int) string    { return fmt.Sprint("space", i) }
func nodeName(i int) string { return fmt.Sprint("node", i) }

// step is how far a pod is.
type step int

const (
	ported  step = iota + 1 // it has its port's annotation
	running                 // kwok has had it run
)

// noted knows how far pods are.
type noted struct {
	mu   sync.Mutex
	pods map[types.UID]step
	news chan struct{}
}

// watchPods notes until ctx ends. It lists anew where the API server ends a watch that is behind.
func (c *cluster) watchPods(ctx context.Context) *noted {
	a := &noted{pods: map[types.UID]step{}, news: make(chan struct{}, 1)}
	see := func(object any) {
		p, is := object.(*corev1.Pod)
		switch {
		case !is:
		case p.Status.Phase == corev1.PodRunning:
			a.note(p.UID, running)
		case p.Annotations[v1.AnnotationVIF] != "":
			a.note(p.UID, ported)
		}
	}
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewListWatchFromClient(c.Client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, fields.Everything()), ObjectType: &corev1.Pod{},
		Handler: toolscache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, now any) { see(now) }},
	})
	go informer.RunWithContext(ctx)
	return a
}

func (a *noted) note(uid types.UID, is step) {
	a.mu.Lock()
	a.pods[uid] = is
	a.mu.Unlock()
	select {
	case a.news <- struct{}{}:
	default:
	}
}

// wait returns when all of the pods are as far as that.
func (a *noted) wait(ctx context.Context, far step, uids ...types.UID) error {
	for {
		a.mu.Lock()
		for len(uids) > 0 && a.pods[uids[len(uids)-1]] >= far {
			uids = uids[:len(uids)-1]
		}
		a.mu.Unlock()
		if len(uids) == 0 {
			return nil
		}
		select {
		case <-a.news:
		case <-time.After(3 * time.Minute):
			return fmt.Errorf("%d pods wait", len(uids))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
