package kubelab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// stopLimit is how long a program may take to end when it is asked to.
const stopLimit = time.Minute

// The components of the control plane that are clients of its API server.
const (
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
)

func (c *Cluster) file(name string) string { return filepath.Join(c.Central.Dir(), name) }

// identify makes the certificates and keys of the control plane, and the test's way in.
func (c *Cluster) identify() (err error) {
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	if err := (pair{c.ca.pem, nil}).write(c.Central.Dir(), "ca"); err != nil {
		return err
	}
	server, err := c.ca.server(
		"kube-apiserver",
		[]string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"},
		Nodes.Addr().String(), Nodes6.Addr().String(), "127.0.0.1", netip.MustParsePrefix(
			ServiceRange,
		).Addr().Next().String(), netip.MustParsePrefix(ServiceRange6).Addr().Next().String())
	if err != nil {
		return err
	}
	if err := server.write(c.Central.Dir(), "apiserver"); err != nil {
		return err
	}
	kubelets, err := c.ca.client("kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return err
	}
	if err := kubelets.write(c.Central.Dir(), "kubelets"); err != nil {
		return err
	}
	if _, key, err := newKey(); err != nil {
		return err
	} else if err := os.WriteFile(c.file("accounts.key"), key, 0o600); err != nil {
		return err
	}
	for _, name := range []string{controllerManager, scheduler} {
		user, err := c.ca.client("system:" + name)
		if err != nil {
			return err
		}
		if err := c.ca.kubeconfig(c.file(name), c.Endpoint(), user); err != nil {
			return err
		}
	}
	return c.enter()
}

// enter opens a door to the API server on the machine's loopback: client-go's streams take no dialer.
func (c *Cluster) enter() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.door = newFront(listener, c.dial)
	c.Config, err = c.UserConfig("administrator", "system:masters")
	if err == nil {
		c.Client, err = kubernetes.NewForConfig(c.Config)
	}
	return err
}

// UserConfig is how the test speaks with the API server as a user in groups.
func (c *Cluster) UserConfig(user string, groups ...string) (*rest.Config, error) {
	p, err := c.ca.client(user, groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: c.door.Endpoint(), QPS: -1, // what a test asks for is not held back
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.pem, CertData: p.cert, KeyData: p.key},
	}, nil
}

func (c *Cluster) dial(ctx context.Context) (net.Conn, error) {
	return c.Central.Dial(ctx, "tcp", netip.AddrPortFrom(Nodes.Addr(), Port).String())
}

func (c *Cluster) dialNode(ctx context.Context, address string) (net.Conn, error) {
	return c.Nodes[0].Dial(ctx, "tcp", address)
}

// component starts a program of Kubernetes on the central host.
func (c *Cluster) component(
	ctx context.Context, name string, ready func(context.Context) bool, flags ...string,
) (*privatehost.Service, error) {
	return c.Central.StartService(ctx, name, nil, append([]string{filepath.Join(c.programs, name)}, flags...), ready)
}

func (c *Cluster) startControl(ctx context.Context) error {
	if err := c.StartEtcd(ctx); err != nil {
		return err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return err
	}
	if c.opts.Kubeadm {
		if err := c.publishInfo(ctx); err != nil {
			return fmt.Errorf("publish cluster-info: %w", err)
		}
	}
	if c.opts.APIOnly {
		return nil
	}
	if err := c.StartScheduler(ctx); err != nil {
		return err
	}
	return c.StartControllers(ctx)
}

// StartEtcd starts etcd with what it kept. It does not wait for the disk: what it tells
// the API server survives its own end, not the machine's.
func (c *Cluster) StartEtcd(ctx context.Context) (err error) {
	c.etcd, err = c.component(
		ctx, "etcd", nil, "--name=central", "--data-dir="+c.file("etcd"), "--unsafe-no-fsync",
		"--log-level=warn",
		"--listen-client-urls="+EtcdEndpoint, "--advertise-client-urls="+EtcdEndpoint,
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=central=http://127.0.0.1:2380")
	return err
}

// StopEtcd ends etcd with sig.
func (c *Cluster) StopEtcd(sig syscall.Signal) error { return c.etcd.Stop(sig, stopLimit) }

// StartAPIServer starts kube-apiserver and returns when it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) (err error) {
	// What it tells of itself must be of the services' first family.
	bind, advertise := Nodes.Addr(), Nodes.Addr()
	if c.opts.Families == IPv6 {
		bind, advertise = netip.IPv6Unspecified(), Nodes6.Addr()
	}
	flags := []string{
		"--etcd-servers=" + EtcdEndpoint, "--bind-address=" + bind.String(), "--advertise-address=" + advertise.String(),
		"--secure-port=" + strconv.Itoa(Port),
		"--service-cluster-ip-range=" + c.opts.Families.of(ServiceRange, ServiceRange6),
		"--tls-cert-file=" + c.file("apiserver.crt"),
		"--tls-private-key-file=" + c.file("apiserver.key"), "--client-ca-file=" + c.file("ca.crt"),
		"--kubelet-client-certificate=" + c.file("kubelets.crt"), "--kubelet-client-key=" + c.file("kubelets.key"),
		"--kubelet-certificate-authority=" + c.file("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-key-file=" + c.file("accounts.key"),
		"--service-account-signing-key-file=" + c.file("accounts.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true", "--profiling=false",
		"--shutdown-watch-termination-grace-period=1s", // else who watches holds up its end for a minute
	}
	if c.opts.Egress {
		if c.egress == nil {
			if c.egress, err = newEgress(c.file("egress"), c.dialNode); err != nil {
				return err
			}
		}
		flags = append(flags, c.egress.flag)
	}
	c.api, err = c.component(ctx, "kube-apiserver", func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil
	}, append(flags, c.opts.APIFlags...)...)
	return err
}

// StopAPIServer ends kube-apiserver with sig.
func (c *Cluster) StopAPIServer(sig syscall.Signal) error { return c.api.Stop(sig, stopLimit) }

// ControlPids are the processes of etcd and the API server, by name.
func (c *Cluster) ControlPids() map[string]int {
	return map[string]int{"etcd": c.etcd.Pid(), "kube-apiserver": c.api.Pid()}
}

// FreezeAPIServer has kube-apiserver take connections and answer nothing, until ThawAPIServer.
func (c *Cluster) FreezeAPIServer() error { return unix.Kill(c.api.Pid(), unix.SIGSTOP) }

// ThawAPIServer ends FreezeAPIServer.
func (c *Cluster) ThawAPIServer() error { return unix.Kill(c.api.Pid(), unix.SIGCONT) }

// StartControllers starts kube-controller-manager, which takes a silent node for lost after some seconds.
func (c *Cluster) StartControllers(ctx context.Context) (err error) {
	kubeconfig := c.file(controllerManager)
	c.controllers, err = c.component(
		ctx, controllerManager, nil, "--kubeconfig="+kubeconfig,
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--authentication-tolerate-lookup-failure=true",
		"--service-account-private-key-file="+c.file("accounts.key"),
		"--root-ca-file="+c.file("ca.crt"),
		"--use-service-account-credentials=true", "--leader-elect=false",
		"--node-monitor-period=2s", "--node-monitor-grace-period=16s", "--secure-port=0")
	return err
}

// StopControllers ends kube-controller-manager with sig.
func (c *Cluster) StopControllers(sig syscall.Signal) error {
	return c.controllers.Stop(sig, stopLimit)
}

// StartScheduler starts kube-scheduler.
func (c *Cluster) StartScheduler(ctx context.Context) (err error) {
	kubeconfig := c.file(scheduler)
	c.scheduler, err = c.component(
		ctx, scheduler, nil, "--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig,
		"--authorization-kubeconfig="+kubeconfig,
		"--authentication-tolerate-lookup-failure=true", "--leader-elect=false", "--secure-port=0")
	return err
}

// NewFront listens on the central host and passes all on to the API server, until Close:
// for who is to find it slow, or gone. A kubeconfig leads to it by Kubeconfig.
func (c *Cluster) NewFront(ctx context.Context) (*Front, error) {
	listener, err := c.Central.Listen(ctx, "tcp", netip.AddrPortFrom(Nodes.Addr(), 0).String())
	if err != nil {
		return nil, fmt.Errorf("listen before the API server: %w", err)
	}
	return newFront(listener, c.dial), nil
}
