//go:build e2e

package crash_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// shared is of steps that are each behind a write of Raven's: it is killed at every one,
// before it has any effect and after.
const shared = "the sequence has no cluster; the test kills at each write"

// elsewhere are the failpoints that no sequence here can reach, with the reason and the test that
// kills there. "make crash" runs those tests, which need the tag "failpoints"; those on Neutron, of
// CNI and of Services are run by "make e2e-neutron", "make e2e-cni" and "make e2e-kubernetes".
var elsewhere = map[string]struct{ why, folder, test string }{
	"netns.pin.file":               {noKurma, "kurma/pod", "TestKilled"},
	"netns.pin.pinned":             {noKurma, "kurma/pod", "TestKilled"},
	"kurma.netplugin.port":         {noKurma, "kurma/netplugin", "TestKilled"},
	"kurma.netplugin.plugged":      {noKurma, "kurma/netplugin", "TestKilled"},
	"kurma.netplugin.unplugged":    {noKurma, "kurma/netplugin", "TestKilled"},
	"kurma.plugin.start.bundled":   {noKurma, "kurma/plugin", "TestKilled"},
	"kurma.plugin.start.grouped":   {noKurma, "kurma/plugin", "TestKilled"},
	"kurma.plugin.start.ran":       {noKurma, "kurma/plugin", "TestKilled"},
	"kurma.plugin.stop.ended":      {noKurma, "kurma/plugin", "TestKilled"},
	"kurma.plugin.clear.deleted":   {noKurma, "kurma/plugin", "TestKilled"},
	"kurma.plugin.clear.ungrouped": {noKurma, "kurma/plugin", "TestKilled"},
	"kurma.plugin.discard.cleared": {noKurma, "kurma/plugin", "TestKilled"},
	"lb.restore.told":              {noLoad, "datapath/lb", "TestKilled"},
	"lb.apply.told":                {noLoad, "datapath/lb", "TestKilled"},
	"lb.flows.forgotten":           {noLoad, "datapath/lb", "TestKilled"},
	"router.vips.removed":          {noLoad, "datapath/router", "TestKilledAnywhere"},
	"router.vips.added":            {noLoad, "datapath/router", "TestKilledAnywhere"},
	"router.frontends.told":        {noLoad, "datapath/router", "TestKilledAnywhere"},
	"router.frontends.bridges":     {noLoad, "datapath/router", "TestKilledAnywhere"},
	"firewall.zone.recorded":       {"it needs firewalld", "datapath/firewall", "TestZoneKilledAnywhere"},
	"firewall.closezone.removed":   {"it needs firewalld", "datapath/firewall", "TestZoneKilledAnywhere"},
	"local.migrate.copied":         {"it needs a later program's schema", "sdn/local", "TestMigrationKilled"},
	"local.migrate.step":           {"it needs a later program's schema", "sdn/local", "TestMigrationKilled"},
	"local.migrate.done":           {"it needs a later program's schema", "sdn/local", "TestMigrationKilled"},
	"engine.ensure.next":           {"Docker makes one thing at a time", "sdn/neutronapi", "TestKilledBulk"},
	"router.migrate.filtered":      {inPlace, "datapath/router", "TestKilledAnywhere"},
	"router.groups.told":           {noGroups, "datapath/router", "TestKilledAnywhere"},
	"securitygroup.groups.table":   {noGroups, "datapath/router", "TestKilledAnywhere"},
	"router.migrate.guarded":       {inPlace, "sdn/local", "TestKilledWhileNetworkMoves"},
	"router.migrate.moved":         {inPlace, "sdn/local", "TestKilledWhileNetworkMoves"},
	"router.migrate.unguarded":     {inPlace, "sdn/local", "TestKilledWhileNetworkMoves"},
	"router.floating.unannounced": {
		"Docker's ports are published on the host's own addresses", "sdn/local",
		"TestKilledWhileNetworkMoves",
	},
	"neutron.change.answered":   {"the embedded SDN is no Neutron", "test/e2e/neutron", "TestKilledAfterChanges"},
	"bind.container.sysctl":     {byEngine, "bind", "TestKilled"},
	"bind.container.addrgen":    {byEngine, "bind", "TestKilled"},
	"bind.plug.configured":      {byEngine, "bind", "TestKilled"},
	"bind.nested.created":       {inMachine, "bind", "TestKilledNested"},
	"bind.nested.marked":        {inMachine, "bind", "TestKilledNested"},
	"nested.ensureports.made":   {inMachine, "sdn/neutron", "TestNestedKilled"},
	"nested.join.attached":      {inMachine, "sdn/neutron", "TestNestedKilled"},
	"nested.bind.tagged":        {inMachine, "sdn/neutron", "TestNestedKilled"},
	"nested.hush.left":          {inMachine, "sdn/neutron", "TestNestedKilled"},
	"nested.updateport.changed": {inMachine, "sdn/neutron", "TestNestedKilled"},
	"agent.add.claimed":         {ofCNI, "test/e2e/cni", "TestFailpoints"},
	"agent.add.plugged":         {ofCNI, "test/e2e/cni", "TestFailpoints"},
	"agent.del.unplugged":       {ofCNI, "test/e2e/cni", "TestFailpoints"},
	"agent.network.port":        {ofCNI, "test/e2e/cni", "TestFailpoints"},
	"agent.network.policy":      {ofCNI, "test/e2e/cni", "TestFailpoints"},
	"agent.network.unlimited":   {ofCNI, "test/e2e/cni", "TestFailpoints"},
	"agent.network.unpublished": {ofCNI, "test/e2e/cni", "TestFailpoints"},
	"agent.network.published":   {ofCNI, "test/e2e/cni", "TestFailpointsOfPublished"},
	"agent.network.reserved":    {ofCNI, "test/e2e/cni", "TestFailpointsOfPublished"},
	"static.bind.recorded":      {ofCNI, "test/e2e/cni", "TestFailpointsOfStatic"},
	"static.bind.plugged":       {ofCNI, "test/e2e/cni", "TestFailpointsOfStatic"},
	"static.unbind.unplugged":   {ofCNI, "test/e2e/cni", "TestFailpointsOfStatic"},
	"image.download.begun":      {noKurma, "kurma/image", "TestKilled"},
	"image.download.part":       {noKurma, "kurma/image", "TestKilled"},
	"image.download.whole":      {noKurma, "kurma/image", "TestKilled"},
	"image.install.named":       {noKurma, "kurma/image", "TestKilled"},
	"image.install.recorded":    {noKurma, "kurma/image", "TestKilled"},
	"image.install.synced":      {noKurma, "kurma/image", "TestKilled"},
	"image.keep.unpacked":       {noKurma, "kurma/image", "TestKilled"},
	"image.registry.layer":      {noKurma, "kurma/image", "TestKilled"},
	"image.remove.forgotten":    {noKurma, "kurma/image", "TestKilled"},
	"image.remove.moved":        {noKurma, "kurma/image", "TestKilled"},
	"claim.adopt.written":       {noCluster, "kube/agent/claim", "TestKilled"},
	"claim.annotate.written":    {noCluster, "kube/agent/claim", "TestKilled"},
	"claim.claim.chosen":        {noCluster, "kube/agent/claim", "TestKilled"},
	"claim.claim.published":     {noCluster, "kube/agent/claim", "TestKilled"},
	"claim.claim.written":       {noCluster, "kube/agent/claim", "TestKilled"},
	"claim.takeover.written":    {noCluster, "kube/agent/claim", "TestKilled"},
	"claim.release.written":     {noCluster, "kube/agent/claim", "TestKilled"},
	"claim.write.labelled":      {noCluster, "kube/agent/claim", "TestKilled"},
	"claim.write.told":          {noCluster, "kube/agent/claim", "TestKilled"},
	"raven.vips.network":        {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.vips.subnet":         {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.vips.attached":       {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.vips.detached":       {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.ownvips.subnet":      {noCluster, "test/e2e/kubernetes", "TestServicesKilledWithOwnVIPs"},
	"raven.ownvips.attached":    {noCluster, "test/e2e/kubernetes", "TestServicesKilledWithOwnVIPs"},
	"raven.ownvips.retired":     {noCluster, "test/e2e/kubernetes", "TestServicesKilledWithOwnVIPs"},
	"raven.legs.attached":       {shared, "kube/raven", "TestKilledWhileLegsAreRestored"},
	"raven.noderoutes.admitted": {shared, "kube/raven", "TestKilledWhileRouting"},
	"raven.noderoutes.led":      {shared, "kube/raven", "TestKilledWhileRouting"},
	"raven.stray.sunk":          {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.stray.deleted":       {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.service.created":     {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.service.changed":     {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.service.dismissed":   {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.service.published":   {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.balancer.applied":    {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.balancer.anew":       {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.balancer.retired":    {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.balancer.deleted":    {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.balancer.told":       {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.balancer.released":   {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.share.noted":         {shared, "kube/raven", "TestKilledWhileSharing"},
	"raven.share.entered":       {shared, "kube/raven", "TestKilledWhileSharing"},
	"raven.share.stripped":      {shared, "kube/raven", "TestKilledWhileSharing"},
	"raven.share.left":          {shared, "kube/raven", "TestKilledWhileSharing"},
	"raven.share.withdrawn":     {noCluster, "test/e2e/kubernetes", "TestServicesKilledWithOwnVIPs"},
	"raven.float.noted":         {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.float.led":           {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.float.made":          {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"raven.float.sunk":          {noCluster, "test/e2e/kubernetes", "TestServicesKilledAnywhere"},
	"leg.remove.unplugged":      {noCluster, "kube/agent/leg", "TestKilled"},
	"leg.set.recorded":          {noCluster, "kube/agent/leg", "TestKilled"},
	"router.leg.cleared":        {"the sequence has no trunks", "datapath/router", "TestKilledAnywhere"},
	"router.leg.made":           {"the sequence has no trunks", "datapath/router", "TestKilledAnywhere"},
	"router.leg.marked":         {"the sequence has no trunks", "datapath/router", "TestKilledAnywhere"},
	"router.leg.felled":         {"the sequence has no trunks", "datapath/router", "TestKilledAnywhere"},
	"nested.unbind.left":        {inMachine, "sdn/neutron", "TestNestedKilled"},
	"nested.delete.left":        {inMachine, "sdn/neutron", "TestNestedKilled"},
	"bind.ovs.transacted":       {byOVS, "bind", "TestKilledOVS"},
	"bind.ovs.removed":          {byOVS, "bind", "TestKilledOVS"},
	"bind.ovs.left":             {byOVS, "bind", "TestKilledOVS"},
	"bind.hybrid.bridged":       {byOVS, "bind", "TestKilledOVS"},
	"bind.hybrid.paired":        {byOVS, "bind", "TestKilledOVS"},
	"bind.hybrid.retired":       {byOVS, "bind", "TestKilledOVS"},
}

const (
	inPlace   = "a Docker network is put on its router before it has ports"
	noLoad    = "Docker's networks have no load balancers"
	noKurma   = "it is of Kurma's pods, not of Docker's containers"
	noCluster = "the sequence has no Kubernetes"
	noGroups  = "the sequence's ports have no security groups and no limits"
	byOVS     = "the embedded SDN's ports are on Linux bridges"
	byEngine  = "the Docker engine configures a container's end by itself"
	inMachine = "the host of the sequence is no virtual machine of the SDN"
	ofCNI     = "the sequence has no container runtime of CNI"
)

// hasTest tells whether a folder's tests have one of that name.
func hasTest(t *testing.T, folder, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == test {
				return true
			}
		}
	}
	return false
}

// failpoints lists the names of every failpoint.Here("…") in the tree, whatever its build tags.
func failpoints(t *testing.T, root string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); path != root && (strings.HasPrefix(n, ".") || n == "testdata" || n == "test" || n == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Here" || len(call.Args) != 1 {
				return true
			}
			if pkg, ok := sel.X.(*ast.Ident); !ok || pkg.Name != "failpoint" {
				return true
			}
			lit, ok := call.Args[0].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: the name of a failpoint is not a literal", path)
				return true
			}
			name, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Error(err)
			}
			if slices.Contains(names, name) {
				t.Errorf("%s: the failpoint %s is there twice", path, name)
			}
			names = append(names, name)
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}
