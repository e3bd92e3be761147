package neutronlab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// Options say what a lab has. The zero value is Neutron without authentication, and no host.
type Options struct {
	Hosts    int    // compute hosts, named h1, h2, …
	Docker   bool   // they run a Docker engine, with the image "busybox"
	Kuryr    string // path of kuryr, for Host.StartKuryr
	Keystone bool   // Neutron asks Keystone who is calling
	Octavia  bool   // there can be load balancers, by OVN's provider; without Keystone, StartOctavia starts them
	Amphora  bool   // Octavia has the provider amphora, too; there are no machines, so its load balancers carry nothing
	Least    bool   // Neutron has routers, but no trunks, QoS policies and port forwardings

	// Agents are the layer 2 agents of the hosts, one for each: Hosts then counts for nothing, and
	// there is no OVN. nil is OVN on every host.
	Agents []Agent
}

// identities tells whether the lab has the database of a Keystone: Octavia asks one who is calling,
// also where Neutron does not.
func (o Options) identities() bool { return o.Keystone || o.Octavia }

// Lab is a running lab. The methods of its parts may be called from any goroutine, but those that start and stop
// something from one at a time.
type Lab struct {
	Central *privatehost.Host
	Hosts   []*Host

	opts      Options
	database  *privatehost.Service
	neutron   *privatehost.Service
	messages  *privatehost.Service // RabbitMQ, for agents
	keystone  *privatehost.Service
	ovn       ovnCentral
	identity  Identity
	tokenLife time.Duration // of Keystone's tokens
	admin     struct {
		sync.Mutex
		token string
		given time.Time // zero: there is none
	}

	mu    sync.Mutex
	added int // hosts, by AddHost
}

// New starts a lab. Close must be called also when ctx has ended.
func New(ctx context.Context, opts Options) (*Lab, error) {
	l := &Lab{opts: opts}
	if err := l.start(ctx); err != nil {
		err = fmt.Errorf("%w\n%s", err, l.Logs(30))
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context) error {
	var err error
	if l.Central, err = privatehost.New(ctx, privatehost.Options{Hostname: "central", Booted: central}); err != nil {
		return fmt.Errorf("start the central host: %w", err)
	}
	if len(l.opts.Agents) > 0 {
		return l.startWithAgents(ctx)
	}
	l.Hosts = make([]*Host, l.opts.Hosts)
	databases := make(chan struct{}) // closed when OVN's databases answer or never will
	jobs := []func() error{
		func() error {
			defer close(databases)
			return l.StartOVN(ctx)
		},
		func() error {
			if err := l.startDatabase(ctx); err != nil {
				return err
			}
			keystone := func() error { return nil }
			if l.opts.identities() {
				if err := l.readIdentity(); err != nil {
					return err
				}
			}
			if l.opts.Keystone {
				keystone = func() error { return l.StartKeystone(ctx) }
			}
			<-databases
			err := together(keystone, func() error { return l.StartNeutron(ctx) })
			if err == nil && l.opts.Keystone && l.opts.Octavia {
				err = l.StartOctavia(ctx)
			}
			return err
		},
	}
	for i := range l.Hosts {
		jobs = append(jobs, func() (err error) {
			l.Hosts[i], err = newHost(ctx, l, i+1)
			return err
		})
	}
	if err := together(jobs...); err != nil {
		return err
	}
	if err := l.waitDropGroup(ctx); err != nil {
		return err
	}
	for _, h := range l.Hosts {
		if err := l.waitChassis(ctx, h); err != nil {
			return err
		}
		if err := l.carryGateways(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// central lays the central host's side of the cables. Each bridge has a MAC of its own:
// else it would take that of another cable when a host goes, and the routers' gateways,
// which have learnt it, would send to nobody.
func central(ctx context.Context, h *privatehost.Host) error {
	for _, b := range []struct{ name, mac, address string }{
		{"mgmt", "0e:00:00:00:00:01", Management.String()},
		{"underlay", "0e:00:00:00:00:02", Underlay.String()},
		{"external", "0e:00:00:00:00:03", External.String()},
	} {
		err := run(
			ctx, h, []string{"ip", "link", "add", b.name, "address", b.mac, "up", "type", "bridge"},
			[]string{"ip", "addr", "add", b.address, "dev", b.name},
		)
		if err != nil {
			return err
		}
	}
	// What the central host sends to a switch in user space must have its checksum: nothing else would fill it in.
	if err := run(ctx, h, []string{"ethtool", "-K", "external", "tx", "off"}); err != nil {
		return err
	}
	return os.MkdirAll(h.Path("/run/ovn"), 0o755)
}

// Close ends the lab and removes all of it.
func (l *Lab) Close() {
	var wait sync.WaitGroup
	for _, h := range l.Hosts {
		if h != nil {
			wait.Go(h.Close)
		}
	}
	wait.Wait()
	if l.Central != nil {
		l.Central.Close()
	}
}

// Logs returns the last lines of each log of each host.
func (l *Lab) Logs(lines int) string {
	text := ""
	for _, h := range l.all() {
		text += "=== " + h.Hostname() + "\n" + h.Logs(lines)
	}
	return text
}

// KeepLogs copies the whole logs into the folder that the environment variable KURYR_E2E_LOGS names, if it does.
func (l *Lab) KeepLogs() {
	for _, h := range l.all() {
		h.KeepLogs(os.Getenv("KURYR_E2E_LOGS"))
	}
}

// all are the hosts there are so far.
func (l *Lab) all() (hosts []*privatehost.Host) {
	if l.Central != nil {
		hosts = append(hosts, l.Central)
	}
	for _, h := range l.Hosts {
		if h != nil {
			hosts = append(hosts, h.Host)
		}
	}
	return hosts
}

// Start is New for a test: the lab ends with the test, and where the test failed the ends of its logs are shown. The
// environment variable KURYR_E2E_LOGS names a folder that keeps the whole logs.
func Start(t privatehost.TB, opts Options) *Lab {
	t.Helper()
	// Octavia's first start migrates, perhaps while two processors have much else to do
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	l, err := New(ctx, opts)
	if err != nil {
		t.Fatalf("start a Neutron lab: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", l.Logs(40))
			l.KeepLogs()
		}
		l.Close()
	})
	return l
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
