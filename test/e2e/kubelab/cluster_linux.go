package kubelab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// ProgramsEnv names the folder that hack/kubernetes.sh printed.
const ProgramsEnv = "KURYR_E2E_KUBERNETES"

// Options say what a cluster has. The zero value is a control plane without nodes.
type Options struct {
	Programs string // folder with etcd, kube-apiserver and so on; where empty, KURYR_E2E_KUBERNETES's
	APIOnly  bool   // etcd and kube-apiserver alone
	Nodes    int    // named node1, node2, …
	Families Families
	APIFlags []string
	// Egress has the API server reach kubelets and pods from the first node, as
	// Konnectivity would, and not from its own host, which is no node.
	Egress bool
	// Central is a running host that the control plane is to be on, beside what else it
	// runs; nil is one of the cluster's own. It does not end with the cluster.
	Central *privatehost.Host

	// Images are imported on every node, besides those of pods (PauseImage) and Busybox.
	Images []Image
	// DNS has the nodes have CoreDNS's image, for DeployDNS.
	DNS bool
	// Kubeadm leaves in the API what kubeadm leaves there: kube-public/cluster-info.
	Kubeadm bool

	// Booted runs when a node starts and at each Reboot, before its containerd does: it
	// brings the CNI plugins and their configuration.
	Booted func(context.Context, *Node) error
}

// Cluster is a running cluster. Its methods may be called from any goroutine, but those
// that start and stop something from one at a time.
type Cluster struct {
	Central *privatehost.Host
	Nodes   []*Node
	Config  *rest.Config         // of an administrator
	Client  kubernetes.Interface // by Config

	opts     Options
	programs string
	images   string // folder with the images' archives
	ca       *authority
	door     *Front // by which the test reaches the API server
	egress   *egress

	etcd, api, controllers, scheduler *privatehost.Service
}

// New starts a cluster. It returns when the API server answers and, with nodes, when
// every one is known to it; WaitReady waits for more. Close must be called also when ctx
// has ended.
func New(ctx context.Context, opts Options) (*Cluster, error) {
	c := &Cluster{opts: opts, programs: cmp.Or(opts.Programs, os.Getenv(ProgramsEnv))}
	if c.programs == "" {
		return nil, fmt.Errorf("%s is not set: run hack/kubernetes.sh and give the folder that it prints", ProgramsEnv)
	}
	if err := c.start(ctx); err != nil {
		err = fmt.Errorf("%w\n%s", err, c.Logs(20))
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	var err error
	if c.Central = c.opts.Central; c.Central != nil {
		err = lay(ctx, c.Central)
	} else {
		c.Central, err = privatehost.New(ctx, privatehost.Options{Hostname: "central", Booted: lay})
	}
	if err != nil {
		return fmt.Errorf("start the central host: %w", err)
	}
	if err := c.identify(); err != nil {
		return fmt.Errorf("make the cluster's certificates: %w", err)
	}
	jobs := []func() error{func() error { return c.startControl(ctx) }}
	if c.opts.Nodes > 0 {
		c.images = filepath.Join(c.Central.Dir(), "images")
		if err := c.writeImages(ctx); err != nil {
			return fmt.Errorf("make the images: %w", err)
		}
	}
	c.Nodes = make([]*Node, c.opts.Nodes)
	for i := range c.Nodes {
		jobs = append(jobs, func() (err error) {
			c.Nodes[i], err = c.newNode(ctx, i+1)
			return err
		})
	}
	if err := together(jobs...); err != nil {
		return err
	}
	return c.waitNodes(ctx, func(*corev1.Node) error { return nil })
}

// lay makes the central host's side of the cables.
func lay(ctx context.Context, h *privatehost.Host) error {
	return run(
		ctx, h, []string{"ip", "link", "add", bridge, "up", "type", "bridge"},
		[]string{"ip", "addr", "add", Nodes.String(), "dev", bridge},
		[]string{"ip", "addr", "add", Nodes6.String(), "dev", bridge, "nodad"})
}

// bridge joins the hosts: each node has a cable to it.
const (
	bridge = "nodes"
	cable  = "node0"
)

// Endpoint is the API server's, for who is on one of the hosts.
func (c *Cluster) Endpoint() string {
	return "https://" + netip.AddrPortFrom(Nodes.Addr(), Port).String()
}

// Kubeconfig writes a file by which a program on one of the hosts is a user in groups,
// and returns its path, which is the same on all. Through front, if that is not nil.
func (c *Cluster) Kubeconfig(front *Front, user string, groups ...string) (string, error) {
	endpoint := c.Endpoint()
	if front != nil {
		endpoint = front.Endpoint()
	}
	p, err := c.ca.client(user, groups...)
	if err != nil {
		return "", err
	}
	file, err := os.CreateTemp(c.Central.Dir(), "kubeconfig-")
	if err != nil {
		return "", err
	}
	file.Close()
	return file.Name(), c.ca.kubeconfig(file.Name(), endpoint, p)
}

// Close ends the cluster and removes all of it.
func (c *Cluster) Close() {
	if c.door != nil {
		c.door.Close()
	}
	if c.egress != nil {
		c.egress.Close()
	}
	var wait sync.WaitGroup
	for _, n := range c.Nodes {
		if n != nil {
			wait.Go(n.Close)
		}
	}
	wait.Wait()
	if c.Central != nil && c.opts.Central == nil {
		c.Central.Close()
	}
}

// Logs returns the last lines of each log of each host.
func (c *Cluster) Logs(lines int) string {
	text := ""
	for _, h := range c.hosts() {
		text += "=== " + h.Hostname() + "\n" + h.Logs(lines)
	}
	return text
}

// hosts are those there are so far.
func (c *Cluster) hosts() (all []*privatehost.Host) {
	if c.Central != nil {
		all = append(all, c.Central)
	}
	for _, n := range c.Nodes {
		if n != nil {
			all = append(all, n.Host)
		}
	}
	return all
}

// Start is New for a test: the cluster ends with the test. Report says what a failed test shows of it.
func Start(t privatehost.TB, opts Options) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c, err := New(ctx, opts)
	if err != nil {
		t.Fatalf("start a cluster: %v", err)
	}
	t.Cleanup(func() {
		c.Report(t)
		c.Close()
	})
	return c
}

// Report shows the ends of the cluster's logs if the test has failed. The environment variable
// KURYR_E2E_LOGS names a folder that keeps the whole logs.
func (c *Cluster) Report(t privatehost.TB) {
	t.Helper()
	if !t.Failed() {
		return
	}
	t.Logf("%s", c.Logs(40))
	for _, h := range c.hosts() {
		h.KeepLogs(os.Getenv("KURYR_E2E_LOGS"))
	}
}

// together runs jobs at once and returns when all have ended.
func together(jobs ...func() error) error {
	errs := make([]error, len(jobs))
	var wait sync.WaitGroup
	for i, job := range jobs {
		wait.Go(func() { errs[i] = job() })
	}
	wait.Wait()
	return errors.Join(errs...)
}

// run runs commands on a host, the next where the one before succeeded.
func run(ctx context.Context, h *privatehost.Host, commands ...[]string) error {
	for _, argv := range commands {
		if r := h.Exec(ctx, argv...); !r.OK() {
			return fmt.Errorf("on %s: %s", h.Hostname(), r)
		}
	}
	return nil
}
