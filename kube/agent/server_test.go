//go:build linux

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

// binder remembers what is plugged.
type binder struct {
	mu      sync.Mutex
	plugged map[sdn.ID]bind.Interface
	refuse  error // of Plug
	unwired error // of Plug, when it has plugged
	busy    int   // calls of Plug at once
	most    int
	kept    []netip.Prefix // of Plug
}

func (b *binder) Plug(_ context.Context, i bind.Interface) (bind.Result, error) {
	b.mu.Lock()
	b.busy++
	b.most = max(b.most, b.busy)
	b.mu.Unlock()
	defer func() { b.mu.Lock(); b.busy--; b.mu.Unlock() }()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != nil {
		return bind.Result{}, b.refuse
	}
	b.plugged[i.Port.ID] = i
	return bind.Result{Name: i.Name, MAC: i.Port.MAC, KeptRoutes: b.kept}, b.unwired
}

func (b *binder) Unplug(_ context.Context, port sdn.Port) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.plugged, port.ID)
	return nil
}

func (b *binder) State(_ context.Context, port sdn.Port) (bind.State, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, there := b.plugged[port.ID]; !there {
		return bind.Absent, nil
	}
	return bind.Whole, nil
}

// away is an SDN that can be away.
type away struct {
	sdn.Provider
	mu   sync.Mutex
	gone bool
}

func (a *away) is(gone bool) { a.mu.Lock(); a.gone = gone; a.mu.Unlock() }

func (a *away) err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return sdn.Unavailable(errors.New("connection refused"), "SDN", "does not answer")
	}
	return nil
}

func (a *away) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	if err := a.err(); err != nil {
		return func(yield func(sdn.Port, error) bool) { yield(sdn.Port{}, err) }
	}
	return a.Provider.FindPorts(ctx, q)
}

// rig is a Server on the embedded SDN's store, with the network blue.
type rig struct {
	*Server
	sdn    *away
	binder *binder
	state  string
	netns  string
	store  *reconcile.Store
	full   atomic.Bool // there is no room for new rows
	t      *testing.T
}

func newRig(t *testing.T) *rig {
	t.Helper()
	p, err := local.Open(t.Context(), local.Options{Path: filepath.Join(t.TempDir(), "kuryr.db"), Host: "here", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	_, err = p.EnsureNetwork(t.Context(), sdn.NetworkSpec{
		Base: sdn.Base{Key: sdn.Key{Owner: p.Installation(), Kind: "test", Name: "blue"}, Name: "blue"}, MTU: 1400,
		Subnets: []sdn.SubnetSpec{{Base: sdn.Base{Key: sdn.Key{Owner: p.Installation(), Kind: "test", Name: "blue"}}, CIDR: netip.MustParsePrefix("10.1.0.0/29")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, sdn: &away{Provider: p}, binder: &binder{plugged: map[sdn.ID]bind.Interface{}}, state: t.TempDir(), netns: filepath.Join(t.TempDir(), "ns")}
	if err := os.WriteFile(r.netns, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.again()
	return r
}

// again is the daemon started again.
func (r *rig) again() {
	r.t.Helper()
	r.serves(NewNetwork(NetworkConfig{Provider: r.sdn, Host: "here", Logger: slog.New(slog.DiscardHandler)}))
}

// serves starts the daemon with a Source. Nothing but calls is done yet.
func (r *rig) serves(source Source) {
	r.t.Helper()
	if r.store != nil {
		r.close()
	} else {
		r.t.Cleanup(r.close)
	}
	var err error
	log := slog.New(slog.DiscardHandler)
	r.store, err = reconcile.Open(reconcile.Config{
		Path: filepath.Join(r.state, "agent.db"), Volatile: true, MinBackoff: time.Millisecond,
		MaxBackoff: 10 * time.Millisecond, Logger: log,
		Room: func() error {
			if r.full.Load() {
				return unix.ENOSPC
			}
			return nil
		},
	})
	if err == nil {
		r.Server, err = New(Config{Source: source, Binder: r.binder, Store: r.store, State: r.state, Logger: log})
	}
	if err == nil {
		err = r.store.Start(r.t.Context())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) close() {
	if err := r.store.Close(); err != nil {
		r.t.Error(err)
	}
}

// reboot takes the table and the interfaces away.
func (r *rig) reboot() {
	r.t.Helper()
	r.close()
	r.store = nil
	clear(r.binder.plugged)
	if err := os.Remove(filepath.Join(r.state, "agent.db")); err != nil {
		r.t.Fatal(err)
	}
	r.again()
}

// run has the daemon do what an earlier one left.
func (r *rig) run() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.store.Run(ctx) })
	r.recover(ctx)
	for end := time.Now().Add(time.Minute); r.deleting() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Error("not all is deleted")
			break
		}
	}
	cancel()
	running.Wait()
}

// deleting counts the rows that are being deleted.
func (r *rig) deleting() (n int) {
	for row := range r.Rows() {
		if row.Phase == reconcile.Deleting {
			n++
		}
	}
	return n
}

func (r *rig) call(verb, container, more string) cni.Call {
	if more != "" {
		more = ", " + more
	}
	return cni.Call{
		Verb: verb, Container: container, Namespace: r.netns, Interface: "eth0",
		Config: fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "blue", "type": "kuryr"%s}`, more),
	}
}

func (r *rig) add(t *testing.T, container, more string) (*types100.Result, error) {
	t.Helper()
	out, err := r.Do(t.Context(), r.call(cni.Add, container, more))
	if err != nil {
		return nil, err
	}
	var result types100.Result
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatal(err)
	}
	return &result, nil
}

func (r *rig) mustAdd(t *testing.T, container, more string) *types100.Result {
	t.Helper()
	result, err := r.add(t, container, more)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func (r *rig) must(t *testing.T, verb, container, more string) {
	t.Helper()
	if _, err := r.Do(t.Context(), r.call(verb, container, more)); err != nil {
		t.Fatal(err)
	}
}

// has wants so many attachments, in the SDN and plugged.
func (r *rig) has(t *testing.T, want int) {
	t.Helper()
	all, err := r.source.(Lister).Attachments(t.Context())
	if err != nil || len(all) != want || len(r.binder.plugged) != want {
		t.Errorf("%d attachments and %d interfaces, want %d (%v)", len(all), len(r.binder.plugged), want, err)
	}
	owed, err := jsonstore.Load[cni.Call](r.pending)
	if n := r.deleting(); err != nil || len(owed) != 0 || n != 0 {
		t.Errorf("%d rows are being deleted, left are %v (%v)", n, owed, err)
	}
}

func wants(t *testing.T, err error, kind cni.Kind, names string) {
	t.Helper()
	if e := cni.AsError(err); e == nil || e.Code != kind.Code || !strings.Contains(e.Details, names) {
		t.Errorf("%v, want %s naming %q", err, kind.Name, names)
	}
}

func TestAddTwiceAndDelTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.must(t, cni.Del, "a", "")
	first := r.mustAdd(t, "a", "")
	r.again()
	second := r.mustAdd(t, "a", "")
	if first.IPs[0].Address.String() != second.IPs[0].Address.String() || first.Interfaces[0].Mac != second.Interfaces[0].Mac || first.Interfaces[0].Mtu != 1400 {
		t.Errorf("two ADDs of one container: %+v and %+v", first.Interfaces[0], second.Interfaces[0])
	}
	r.has(t, 1)
	r.must(t, cni.Del, "a", "")
	r.must(t, cni.Del, "a", "")
	r.has(t, 0)
}

// A result does not list a default route that another interface of the container kept.
func TestResultOfSecondNetwork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if routes := r.mustAdd(t, "a", "").Routes; len(routes) != 1 || routes[0].Dst.String() != "0.0.0.0/0" {
		t.Errorf("the first network's routes are %v", routes)
	}
	r.binder.kept = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	if routes := r.mustAdd(t, "b", "").Routes; len(routes) != 0 {
		t.Errorf("the second network's routes are %v", routes)
	}
}

// Many ADDs of one container are one; ADDs of different containers do not wait for one another.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := r.add(t, "a", ""); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	r.has(t, 1)
	if r.binder.most != 1 {
		t.Errorf("%d ADDs of one interface plugged at once", r.binder.most)
	}
}

// What fails is taken back whole, and however often it fails, who comes next is served: nobody counts.
func TestFailedAdd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.binder.refuse = &sdn.Error{Kind: sdn.KindConflict, Reason: sdn.Exists, Noun: "interface", ID: "eth0", Field: "name", Detail: "the name is taken"}
	var err error
	for range 20 {
		_, err = r.add(t, "a", "")
	}
	wants(t, err, cni.Conflict, "eth0")
	r.binder.refuse = sdn.NotFound("network namespace", r.netns)
	_, err = r.add(t, "a", `"runtimeConfig": {"bandwidth": {"ingressRate": 1000}}`)
	wants(t, err, cni.UnknownContainer, r.netns)
	r.binder.refuse, r.binder.unwired = nil, fmt.Errorf("not wired: %w", context.DeadlineExceeded)
	_, err = r.add(t, "a", "")
	wants(t, err, cni.TimedOut, "not wired")
	if len(r.binder.plugged) != 0 {
		t.Errorf("left plugged: %+v", r.binder.plugged)
	}
	r.binder.unwired = nil
	r.has(t, 0)
	policies, err := sdn.All(r.sdn.FindQoSPolicies(t.Context(), sdn.QoSPolicyQuery{}))
	if err != nil || len(policies) != 0 {
		t.Errorf("policies left: %+v, %v", policies, err)
	}
	r.must(t, cni.Status, "", "")
	r.mustAdd(t, "a", "")
}

// emptyPool is a Source whose every claim waits for a port that does not come.
type emptyPool struct {
	Source
	waits chan struct{}
}

func (p emptyPool) Allocate(ctx context.Context, _ Attachment) (*Allocation, error) {
	p.waits <- struct{}{}
	<-ctx.Done()
	return nil, sdn.Exhausted(sdn.NoPorts, "port", "pool")
}

// A DEL does not wait for the ADD that it overtakes, nor for another one behind that, and an ADD that comes after it is not its business.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	there, waits := r.source, make(chan struct{})
	r.source = emptyPool{there, waits}
	errs := make(chan error, 3)
	for _, container := range []string{"a", "b"} {
		go func() { _, err := r.Do(t.Context(), r.call(cni.Add, container, "")); errs <- err }()
		<-waits
	}
	r.must(t, cni.Del, "a", "")
	if err := <-errs; err == nil {
		t.Error("an ADD whose port never came succeeds")
	}
	select {
	case err := <-errs:
		t.Errorf("the ADD of another container ended too: %v", err)
	default:
	}
	r.must(t, cni.Del, "b", "")
	<-errs
	r.source = there
	r.mustAdd(t, "a", "")
	r.has(t, 1)
	if len(r.adds.adds) != 0 {
		t.Errorf("%d ADDs are still under way", len(r.adds.adds))
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.mustAdd(t, "a", `"runtimeConfig": {"ips": ["10.1.0.3/29"]}`)
	gone := r.call(cni.Add, "b", "")
	gone.Namespace = r.netns + ".gone"
	_, err := r.Do(t.Context(), gone)
	wants(t, err, cni.UnknownContainer, "CNI_NETNS")
	own := r.call(cni.Add, "b", "")
	own.Namespace = "/proc/self/ns/net"
	_, err = r.Do(t.Context(), own)
	wants(t, err, cni.BadNamespace, "CNI_NETNS")
	green := sdn.Base{Key: sdn.Key{Owner: r.sdn.Installation(), Kind: "test", Name: "green"}, Name: "green"}
	if _, err := r.sdn.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: green}); err != nil {
		t.Fatal(err)
	}
	_, err = r.add(t, "a", `"network": "green"`)
	wants(t, err, cni.Conflict, "network")
	r.has(t, 1)
	for more, row := range map[string]struct {
		kind  cni.Kind
		names string
	}{
		`"network": "red"`:                                                             {cni.NotFound, "red"},
		`"runtimeConfig": {"ips": ["10.1.0.3"]}`:                                       {cni.Conflict, "10.1.0.3"},
		`"runtimeConfig": {"ips": ["10.1.0.4/24"]}`:                                    {cni.BadConfig, "10.1.0.4/24"},
		`"runtimeConfig": {"ips": ["10.9.0.4"]}`:                                       {cni.BadConfig, "10.9.0.4"},
		`"runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 8080}]}`: {cni.NotFound, "no router with a gateway"},
	} {
		_, err := r.add(t, "b", more)
		wants(t, err, row.kind, row.names)
	}
	for _, container := range []string{"c", "d", "e", "f", "g"} { // a /29 has six addresses, of which one is the gateway's
		_, err = r.add(t, container, "")
		if err != nil {
			break
		}
	}
	wants(t, err, cni.Exhausted, "address")
	r.must(t, cni.Del, "a", "")
	r.mustAdd(t, "b", "") // the address is free at once
}

// A port that is named stays its owner's: nobody else gets it meanwhile, and it is given back as it was.
func TestNamedPort(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	network, _, err := sdn.First(r.sdn.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Names: []string{"blue"}}}))
	if err != nil {
		t.Fatal(err)
	}
	made, err := r.sdn.EnsurePorts(t.Context(), []sdn.PortSpec{{Base: sdn.Base{Name: "mine"}, Network: network.ID}})
	if err != nil {
		t.Fatal(err)
	}
	named := func(container, more string) cni.Call {
		c := r.call(cni.Add, container, "")
		c.Args = "PORT_UUID=" + string(made[0].ID) + more
		return c
	}
	_, err = r.Do(t.Context(), named("a", ";IPV4=10.1.0.6/29,PORT_TYPE=bridge"))
	wants(t, err, cni.Conflict, "10.1.0.6")
	if _, err := r.Do(t.Context(), named("a", ";IPV4="+made[0].Addresses[0].Addr.String()+"/29,PORT_TYPE=bridge")); err != nil {
		t.Fatal(err)
	}
	_, err = r.Do(t.Context(), named("b", ""))
	wants(t, err, cni.Conflict, "PORT_UUID")
	r.has(t, 1)
	r.must(t, cni.Del, "a", "")
	back, err := r.sdn.Port(t.Context(), made[0].ID)
	if err != nil || back.DeviceID != "" || back.DeviceOwner != "" || back.Host != "" || back.Name != "mine" {
		t.Errorf("given back as %+v, %v", back, err)
	}
}

// What the SDN does not know is bound as CNI_ARGS say, with a MAC that stays, and taken away again.
func TestGivenPort(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.call(cni.Add, "a", "")
	c.Args = "PORT_UUID=a28c7404-7495-4557-b7fc-3e293508dbc6,IPV4=10.0.0.15/16,GW=10.0.0.1,PORT_TYPE=midonet,MTU=1300"
	var macs []string
	for range 2 {
		out, err := r.Do(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		var result types100.Result
		if err := json.Unmarshal(out, &result); err != nil || result.IPs[0].Address.String() != "10.0.0.15/16" || result.IPs[0].Gateway.String() != "10.0.0.1" {
			t.Fatalf("%v\n%s", err, out)
		}
		macs = append(macs, result.Interfaces[len(result.Interfaces)-1].Mac)
	}
	i := r.binder.plugged["a28c7404-7495-4557-b7fc-3e293508dbc6"]
	if macs[0] != macs[1] || i.Port.VIF.Type != "midonet" || i.MTU != 1300 || i.Namespace != r.netns || i.Name != "eth0" {
		t.Errorf("%v, %+v", macs, i)
	}
	for field, config := range map[string]string{
		"runtimeConfig.ips": `"runtimeConfig": {"ips": ["10.0.0.15"]}`, "network": `"network": "blue"`,
	} {
		more := r.call(cni.Add, "b", config)
		more.Args = c.Args
		_, err := r.Do(t.Context(), more)
		wants(t, err, cni.UnsupportedField, field)
	}
	r.must(t, cni.GC, "", `"cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}]`)
	if len(r.binder.plugged) != 1 {
		t.Error("GC has taken what is valid")
	}
	r.must(t, cni.Del, "a", "")
	r.has(t, 0)
}

func TestCollect(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, container := range []string{"a", "b", "c"} {
		r.mustAdd(t, container, "")
	}
	other := r.call(cni.Add, "d", "")
	other.Config = []byte(`{"cniVersion": "1.1.0", "name": "other", "type": "kuryr", "network": "blue"}`)
	if _, err := r.Do(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	r.must(t, cni.GC, "", `"cni.dev/valid-attachments": [{"containerID": "b", "ifname": "eth0"}, {"containerID": "a", "ifname": "eth1"}]`)
	r.has(t, 2)
	r.must(t, cni.GC, "", `"cni.dev/valid-attachments": []`)
	r.has(t, 1) // another network's
}

// While the SDN is away DEL succeeds, ADD says so, and what is owed is paid when it is back, also by the next daemon.
func TestSDNAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.mustAdd(t, "a", "")
	r.mustAdd(t, "b", "")
	r.sdn.is(true)
	r.must(t, cni.Del, "a", "")
	_, err := r.add(t, "a", "")
	wants(t, err, cni.Unavailable, "SDN")
	r.sdn.is(false)
	r.again()
	r.run()
	r.has(t, 1)
}

// A daemon that starts gives back what has no interface, and leaves the rest, also after the
// table was lost.
func TestSweep(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*rig){"kept": (*rig).again, "lost": func(r *rig) {
		plugged := maps.Clone(r.binder.plugged)
		r.reboot()
		r.binder.plugged = plugged
	}} {
		r := newRig(t)
		r.mustAdd(t, "a", "")
		r.mustAdd(t, "b", "")
		for id, i := range r.binder.plugged {
			if i.Port.Name == "a" {
				delete(r.binder.plugged, id)
			}
		}
		lose(r)
		r.run()
		r.has(t, 1)
		if _, err := r.source.Find(t.Context(), Attachment{Network: "blue", Container: "b", Interface: "eth0"}); err != nil {
			t.Errorf("%s: the one with an interface: %v", name, err)
		}
		r.must(t, cni.Del, "b", "")
		r.has(t, 0)
	}
}

// Without the table, as after a reboot or an upgrade, a DEL and a GC take away what the SDN has.
func TestWithoutRows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, container := range []string{"a", "b", "c"} {
		r.mustAdd(t, container, "")
	}
	plugged := maps.Clone(r.binder.plugged)
	r.reboot()
	r.binder.plugged = plugged
	r.must(t, cni.Del, "a", "")
	r.has(t, 2)
	r.must(t, cni.GC, "", `"cni.dev/valid-attachments": [{"containerID": "b", "ifname": "eth0"}]`)
	r.has(t, 1)
	r.sdn.is(true)
	r.reboot()
	r.must(t, cni.Del, "b", "")
	r.sdn.is(false)
	r.run()
	r.has(t, 0)
}

// A DEL that kuryr-cni could not hand over is done by the daemon when it starts, and before an
// ADD of the same container.
func TestHandedOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.mustAdd(t, "a", "")
	first := r.mustAdd(t, "b", "")
	for _, container := range []string{"a", "b", "never"} {
		if err := cni.PendingDELs(r.state).Put(cni.RecordName(container, "eth0"), r.call(cni.Del, container, "")); err != nil {
			t.Fatal(err)
		}
	}
	r.again()
	again := r.mustAdd(t, "b", "")
	if again.Interfaces[0].Mac == first.Interfaces[0].Mac {
		t.Error("the container has its earlier port")
	}
	r.run()
	r.has(t, 1)
	if _, err := r.source.Find(t.Context(), Attachment{Network: "blue", Container: "b", Interface: "eth0"}); err != nil {
		t.Errorf("the one that was added afterwards: %v", err)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.must(t, cni.Status, "", "")
	_, err := r.Do(t.Context(), r.call(cni.Status, "", `"network": "red"`))
	wants(t, err, cni.NotReady, "red")
}

// Over the socket: a call, one that is not valid, and a message that is none; and the daemon ends while somebody is connected.
func TestServe(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	path := filepath.Join(t.TempDir(), "node.sock")
	l, err := rootsock.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(ctx, l) }()
	out, err := cni.Ask(path, r.call(cni.Add, "a", ""), time.Minute)
	if err != nil || !strings.Contains(string(out), "10.1.0.") {
		t.Errorf("%v\n%s", err, out)
	}
	long := r.call(cni.Add, "b", "")
	long.Interface = "abcdefghijklmnop"
	_, err = cni.Ask(path, long, time.Minute)
	wants(t, err, cni.BadEnvironment, "CNI_IFNAME")
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write([]byte{0xff, 0xff, 0xff, 0xff})
	var reply cni.Reply
	if err := cni.ReadFrame(conn, &reply); err != nil || reply.Error == nil || reply.Error.Code != cni.Undecodable.Code {
		t.Errorf("%+v, %v", reply, err)
	}
	_ = conn.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := cni.Ask(path, r.call(cni.Status, "", ""), time.Minute); !errors.Is(err, cni.ErrNoDaemon) {
		t.Errorf("after the end: %v", err)
	}
}

// A DEL that has no row needs none on a full disk.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.mustAdd(t, "a", "")
	r.mustAdd(t, "b", "")
	plugged := maps.Clone(r.binder.plugged)
	r.reboot()
	r.binder.plugged = plugged
	r.full.Store(true)
	_, err := r.add(t, "c", "")
	if !sdn.IsOfHost(err) {
		t.Errorf("ADD: %v", err)
	}
	r.must(t, cni.Del, "a", "")
	r.must(t, cni.Del, "never", "")
	r.has(t, 1)
}
