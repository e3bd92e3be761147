//go:build linux && failpoints

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
	"github.com/vishvananda/netlink"
	vishnetns "github.com/vishvananda/netns"
)

// victim is what a process of its own does until it is killed.
type victim struct {
	Store string
	Pins  string // folder of the namespaces; "" is a migration of the store alone
	// Upgrade is to open the store with this program, which migrates an older one.
	Upgrade bool
	// Filter is to filter ports, with a data path that only adds up what it is told, for kernels that cannot filter.
	Filter bool
}

const victimEnv = "KURYR_LOCAL_VICTIM"

func init() {
	text := os.Getenv(victimEnv)
	if text == "" {
		return
	}
	var v victim
	err := json.Unmarshal([]byte(text), &v)
	switch {
	case err != nil:
	case v.Filter:
		err = v.filter()
	case v.Upgrade:
		_, err = Open(context.Background(), Options{Path: v.Store})
	case v.Pins == "":
		err = migrateToNext(v.Store, func() {})
	default:
		err = v.live()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// kill has a process of its own do v, and wants it to be killed at the failpoint.
func (v victim) kill(at string) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), victimEnv+"="+string(text), "KURYR_FAILPOINT="+at)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		return fmt.Errorf("not killed at %s: %w: %s", at, err, out)
	}
	return nil
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// migrateToNext brings a store of the current schema to that of a later program, in two steps.
func migrateToNext(path string, step func()) error {
	from := currentSchema.version
	mark := func(name string) func(engine.Tx) error {
		return func(b engine.Tx) error {
			step()
			return b.Put(engine.MetaTable, []byte(name), []byte("x"))
		}
	}
	next := schema{
		version: from + 2, steps: map[int]func(engine.Tx) error{from: mark("one"), from + 1: mark("two")},
	}
	db, err := openStore(context.Background(), path, next, "", false)
	if err != nil {
		return err
	}
	return db.Close()
}

// TestMigrationKilled checks that a store whose migration was killed is of the older program as a
// whole, or of the newer one, whose next start finishes it.
func TestMigrationKilled(t *testing.T) {
	for at, migrated := range map[string]bool{
		"local.migrate.copied": false, "local.migrate.step:1": false, "local.migrate.step:2": false,
		"local.migrate.done": true,
	} {
		t.Run(strings.ReplaceAll(at, ":", " "), func(t *testing.T) {
			path := filled(t)
			fatal(t, victim{Store: path}.kill(at))
			old := []string{fmt.Sprintf("%s.v%d.bak", path, currentSchema.version)}
			want := 0
			if !migrated {
				old, want = append(old, path), 2
			}
			for _, file := range old {
				p := open(t, Options{Path: file})
				ports, err := sdn.All(p.FindPorts(t.Context(), sdn.PortQuery{Hosts: []string{testHost}}))
				if err != nil || len(ports) != 200 {
					t.Errorf("%s has %d ports, %v; want 200", filepath.Base(file), len(ports), err)
				}
				fatal(t, p.view(func(b engine.Tx) error {
					if b.Get(engine.MetaTable, []byte("one")) != nil {
						t.Errorf("%s has the first step", filepath.Base(file))
					}
					return nil
				}))
				fatal(t, p.Close())
			}
			steps := 0
			fatal(t, migrateToNext(path, func() { steps++ }))
			if steps != want {
				t.Errorf("%d steps ran after the kill, want %d", steps, want)
			}
			if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".kuryr-*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			_, err := Open(t.Context(), Options{Path: path})
			if err == nil || !strings.Contains(err.Error(), "newer kuryr") {
				t.Errorf("the migrated store opens with %v, want it to be too new", err)
			}
		})
	}
}

// TestUpgradeOfFaf2083Killed checks that a store of a released program is of its schema or of the
// current one after a kill at any point of the upgrade, and that the next start finishes it.
func TestUpgradeOfFaf2083Killed(t *testing.T) {
	for at, version := range map[string]int{
		"local.migrate.copied": faf2083Schema, "local.migrate.step": faf2083Schema,
		"local.migrate.done": currentSchema.version,
	} {
		t.Run(at, func(t *testing.T) {
			path := storeOfFaf2083(t)
			fatal(t, victim{Store: path, Upgrade: true}.kill(at))
			db, err := openBolt(path, boltOptions(true))
			fatal(t, err)
			have, err := currentSchema.check(db)
			if err != nil || have != version {
				t.Errorf("the schema is %d, %v; want %d", have, err, version)
			}
			fatal(t, db.Close())
			checkFaf2083(t, path)
		})
	}
}

func (v victim) open(ctx context.Context) (*Provider, *router.Kernel, error) {
	pins, err := netns.Open(v.Pins)
	if err != nil {
		return nil, nil, err
	}
	var f *router.Kernel
	log := slog.New(slog.DiscardHandler)
	p, err := Open(ctx, Options{Path: v.Store, Host: testHost, Logger: log, NewDatapath: func(uplink4, uplink6 netip.Prefix) (_ Datapath, err error) {
		f, err = router.New(router.Options{Namespaces: pins, Uplink4: uplink4, Uplink6: uplink6, Logger: log})
		return f, err
	}})
	return p, f, err
}

func (v victim) live() error {
	ctx := context.Background()
	p, f, err := v.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(v.tell(ctx, p), p.Close(), f.Close())
}

// tell is what no front end asks for in this order: a network with a plugged port is put on a router, its port gets a floating
// address and loses it, twice, and the network leaves the router again; at the end all goes. It can be told anew after any kill.
func (v victim) tell(ctx context.Context, p *Provider) error {
	key := func(kind, name string) sdn.Base {
		return sdn.Base{Key: sdn.Key{Owner: p.Installation(), Kind: kind, Name: name}}
	}
	subnet := sdn.SubnetSpec{Base: key("subnet", "s"), CIDR: netip.MustParsePrefix("10.77.0.0/24")}
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: key("network", "n"), Subnets: []sdn.SubnetSpec{subnet}})
	if err != nil {
		return err
	}
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Base: key("port", "p"), Network: n.ID, Host: testHost}})
	if err != nil {
		return err
	}
	port := ports[0]
	if err := plug(port); err != nil {
		return fmt.Errorf("plug: %w", err)
	}
	group, err := v.guard(ctx, p, port.ID, key("group", "g"))
	if err != nil {
		return err
	}
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Base: key("router", "r"), Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork, SNAT: true}})
	if err != nil {
		return err
	}
	if err := p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}); err != nil {
		return err
	}
	if err := v.publish(ctx, p, port.ID, key("publication", "p").Key); err != nil {
		return err
	}
	for range 2 {
		fip, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: key("floatingip", "f"), Network: p.Capabilities().ExternalNetwork, Target: sdn.Target{Port: port.ID}})
		if err != nil {
			return err
		}
		if err := p.DeleteFloatingIP(ctx, fip.ID); err != nil {
			return err
		}
	}
	balancer, err := v.balance(ctx, p, n, key)
	if err != nil {
		return err
	}
	if err := p.DetachSubnet(ctx, r.ID, n.Subnets[0]); err != nil {
		return err
	}
	return errors.Join(p.DeleteLoadBalancer(ctx, balancer), p.DeleteRouter(ctx, r.ID), p.DeletePorts(ctx, []sdn.ID{port.ID}), p.DeleteNetwork(ctx, n.ID), group())
}

// publish publishes many ports, then others of them at another address of the host, and
// withdraws them.
func (v victim) publish(ctx context.Context, p *Provider, port sdn.ID, key sdn.Key) error {
	for _, host := range []string{"0.0.0.0", "127.0.0.1"} {
		spec := sdn.PublicationSpec{Key: key}
		for external := range uint16(50) {
			spec.Ports = append(spec.Ports, sdn.PublishedPort{Host: netip.MustParseAddr(host), Forward: sdn.Forward{
				Protocol: sdn.UDP, External: sdn.PortRange{First: 1000 + 2*external}, Target: sdn.Target{Port: port},
				Internal: sdn.PortRange{First: 53},
			}})
		}
		if _, err := p.Publish(ctx, spec); err != nil {
			return err
		}
	}
	return p.Unpublish(ctx, key)
}

// balance makes a load balancer, changes it, and has a floating IP lead to it for a while.
func (v victim) balance(ctx context.Context, p *Provider, n sdn.Network, key func(kind, name string) sdn.Base) (sdn.ID, error) {
	spec := sdn.LoadBalancerSpec{Base: key("loadbalancer", "l"), VIPs: []sdn.VIP{{Subnet: n.Subnets[0]}}}
	var balancer sdn.LoadBalancer
	for _, member := range []string{"10.77.0.200:80", "10.77.0.201:80"} {
		spec.Listeners = []sdn.Listener{{Protocol: sdn.UDP, Port: 53, Pool: sdn.Pool{Members: []sdn.Member{{Addr: netip.MustParseAddrPort(member)}}}}}
		var err error
		if balancer, err = p.ApplyLoadBalancer(ctx, spec); err != nil {
			return "", err
		}
	}
	fip, err := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: key("floatingip", "v"), Network: p.Capabilities().ExternalNetwork, Target: sdn.Target{Port: balancer.VIPs[0].Port}})
	if err != nil {
		return "", err
	}
	return balancer.ID, p.DeleteFloatingIP(ctx, fip.ID)
}

// guard gives a port a security group and changes its rules, where the kernel can filter; the function it returns takes the group away.
func (v victim) guard(ctx context.Context, p *Provider, port sdn.ID, base sdn.Base) (drop func() error, err error) {
	if !p.Capabilities().SecurityGroups {
		return func() error { return nil }, nil
	}
	spec := sdn.SecurityGroupSpec{Base: base, Rules: []sdn.Rule{{Direction: sdn.Egress}}}
	g, err := p.ApplySecurityGroup(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := p.AddGroups(ctx, port, []sdn.ID{g.ID}); err != nil {
		return nil, err
	}
	spec.Rules = append(spec.Rules, sdn.Rule{Direction: sdn.Ingress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: 80}}, sdn.Rule{Direction: sdn.Ingress, RemoteGroup: g.ID})
	if _, err := p.ApplySecurityGroup(ctx, spec); err != nil {
		return nil, err
	}
	return func() error { return p.DeleteSecurityGroup(ctx, g.ID) }, nil
}

// filter is the life of a port with a security group on a network that moves. It can be told anew after any kill.
func (v victim) filter() error {
	ctx := context.Background()
	p, err := Open(ctx, Options{Path: v.Store, Host: testHost, Datapath: newFake()})
	if err != nil {
		return err
	}
	if _, err := p.Reconcile(ctx); err != nil {
		return err
	}
	return errors.Join(v.tellFilter(ctx, p), p.Close())
}

func (v victim) tellFilter(ctx context.Context, p *Provider) error {
	key := func(kind, name string) sdn.Base {
		return sdn.Base{Key: sdn.Key{Owner: p.Installation(), Kind: kind, Name: name}}
	}
	subnet := sdn.SubnetSpec{Base: key("subnet", "s"), CIDR: netip.MustParsePrefix("10.77.0.0/24")}
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: key("network", "n"), Subnets: []sdn.SubnetSpec{subnet}})
	if err != nil {
		return err
	}
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Base: key("port", "p"), Network: n.ID, Host: testHost}})
	if err != nil {
		return err
	}
	drop, err := v.guard(ctx, p, ports[0].ID, key("group", "g"))
	if err != nil {
		return err
	}
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{Base: key("router", "r")})
	if err != nil {
		return err
	}
	if err := p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}); err != nil {
		return err
	}
	if err := p.DetachSubnet(ctx, r.ID, n.Subnets[0]); err != nil {
		return err
	}
	return errors.Join(p.DeleteRouter(ctx, r.ID), p.DeletePorts(ctx, []sdn.ID{ports[0].ID}), drop(), p.DeleteNetwork(ctx, n.ID))
}

// TestKilledWhileGroupsAreTold kills a process right after a domain was told of groups, and before it was told of the ports that have them: the
// next start tells both, and all can be done anew up to the end.
func TestKilledWhileGroupsAreTold(t *testing.T) {
	for _, at := range []string{"router.groups.told:1", "router.groups.told:2", "router.groups.told:3", "router.groups.told:4"} {
		t.Run(strings.ReplaceAll(at, ":", " "), func(t *testing.T) {
			v := victim{Store: filepath.Join(t.TempDir(), "sdn.db"), Filter: true}
			fatal(t, v.kill(at))
			fake := newFake()
			p := open(t, Options{Path: v.Store, Datapath: fake})
			_, err := p.Reconcile(t.Context())
			fatal(t, err)
			checkSum(t, p)
			told := 0
			for _, d := range fake.state {
				told += len(d.groups)
			}
			if told != 1 {
				t.Errorf("after the kill %d domains know of the group, want one", told)
			}
			fatal(t, v.tellFilter(t.Context(), p))
			checkSum(t, p)
			if len(fake.state) != 0 {
				t.Errorf("at the end there are %v", fake.state)
			}
		})
	}
}

// plug makes a port's link where its VIF says, unless it is there. Its other end stays here, as a container's is in no domain either.
func plug(port sdn.Port) error {
	here, err := vishnetns.Get()
	if err != nil {
		return err
	}
	defer here.Close()
	return atBridge(port, func(bridge netlink.Link) error {
		name := router.TapName(string(port.ID))
		if _, err := netlink.LinkByName(name); err == nil {
			return nil
		}
		tap := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Attrs().Index}, PeerName: "other", PeerNamespace: netlink.NsFd(int(here))}
		if err := netlink.LinkAdd(tap); err != nil {
			return err
		}
		return netlink.LinkSetUp(tap)
	})
}

func atBridge(port sdn.Port, do func(bridge netlink.Link) error) error {
	ns, err := vishnetns.GetFromPath(port.VIF.Details[sdn.DetailNamespace])
	if err != nil {
		return err
	}
	defer ns.Close()
	return netns.Do(ns, func() error {
		bridge, err := netlink.LinkByName(port.VIF.Details[sdn.DetailBridge])
		if err != nil {
			return err
		}
		return do(bridge)
	})
}

// plugged wants each port's link below the bridge that its VIF names, wherever the kill left its network. A port that was stored when
// the process died may not have one yet.
func plugged(t *testing.T, ports []sdn.Port, from string) {
	t.Helper()
	for _, port := range ports {
		fatal(t, atBridge(port, func(bridge netlink.Link) error {
			tap, err := netlink.LinkByName(router.TapName(string(port.ID)))
			if err != nil {
				return fmt.Errorf("after a kill at %s: link of the port: %w", from, err)
			}
			if tap.Attrs().MasterIndex != bridge.Attrs().Index || tap.Attrs().Flags&net.FlagUp == 0 {
				return fmt.Errorf("after a kill at %s the link is %+v, want it up and below %s", from, tap.Attrs(), bridge.Attrs().Name)
			}
			return nil
		}))
	}
}

// TestKilledWhileNetworkMoves kills a process on the way of a network to a router and back; then one Reconcile makes the kernel be what the
// store says, the ports' links are where their networks are, and all can be done anew up to the end.
func TestKilledWhileNetworkMoves(t *testing.T) {
	points := []string{
		"router.migrate.guarded:1", "router.migrate.moved:1", "router.migrate.unguarded:1", // to the router
		"router.migrate.guarded:2", "router.migrate.moved:2", "router.migrate.unguarded:2", // and back
		"router.floating.unannounced:1", "router.floating.unannounced:2",
		"local.sync.shape:1", "local.sync.shape:2", "local.sync.shape:3", "local.sync.shape:4", "local.sync.shape:5",
		"local.sync.parts:1", "local.sync.parts:2", "local.sync.parts:3", "local.sync.parts:4", "local.sync.parts:5",
		"local.sync.parts:6", "router.groups.told:1", "router.groups.told:2", "router.groups.told:3", "router.groups.told:4",
		"router.forwards.host:1", "router.forwards.host:2", "router.forwards.host:3", "router.tables.changed:1",
		"router.tables.changed:2", "router.tables.changed:3", "router.tables.changed:4", "local.sync.gone:1",
		"local.sync.gone:2", "engine.commit.after:4", "engine.commit.after:5", "engine.commit.after:9", "router.vips.added:1",
		"router.frontends.told:1", "router.frontends.told:3", "router.frontends.bridges:1", "lb.restore.told:1",
		"lb.apply.told:2",
	}
	for _, at := range points {
		t.Run(strings.ReplaceAll(at, ":", " "), func(t *testing.T) {
			host := nstest.New(t)
			pins, err := os.MkdirTemp("/run", "crash-")
			fatal(t, err)
			if strings.HasPrefix(at, "router.groups") && !canFilter(t) {
				t.Skip("this kernel cannot filter for security groups: TestKilledWhileGroupsAreTold does it without")
			}
			v := victim{Store: filepath.Join(t.TempDir(), "sdn.db"), Pins: pins}
			var p *Provider
			var f *router.Kernel
			nstest.Do(t, host, func() {
				if err = v.kill(at); err == nil {
					p, f, err = v.open(t.Context())
				}
			})
			fatal(t, err)
			_, err = p.Reconcile(t.Context())
			fatal(t, err)
			checkSum(t, p)
			ports, err := sdn.All(p.FindPorts(t.Context(), sdn.PortQuery{Hosts: []string{testHost}}))
			fatal(t, err)
			beforeLink := []string{"local.sync.shape:1", "local.sync.parts:1", "router.tables.changed:1"}
			if !slices.Contains(beforeLink, at) {
				plugged(t, ports, at)
			}
			nstest.Do(t, host, func() { err = v.tell(t.Context(), p) })
			fatal(t, err)
			checkSum(t, p)
			fatal(t, f.Down(t.Context()))
			fatal(t, errors.Join(p.Close(), f.Close()))
			nstest.Do(t, host, func() { err = onlyDevices() })
			fatal(t, err)
		})
	}
}

func canFilter(t *testing.T) bool {
	t.Helper()
	pins, err := os.MkdirTemp("/run", "crash-")
	fatal(t, err)
	p, f, err := victim{Store: filepath.Join(t.TempDir(), "sdn.db"), Pins: pins}.open(t.Context())
	fatal(t, err)
	can := f.Supports().Groups
	fatal(t, errors.Join(p.Close(), f.Close()))
	return can
}

// onlyDevices waits until the kernel has taken away what was in the namespaces that went, and says what stays.
func onlyDevices() error {
	var left []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		left = nil
		for _, l := range links {
			if l.Type() != "device" {
				left = append(left, l.Type()+" "+l.Attrs().Name)
			}
		}
		if left == nil {
			return nil
		}
	}
	return fmt.Errorf("left in the host: %v", left)
}
