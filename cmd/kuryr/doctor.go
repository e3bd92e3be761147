//go:build linux

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/bundle"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/doctor"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/topology"
	"github.com/kuryr/kuryr/docker"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/identity"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// doctorOptions say what the doctor does beside looking.
type doctorOptions struct {
	fix, now bool
	verbose  bool
	engine   string
}

// doctorReport is what it prints.
type doctorReport struct {
	Verdict  doctor.Verdict   `json:"verdict"`         // the worst
	Fixed    []string         `json:"fixed,omitempty"` // what --fix did
	Details  []string         `json:"fixed_details,omitempty"`
	Failed   []string         `json:"failed,omitempty"` // what it could not do
	Findings []doctor.Finding `json:"findings"`
}

func (a *app) doctorCommand() *cobra.Command {
	var output string
	var o doctorOptions
	c := &cobra.Command{
		Use: "doctor", Short: "Find out what is not well, and repair it", Args: noArgs,
		Long: `Look at the kernel, the host, its firewall and limits, Docker, the pods of a cluster's node, and at the store against the kernel and against Docker. Each finding
names its remedy. It works also while kuryr is not running, with fewer checks. "kuryr doctor cluster" looks at a whole cluster. The exit code is 1 if there are problems; warnings are none.`,
		Example: "  kuryr doctor\n  kuryr doctor --fix\n  kuryr doctor -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output)
			if err != nil {
				return usageError{err}
			}
			if (o.now || o.engine != "") && !o.fix {
				return usageError{errors.New("--now and --forget-engine go with --fix")}
			}
			cfg, err := a.load(c)
			if err != nil {
				return err
			}
			report := newExamination(cfg, a.getenv("DOCKER_HOST")).run(c.Context(), o)
			if err := a.printDoctor(format, report, o); err != nil {
				return err
			}
			if report.Verdict == doctor.Problem || len(report.Failed) > 0 {
				return failed{}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&o.fix, "fix", false, "repair what can be repaired without harm, and look again")
	c.Flags().BoolVar(&o.now, "now", false, "with --fix: remove what Docker has forgotten without waiting for docker.forget_after")
	c.Flags().StringVar(&o.engine, "forget-engine", "", "with --fix: remove also what the Docker engine of this `id` had, which is gone for good; unknown is what none has listed, swarm what other nodes may have")
	c.Flags().BoolVarP(&o.verbose, "verbose", "v", false, "also show the single differences of a finding")
	addOutput(c, &output)
	c.AddCommand(a.doctorClusterCommand())
	return c
}

func (a *app) doctorClusterCommand() *cobra.Command {
	var output, namespace string
	c := &cobra.Command{
		Use: "cluster", Short: "Find out what is not well with Kuryr in a Kubernetes cluster", Args: noArgs,
		Long: `Look at a whole Kubernetes cluster by its API server, from anywhere: whether Raven leads, which nodes have no network, which networks and pools are not
ready, and what is being deleted for long. Where the configuration does not tell how Kubernetes is reached, it is done as kubectl does it. The
exit code is 1 if there are problems; warnings are none.`,
		Example: "  kuryr doctor cluster\n  kuryr doctor cluster --kubernetes-kubeconfig admin.conf -o json",
		RunE:    func(c *cobra.Command, _ []string) error { return a.doctorCluster(c, output, namespace) },
	}
	c.Flags().StringVar(&namespace, "namespace", "kuryr-system", "`namespace` of Kuryr's own pods")
	addOutput(c, &output)
	addSettings(c, poolSettings...)
	return c
}

var doctorColumns = []table.Column[doctor.Finding]{
	{Name: "verdict", Value: func(f doctor.Finding) string { return string(f.Verdict) }},
	{Name: "check", Value: func(f doctor.Finding) string { return f.Check }},
	{Name: "what", Value: func(f doctor.Finding) string {
		if f.Remediation == "" {
			return f.What
		}
		return f.What + "\nto repair it: " + f.Remediation
	}},
}

// printDoctor prints the report: what was fixed, the findings, and a line that sums up.
func (a *app) printDoctor(format table.Format, r doctorReport, o doctorOptions) error {
	if format != table.Table {
		return table.Show(a.out, format, r, nil)
	}
	for _, line := range r.Fixed {
		_, _ = fmt.Fprintln(a.out, "fixed: "+table.Printable(line))
	}
	if o.verbose {
		for _, line := range r.Details {
			_, _ = fmt.Fprintln(a.out, "  "+table.Printable(line))
		}
	}
	for _, line := range r.Failed {
		_, _ = fmt.Fprintln(a.out, "failed: "+table.Printable(line))
	}
	findings := slices.Clone(r.Findings)
	for i := range findings {
		if f := &findings[i]; o.verbose && len(f.Details) > 0 {
			f.What += "\n  " + strings.Join(f.Details, "\n  ")
		}
	}
	if err := table.List(a.out, format, findings, doctorColumns); err != nil {
		return err
	}
	fixed := -1
	if o.fix {
		fixed = len(r.Fixed)
	}
	_, err := fmt.Fprintln(a.out, table.Printable(doctor.Summary(r.Findings, fixed, len(r.Failed))))
	return err
}

// examination asks whom there is to ask.
type examination struct {
	cfg    config.Config
	socket string // of the Docker engine; "" asks none
	daemon *admin.Client
	front  *admin.Client // Docker's front end; the same, unless it is a process of its own
	quiet  bool          // does not quote what Docker says of containers
}

func newExamination(cfg config.Config, dockerHost string) *examination {
	e := &examination{cfg: cfg, daemon: admin.NewClient(cfg.Admin.Socket), front: admin.NewClient(frontSocket(cfg, duties{docker: true}))}
	if cfg.Docker.API != "" {
		e.socket = engine.Socket(dockerHost, cfg.Docker.API)
	}
	return e
}

func (e *examination) run(ctx context.Context, o doctorOptions) doctorReport {
	var r doctorReport
	if o.fix {
		r.Fixed, r.Details, r.Failed = e.fix(ctx, o)
	}
	r.Findings = e.look(ctx)
	doctor.WorstFirst(r.Findings)
	r.Verdict = doctor.Worst(r.Findings)
	return r
}

// look goes through all checks.
func (e *examination) look(ctx context.Context) []doctor.Finding {
	status, err := e.daemon.Status(ctx)
	docker := e.engineFacts(ctx)
	daemon := e.daemonFacts(ctx, status, err)
	daemon.Managed = len(docker.Managed) > 0
	pods := e.pods(ctx)
	all := append(doctor.Pods(pods), doctor.Services(doctor.GatherServices(servicesTable))...)
	if _, absent := os.Stat(storePath(e.cfg)); !pods.There || absent == nil || !admin.IsNotRunning(err) { // a cluster's node may have no SDN
		all = append(all, doctor.Daemon(daemon)...)
	}
	host, unread := doctor.GatherRoutes(ctx)
	all = append(all, doctor.Kernel(doctor.ProbeKernel())...)
	all = append(all, doctor.Limits(doctor.GatherLimits(peer(e.cfg.Admin.Socket), host))...)
	all = append(all, doctor.Files(e.files())...)
	all = append(all, doctor.API(e.api())...)
	all = append(all, doctor.Node(e.node())...)
	all = append(all, doctor.Routes(e.routes(ctx, status, err == nil, doctor.RouteFacts{Host: host, Err: unread}))...)
	unit, plugin := doctor.FindUnit(), e.plugin()
	unit.Managed = slices.ContainsFunc(docker.Managed, func(m doctor.Managed) bool { return m.Enabled })
	plugin.Managed, plugin.Unasked = docker.Managed, docker.Socket == "" || docker.Err != nil
	all = append(all, doctor.Unit(unit)...)
	all = append(all, doctor.Plugins(plugin)...)
	all = append(all, doctor.Database(e.database(ctx))...)
	all = append(all, doctor.Engine(docker)...)
	if err == nil {
		all = append(all, doctor.Orphans(e.orphans(ctx))...)
	}
	return all
}

func (e *examination) plugin() doctor.PluginFacts {
	return doctor.FindPlugin(driverNames(e.cfg.Docker), e.cfg.Docker.Socket, e.cfg.Docker.Listen)
}

func (e *examination) daemonFacts(ctx context.Context, status admin.Status, err error) doctor.DaemonFacts {
	d := doctor.DaemonFacts{Version: status.Version, Here: version, Reasons: status.Reasons}
	if err != nil {
		d.Err = errors.New(strings.TrimSuffix(oneLine(err), "; start it with `kuryr up`"))
		return d
	}
	d.Apart, d.StoreOnly = status.Store.Path == "", status.StoreOnly
	if d.Apart || d.StoreOnly {
		return d
	}
	check, err := e.daemon.Check(ctx)
	d.CheckErr, d.Differences = err, check.Differences
	d.Kernel = e.named(ctx, check.Kernel)
	for _, f := range check.Findings {
		d.Host = append(d.Host, doctor.Host{What: f.What, Remediation: f.Remediation, Note: f.Note})
	}
	return d
}

// peer is the process that serves a socket, 0 if none does.
func peer(socket string) int {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return 0
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if who, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(who.Pid)
		}
	})
	return pid
}

func (e *examination) files() doctor.FileFacts {
	files := []doctor.File{
		{Path: e.cfg.StateDir, What: "folder"},
		{Path: e.cfg.RunDir, What: "folder"},
		{Path: storePath(e.cfg), What: "store", Secret: true},
		{Path: docker.DatabasePath(e.cfg.StateDir), What: "database", Secret: true},
		{Path: e.cfg.Admin.Socket, What: "admin socket", Secret: true},
		{Path: e.cfg.Docker.Socket, What: "plugin socket", Secret: true},
		{Path: e.cfg.SDN.Socket, What: "API socket", Secret: true},
		{Path: e.cfg.Node.Socket, What: "socket of kuryr-cni", Secret: true},
		{Path: e.cfg.SDN.Tokens, What: "token file", Secret: true},
		{Path: filepath.Join(e.cfg.StateDir, keyFile), What: "key of the API's tokens", Secret: true},
		{Path: config.DefaultPath, What: "configuration"},
		{Path: filepath.Dir(config.DefaultPath), What: "folder"},
	}
	facts := doctor.Look(files, e.cfg.StateDir, e.cfg.RunDir)
	facts.Newest = doctor.Changed(storePath(e.cfg))
	facts.Pins, facts.Seen = doctor.CountPins(namespaceDir(e.cfg))
	return facts
}

// database returns the state of the Docker front end's database.
func (e *examination) database(ctx context.Context) doctor.DatabaseFacts {
	path := docker.DatabasePath(e.cfg.StateDir)
	_, err := e.front.Intents(ctx)
	return doctor.DatabaseFacts{Path: path, Running: err == nil, Health: reconcile.Inspect(path)}
}

// node is how CNI is served here, where it is.
func (e *examination) node() doctor.NodeFacts {
	f := doctor.NodeFacts{Socket: e.cfg.Node.Socket, Conflist: e.cfg.Node.Conflist, Answers: peer(e.cfg.Node.Socket) != 0}
	_, err := os.Stat(f.Socket)
	f.There = err == nil || f.Conflist != ""
	owed, err := jsonstore.Load[cni.Call](cni.PendingDELs(filepath.Join(e.cfg.StateDir, "cni")))
	f.Owed, f.Err = len(owed), err
	if f.Conflist != "" {
		if _, err := os.Stat(f.Conflist); err != nil {
			f.Missing = err
		}
	}
	return f
}

// api is what clients of the SDN's API over TCP need.
func (e *examination) api() doctor.APIFacts {
	a := doctor.APIFacts{Listen: e.cfg.SDN.Listen, Cert: e.cfg.SDN.TLSCert, Now: time.Now()}
	if a.Listen == "" {
		return a
	}
	pair, err := tls.LoadX509KeyPair(a.Cert, e.cfg.SDN.TLSKey)
	if a.CertErr = err; err == nil {
		a.Until = pair.Leaf.NotAfter
	}
	file, err := identity.OpenTokens(e.cfg.SDN.Tokens, slog.New(slog.DiscardHandler))
	if a.TokensErr = err; err == nil {
		a.Entries = file.Set().Len()
	}
	return a
}

func (e *examination) routes(ctx context.Context, status admin.Status, up bool, r doctor.RouteFacts) doctor.RouteFacts {
	for _, u := range status.Unreached {
		if u.Reason == sdn.UnreachedProject {
			continue // meant so
		}
		r.Unreached = append(r.Unreached, doctor.Unreached{Range: u.Prefix, Router: u.Router, Reason: u.Reason})
	}
	if !up {
		return r
	}
	networks, err := api.List(ctx, e.daemon.SDN(), api.Networks, nil)
	if err != nil {
		return r
	}
	external := map[string]bool{}
	for _, n := range networks {
		external[n.ID] = n.External
	}
	subnets, err := api.List(ctx, e.daemon.SDN(), api.Subnets, nil)
	if err != nil {
		return r
	}
	for _, s := range subnets {
		if p, err := netip.ParsePrefix(s.CIDR); err == nil && external[s.NetworkID] {
			r.Uplinks = append(r.Uplinks, p)
		}
	}
	return r
}

func (e *examination) orphans(ctx context.Context) doctor.OrphanFacts {
	found, err := e.front.Orphans(ctx)
	facts := doctor.OrphanFacts{Off: found.Off, Err: found.Error, Engine: found.Engine, Now: time.Now()}
	if err != nil {
		facts.Err = oneLine(err)
	}
	for _, o := range found.Orphans {
		facts.Orphans = append(facts.Orphans, doctor.Orphan{
			Noun: o.Noun, Name: o.Name, Why: o.Why, Kept: o.Kept, Engine: o.Engine, Connected: o.Connected,
			Since: o.Since, Due: o.Due, Changed: o.Changed,
		})
	}
	for _, b := range found.Broken {
		facts.Broken = append(facts.Broken, doctor.Broken{Container: b.Container, Endpoint: b.Endpoint, State: b.State})
	}
	for _, n := range found.Unknown {
		facts.Unknown = append(facts.Unknown, n.Name)
	}
	return facts
}

// mostStopped is how many containers that do not run are asked why.
const mostStopped = 100

func (e *examination) engineFacts(ctx context.Context) doctor.EngineFacts {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	names := driverNames(e.cfg.Docker)
	f := doctor.EngineFacts{Socket: e.socket}
	if e.socket == "" {
		return f
	}
	api := engine.New(e.socket)
	defer api.Close()
	info, err := api.Info(ctx)
	if f.Err = err; err != nil {
		f.Err = errors.New(strings.TrimPrefix(oneLine(err), "ask the Docker engine: "))
		return f
	}
	f.Version, f.LiveRestore, f.Swarm = info.Version, info.LiveRestore, info.Swarm.Member
	if f.Managed, f.Err = managed(ctx, api); f.Err != nil {
		return f
	}
	for _, m := range f.Managed { // which may have any name
		name, _, _ := strings.Cut(m.Name, ":")
		names = append(names, name)
	}
	api = engine.New(e.socket, names...)
	defer api.Close()
	f.Stopped, f.Err = stopped(ctx, api, names)
	for i := range f.Stopped {
		if e.quiet {
			f.Stopped[i].Error = bundle.Hidden
		}
	}
	return f
}

// stopped finds containers on networks of this driver whose start failed, and that should run.
func stopped(ctx context.Context, api *engine.Client, names []string) ([]doctor.Stopped, error) {
	networks, err := api.Networks(ctx)
	if err != nil {
		return nil, err
	}
	ours := map[string]bool{}
	for _, n := range networks {
		ours[n.Name] = n.Ours
	}
	containers, err := api.Containers(ctx)
	if err != nil {
		return nil, err
	}
	var all []doctor.Stopped
	asked := 0
	for _, c := range containers {
		on := slices.ContainsFunc(c.Networks, func(name string) bool { return ours[name] })
		if !on || c.IsUp() || asked == mostStopped {
			continue
		}
		asked++
		d, err := api.Details(ctx, c.ID)
		if err != nil && !engine.IsNotFound(err) {
			return nil, err
		}
		if d.RestartPolicy != "" && d.RestartPolicy != "no" && doctor.FailedStart(d.Error, names...) {
			all = append(all, doctor.Stopped{Name: c.Name, Policy: d.RestartPolicy, Error: d.Error})
		}
	}
	return all, nil
}

// fix repairs what can be repaired without harm.
func (e *examination) fix(ctx context.Context, o doctorOptions) (done, details, failed []string) {
	removed, err := e.plugin().Remove()
	done = append(done, removed...)
	if err != nil {
		failed = append(failed, oneLine(err))
	}
	take := func(m admin.Repairs, err error) {
		for _, g := range doctor.GroupDifferences(e.named(ctx, m.Kernel)) {
			done, details = append(done, g.Fixed()), append(details, g.Details...)
		}
		done, failed = append(done, m.Done...), append(failed, m.Failed...)
		if err != nil && !admin.IsNotRunning(err) {
			failed = append(failed, oneLine(err))
		}
	}
	take(e.daemon.Repair(ctx))
	if frontSocket(e.cfg, duties{docker: true}) != e.cfg.Admin.Socket {
		take(e.front.Repair(ctx))
	}
	if found, err := e.front.Orphans(ctx); err == nil && found.Off == "" && found.Error == "" {
		take(e.front.Purge(ctx, admin.PurgeOptions{Now: o.now, Engine: o.engine}))
	}
	return done, details, failed
}

// named calls the places of differences by the names that users know.
func (e *examination) named(ctx context.Context, all []admin.Difference) []doctor.Difference {
	if len(all) == 0 {
		return nil
	}
	objects, err := gather(ctx, e.daemon)
	if err == nil && e.socket != "" {
		objects.Names, _, _ = askEngine(ctx, e.socket)
	}
	places := topology.Places(objects)
	var out []doctor.Difference
	for _, d := range all {
		place := cmp.Or(places[d.Router], d.Router, "host")
		out = append(out, doctor.Difference{Place: place, Object: d.Object, Want: d.Want, Have: d.Have})
	}
	return out
}
