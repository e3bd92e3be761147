//go:build e2e

package kubernetes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/sync/errgroup"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// bareNode is a node with all of Kuryr and without a kubelet, for pods by the dozen: the
// test makes them in the API, and runs kuryr-cni for them as a container runtime would.
type bareNode struct {
	*rig
	api                     client.Client
	host                    *privatehost.Host
	sdnDaemon, raven, claim *privatehost.Service
}

// bareName is the node's name.
const bareName = "central"

func startBareNode(t *testing.T, reason string) *bareNode {
	n := &bareNode{rig: start(t, reason, kubelab.Options{APIOnly: true})}
	n.host = n.Central
	n.install(false)
	n.api = n.rig.api(nil)
	n.must(n.api.Create(n.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: bareName}}))
	n.must(client.IgnoreAlreadyExists(n.api.Create(n.ctx, &corev1.ServiceAccount{
		ObjectMeta:                   metav1.ObjectMeta{Namespace: "default", Name: "default"},
		AutomountServiceAccountToken: new(false),
	})))
	for file, text := range map[string][]byte{
		"ca":               n.Config.CAData,
		"kuryr-controller": []byte(n.token("kuryr-controller", nil).BearerToken),
		"kuryr-node":       []byte(n.nodeToken(bareName).BearerToken),
	} {
		n.must(os.WriteFile(filepath.Join(n.host.Dir(), file), text, 0o600))
	}
	n.startSDN()
	var err error
	n.raven, err = n.host.StartService(n.ctx, "kuryr-controller", nil, append([]string{
		kuryr, "controller", "--host", bareName, "--installation", "kubernetes", "--provider",
		"sdn", "--controller-namespace", system, "--controller-listen", "",
		"--controller-leader-election=false", "--controller-pool-minimum", "2", "--controller-pool-batch", "5",
	}, n.account("kuryr-controller")...), nil)
	n.must(err)
	n.claim, err = n.host.StartService(n.ctx, "kuryr-node", []string{
		"NODE_NAME=" + bareName,
	}, append([]string{kuryr, "node"}, n.account("kuryr-node")...), func(context.Context) bool {
		_, err := os.Stat(n.host.Path("/etc/cni/net.d/10-kuryr.conflist"))
		return err == nil
	})
	n.must(err)
	return n
}

func (n *bareNode) startSDN() {
	n.Helper()
	socket := n.host.Path("/run/kuryr/kuryr.sock")
	n.must(os.RemoveAll(socket)) // what a killed one has left is none
	var err error
	n.sdnDaemon, err = n.host.StartService(n.ctx, "kuryr-sdn", []string{
		"KURYR_INSTALLATION=kubernetes",
	}, []string{kuryr, "sdn", "--host", bareName}, func(context.Context) bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	n.must(err)
}

// account is how a program of the node asks the API server.
func (n *bareNode) account(name string) []string {
	return []string{
		"--kubernetes-api-server", n.Endpoint(), "--kubernetes-ca-file",
		filepath.Join(n.host.Dir(), "ca"), "--kubernetes-token-file",
		filepath.Join(n.host.Dir(), name),
	}
}

// sandbox is a pod with its network namespace.
type sandbox struct{ name, address string }

// up makes a pod, when the API server is there, and its interface.
func (n *bareNode) up(name string) (sandbox, error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: serverSpec()}
	pod.Spec.NodeName = bareName
	if err := n.insist(func() error { return client.IgnoreAlreadyExists(n.api.Create(n.ctx, pod)) }); err != nil {
		return sandbox{}, err
	}
	if r := n.host.Exec(n.ctx, "ip", "netns", "add", name); !r.OK() {
		return sandbox{}, r.Err()
	}
	out := ""
	if err := n.insist(func() (err error) { out, err = n.cni("ADD", name); return err }); err != nil { // as a kubelet does
		return sandbox{}, err
	}
	var result struct{ IPs []struct{ Address string } }
	if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.IPs) == 0 {
		return sandbox{}, fmt.Errorf("ADD of %s: %w, %s", name, err, out)
	}
	address, _, _ := strings.Cut(result.IPs[0].Address, "/")
	return sandbox{name, address}, nil
}

// down takes a pod and its interface away, the interface first, as a kubelet does.
func (n *bareNode) down(s sandbox) error {
	_, err := n.cni("DEL", s.name)
	if r := n.host.Exec(n.ctx, "ip", "netns", "del", s.name); !r.OK() {
		err = errors.Join(err, r.Err())
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: s.name}}
	return errors.Join(err, n.insist(func() error {
		return client.IgnoreNotFound(n.api.Delete(n.ctx, pod, client.GracePeriodSeconds(0)))
	}))
}

// insist asks one who may be away, or not have heard yet, until it is done.
func (n *bareNode) insist(ask func() error) error {
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-n.ctx.Done():
			return err
		}
	}
}

func (n *bareNode) cni(verb, name string) (string, error) {
	c := n.host.Command(n.ctx, filepath.Join(filepath.Dir(kuryr), "kuryr-cni"))
	c.Env = append(
		c.Env, "CNI_COMMAND="+verb, "CNI_CONTAINERID="+name, "CNI_NETNS=/run/netns/"+name,
		"CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+name)
	c.Stdin = strings.NewReader(`{"cniVersion": "1.0.0", "name": "kuryr", "type": "kuryr"}`)
	var out strings.Builder
	c.Stdout = &out
	err := n.host.StartCommand(c)
	if err == nil {
		err = c.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s of %s: %w: %s", verb, name, err, out.String())
	}
	return out.String(), err
}

// bring brings pods up at once, a few at a time.
func (n *bareNode) bring(name string, count int) ([]sandbox, error) {
	all := make([]sandbox, count)
	var g errgroup.Group
	g.SetLimit(20)
	for i := range all {
		g.Go(func() (err error) { all[i], err = n.up(fmt.Sprint(name, i)); return err })
	}
	return all, g.Wait()
}

func (n *bareNode) ups(name string, count int) []sandbox {
	n.Helper()
	all, err := n.bring(name, count)
	n.must(err)
	return all
}

func (n *bareNode) downs(all []sandbox) {
	n.Helper()
	var g errgroup.Group
	g.SetLimit(20)
	for _, s := range all {
		g.Go(func() error { return n.down(s) })
	}
	n.must(g.Wait())
}

// agree waits until pods, KuryrPorts and SDN tell the same: each pod has one port, with
// the address that its interface was given, and nobody else has one. It gives the ports'
// names.
func (n *bareNode) agree(want []sandbox) (names []string) {
	n.Helper()
	n.until(func(ctx context.Context) error {
		var ports kuryrv1.KuryrPortList
		if err := n.api.List(ctx, &ports); err != nil {
			return err
		}
		names = nil
		has, of := map[string]string{}, map[string]string{}
		for _, p := range ports.Items {
			names = append(names, p.Name)
			pod := p.Status.Pod
			if (pod != nil) != (p.Labels[kuryrv1.LabelPortStatus] == string(kuryrv1.PortBound)) {
				return fmt.Errorf("port %s is labelled %s and of %+v", p.Name, p.Labels[kuryrv1.LabelPortStatus], pod)
			}
			if pod == nil {
				continue
			}
			if has[pod.Name] != "" {
				return fmt.Errorf("%s has two ports", pod.Name)
			}
			address := p.Spec.Network.Subnets[0].IPs[0]
			if of[address] != "" {
				n.Fatalf("%s and %s have the address %s", pod.Name, of[address], address)
			}
			has[pod.Name], of[address] = address, pod.Name
		}
		for _, s := range want {
			if has[s.name] != s.address {
				return fmt.Errorf("%s has %s, its port %q", s.name, s.address, has[s.name])
			}
		}
		if len(has) != len(want) {
			return fmt.Errorf("%d bound ports, want %d", len(has), len(want))
		}
		return n.sameInSDN(names)
	})
	return names
}

func (n *bareNode) sameInSDN(names []string) error {
	list := n.host.Exec(n.ctx, kuryr, "port", "list", "-o", "json")
	var all []struct {
		ID          string `json:"id"`
		DeviceOwner string `json:"device_owner"`
	}
	if err := json.Unmarshal([]byte(list.Stdout), &all); err != nil {
		return fmt.Errorf("%w: %s", err, list)
	}
	var found []string
	for _, p := range all {
		if p.DeviceOwner == "compute:kuryr" {
			found = append(found, p.ID)
		}
	}
	slices.Sort(found)
	slices.Sort(names)
	if !slices.Equal(found, names) {
		return fmt.Errorf("the SDN has %d ports, Kubernetes %d", len(found), len(names))
	}
	return nil
}

// living checks that none of the daemons has ended by itself.
func (n *bareNode) living() {
	n.Helper()
	for name, s := range map[string]*privatehost.Service{
		"Raven": n.raven, "the node's daemon": n.claim, "the SDN": n.sdnDaemon,
	} {
		select {
		case <-s.Gone():
			n.Fatalf("%s has ended", name)
		default:
		}
	}
}

// Sixty pods come at once from a pool of two that must grow, go, and come again by the
// same ports; then the API server goes again and again among pods that come and go; then
// the SDN is away. Whoever is there meanwhile stays, waits, and loses nothing.
func TestAway(t *testing.T) {
	t.Parallel()
	n := startBareNode(t, "the API server and the SDN are killed")
	const pods = 60
	begin := time.Now()
	all := n.ups("d", pods)
	t.Logf("%d pods are up after %s", pods, time.Since(begin).Round(10*time.Millisecond))
	before := n.agree(all)
	n.downs(all)
	n.agree(nil)
	begin = time.Now()
	all = n.ups("e", pods)
	t.Logf("the next %d after %s", pods, time.Since(begin).Round(10*time.Millisecond))
	if after := n.agree(all); len(after) > len(before)+5 { // a batch, where the pool was full but for them
		t.Errorf("%d ports, and for the pods before there were %d", len(after), len(before))
	}
	n.downs(all[10:])
	all = all[:10]

	n.apiServerGoes()
	n.agree(all)
	n.living()

	// More pods than free ports: some have theirs from the pool, and the others wait for the SDN.
	var ports kuryrv1.KuryrPortList
	n.must(n.api.List(n.ctx, &ports))
	free := len(ports.Items) - len(all)
	n.must(n.sdnDaemon.Stop(syscall.SIGKILL, limit))
	warm := n.ups("w", free)
	var late []sandbox
	waiting := make(chan error, 1)
	go func() {
		var err error
		late, err = n.bring("x", 10)
		waiting <- err
	}()
	select {
	case err := <-waiting:
		t.Fatalf("ports without an SDN: %v", err)
	case <-time.After(2 * time.Second):
	}
	begin = time.Now()
	n.startSDN()
	n.must(<-waiting)
	t.Logf(
		"those that waited for the SDN are up %s after it was started again",
		time.Since(begin).Round(10*time.Millisecond),
	)
	n.agree(slices.Concat(all, warm, late))
	n.living()
	n.downs(slices.Concat(all, warm, late))
	n.agree(nil)
}

// apiServerGoes kills the API server twice while pods come and go.
func (n *bareNode) apiServerGoes() {
	n.Helper()
	var over atomic.Bool
	var rounds atomic.Int32
	var churn sync.WaitGroup
	failed := make(chan error, 4)
	for worker := range cap(failed) {
		churn.Go(func() {
			for i := 0; !over.Load(); i++ {
				s, err := n.up(fmt.Sprintf("churn%d-%d", worker, i))
				if err == nil {
					err = n.down(s)
				}
				if err != nil {
					failed <- err
					return
				}
				rounds.Add(1)
			}
		})
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		time.Sleep(time.Second)
		n.must(n.StopAPIServer(sig))
		time.Sleep(time.Second)
		n.must(n.StartAPIServer(n.ctx))
		n.living()
	}
	time.Sleep(time.Second)
	over.Store(true)
	churn.Wait()
	close(failed)
	for err := range failed {
		n.Error(err)
	}
	n.Logf("%d pods came and went meanwhile", rounds.Load())
}
