//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/datapath/firewall"
	"github.com/kuryr/kuryr/docker"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/sdn"
)

// daemon answers for a running `kuryr up`, `kuryr docker`, `kuryr node` or `kuryr sdn`. It is the admin.Daemon.
type daemon struct {
	cfg     config.Config
	log     *slog.Logger
	sdn     sdn.Provider
	parts   *parts // nil where the SDN runs by itself
	metrics *metrics.Reconciles
	started time.Time
	stop    func() error // ends everything but the admin socket; what comes after that ends the process
	serving atomic.Bool  // who asks is answered
	front   *front       // nil: Docker is not served
	node    *nodeFront   // nil: container runtimes are not served
	noCNI   atomic.Bool  // another process serves them
	seen    sdn.Provider // the SDN as the front ends see it
	api     []string     // where the SDN is served to other processes

	mu   sync.Mutex
	last admin.Reconcile

	downing sync.Mutex // held while going down, and for good when the process ends
}

func newDaemon(cfg config.Config, log *slog.Logger, b *backend, m *metrics.Reconciles, started time.Time) *daemon {
	return &daemon{cfg: cfg, log: log, sdn: b.provider, parts: b.parts, metrics: m, started: started}
}

var _ admin.Daemon = (*daemon)(nil)

func (d *daemon) Unready() []string {
	reasons := []string{} // in JSON a list, also when it is empty
	if !d.serving.Load() {
		reasons = append(reasons, d.quiet()+" does not answer yet")
	}
	if d.parts == nil || d.parts.datapath == nil {
		return reasons
	}
	switch last := d.lastReconcile(); {
	case last.At.IsZero():
		reasons = append(reasons, "the kernel has not been reconciled with the store yet")
	case last.Error != "":
		reasons = append(reasons, "the kernel does not follow the store: "+last.Error)
	}
	return reasons
}

// quiet is what does not answer before the daemon serves.
func (d *daemon) quiet() string {
	if d.front != nil {
		return "the plugin socket"
	}
	if d.node != nil {
		return "the socket of kuryr-cni"
	}
	return "the API"
}

// addresses are where the daemon answers, for the log.
func (d *daemon) addresses() (attrs []any) {
	if d.front != nil {
		attrs = append(attrs, "plugin_socket", pluginAddresses(d.cfg.Docker))
	}
	if d.node != nil && !d.noCNI.Load() {
		attrs = append(attrs, "node_socket", d.cfg.Node.Socket)
	}
	if len(d.api) > 0 {
		attrs = append(attrs, "api", strings.Join(d.api, ", "))
	}
	return attrs
}

func (d *daemon) Status(ctx context.Context) (admin.Status, error) {
	s := admin.Status{
		StoreOnly: d.parts != nil && d.parts.datapath == nil,
		Version:   version, Host: d.cfg.Host, Started: d.started, Reasons: d.Unready(), Installation: d.sdn.Installation(),
		API: strings.Join(d.api, ", "), Objects: map[string]int64{}, Reconcile: d.lastReconcile(), Unreached: []admin.Unreached{},
	}
	if d.front != nil {
		s.PluginSocket = pluginAddresses(d.cfg.Docker)
	}
	if d.node != nil && !d.noCNI.Load() {
		s.NodeSocket = d.cfg.Node.Socket
	}
	if d.parts == nil {
		if err := d.sdn.Ping(ctx); err != nil {
			s.Reasons = append(s.Reasons, "the SDN does not answer: "+oneLine(err))
		}
	} else {
		stats, err := d.parts.sdn.Stats(ctx)
		if err != nil {
			return admin.Status{}, err
		}
		s.Store = admin.Store{Path: storePath(d.cfg), Bytes: stats.Bytes}
		if stats.Unsettled > 0 {
			s.Reasons = append(s.Reasons, fmt.Sprintf("the kernel does not follow the store in %d routers or networks; it is tried again", stats.Unsettled))
		}
		for noun, n := range stats.Objects {
			s.Objects[string(noun)] = n
		}
	}
	s.Ready = len(s.Reasons) == 0
	if len(s.Reasons) > 0 && d.parts == nil { // the SDN may be away, and would be waited for
		s.Findings = []admin.Finding{}
		return s, nil
	}
	for r, err := range d.sdn.FindRouters(ctx, sdn.RouterQuery{}) {
		if err != nil {
			return s, err
		}
		for _, u := range r.Unreached {
			s.Unreached = append(s.Unreached, admin.Unreached{Router: cmp.Or(r.Name, string(r.ID)), Prefix: u.Prefix.String(), Reason: u.Reason})
		}
	}
	var err error
	s.Findings, err = d.findings(ctx)
	return s, err
}

func (d *daemon) findings(ctx context.Context) ([]admin.Finding, error) {
	out := d.node.findings()
	if d.parts == nil || d.parts.datapath == nil {
		return out, nil
	}
	v4, v6 := d.parts.datapath.inUse()
	found, err := d.parts.datapath.host.Check(ctx, v4, v6)
	if err != nil {
		return nil, fmt.Errorf("check of the host: %w", err)
	}
	out = append(out, findingsOf(found)...)
	// Who may not look at process 1 cannot tell, and has nothing to mend.
	if seen, err := d.parts.namespaces.Seen(); err == nil && !seen {
		out = append(out, admin.Finding{
			What: "network namespaces are pinned in " + namespaceDir(d.cfg) + " of kuryr's own mount namespace: nobody else sees them, and they go with it",
			Remediation: "run kuryr in the host's mount namespace, or in one whose mounts propagate (not private); for Docker's managed plugin the host's /run " +
				"must be a shared mount: `mount --make-rshared /run`, then disable and enable the plugin",
		})
	}
	return out, nil
}

func findingsOf(found []firewall.Finding) []admin.Finding {
	out := []admin.Finding{}
	for _, f := range found {
		out = append(out, admin.Finding{What: f.What, Remediation: f.Mend, Note: f.Note})
	}
	return out
}

func (d *daemon) lastReconcile() admin.Reconcile {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

// reconcileTimeout bounds one reconcile; some thousand networks take seconds.
const reconcileTimeout = 5 * time.Minute

func (d *daemon) Reconcile(ctx context.Context) (admin.Reconcile, error) {
	if err := d.kernel(); err != nil {
		return admin.Reconcile{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	start := time.Now()
	report, err := d.parts.sdn.Reconcile(ctx)
	took := time.Since(start)
	d.metrics.Done(took, len(report.Changed), err)
	out := admin.Reconcile{At: time.Now(), Milliseconds: float64(took.Microseconds()) / 1000, Changed: []string{}}
	for _, c := range report.Changed {
		out.Changed = append(out.Changed, c.String())
		out.Kernel = append(out.Kernel, admin.Difference(c))
	}
	attrs := []any{"took", took.Round(time.Millisecond), "changed", len(out.Changed)}
	if err != nil {
		out.Error = oneLine(err)
		d.log.ErrorContext(ctx, "the kernel does not follow the store; it is tried again", append(attrs, "error", err)...)
	} else {
		d.log.InfoContext(ctx, "reconciled the kernel with the store", attrs...)
	}
	d.mu.Lock()
	d.last = out
	d.mu.Unlock()
	return out, nil
}

// kernel is the answer to who asks for the kernel state, where there is none of this process.
func (d *daemon) kernel() error {
	switch {
	case d.parts == nil:
		return errByItself
	case d.parts.datapath == nil:
		return errStoreOnly
	}
	return nil
}

// reconcileAtStart reconciles once and returns what goes on trying until it succeeds.
func (d *daemon) reconcileAtStart(ctx context.Context) (retry func(context.Context)) {
	r, _ := d.Reconcile(ctx)
	return func(ctx context.Context) {
		wait := backoff.Backoff{Min: time.Second, Max: time.Minute}
		for r.Error != "" && wait.Wait(ctx) == nil {
			r, _ = d.Reconcile(ctx)
		}
	}
}

func (d *daemon) Check(ctx context.Context) (admin.Check, error) {
	if err := d.kernel(); err != nil {
		return admin.Check{}, err
	}
	differences, err := d.parts.sdn.Check(ctx)
	if err != nil {
		return admin.Check{}, err
	}
	out := admin.Check{Differences: []string{}}
	for _, diff := range differences {
		out.Differences = append(out.Differences, diff.String())
		out.Kernel = append(out.Kernel, admin.Difference(diff))
	}
	out.Findings, err = d.findings(ctx)
	return out, err
}

func (d *daemon) Backup(ctx context.Context, w io.Writer) error {
	if d.parts == nil {
		return errByItself
	}
	return d.parts.sdn.Backup(ctx, w)
}

func (d *daemon) Down(ctx context.Context, o admin.DownOptions) (admin.DownReport, error) {
	if !d.serving.Load() { // the start would make again what is taken down
		return admin.DownReport{}, errors.New("kuryr is just starting or ending: try again")
	}
	if err := d.kernel(); err != nil {
		return admin.DownReport{}, err
	}
	if err := refuseWhilePlugged(ctx, d.parts, d.cfg.Host, o.Force); err != nil {
		return admin.DownReport{}, err
	}
	d.downing.Lock()
	defer d.downing.Unlock()
	d.log.InfoContext(ctx, "going down", "force", o.Force, "purge", o.Purge)
	d.serving.Store(false)
	if err := d.stop(); err != nil {
		d.log.WarnContext(ctx, "a part did not end well", "error", err)
	}
	return teardown(ctx, d.parts, d.cfg, o.Purge)
}

// Stop ends the process and leaves kernel and SDN as they are.
func (d *daemon) Stop(ctx context.Context) error {
	if !d.serving.Load() {
		return errors.New("kuryr is just starting or ending: try again")
	}
	d.downing.Lock()
	defer d.downing.Unlock()
	d.log.InfoContext(ctx, "stopping on request")
	d.serving.Store(false)
	return d.stop()
}

func autoPools(ranges []netip.Prefix, length int) []docker.AutoPool {
	pools := []docker.AutoPool{}
	for _, p := range ranges {
		pools = append(pools, docker.AutoPool{Prefix: p, Len: max(length, p.Bits())})
	}
	return pools
}
