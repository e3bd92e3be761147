// Package helm holds the chart of deploy/kubernetes to Helm itself: its own loader, linter and template engine read the chart, and what they give is held against
// "kuryr install kubernetes", which renders the same templates without Helm.
//
// It is a module of its own, so that Helm's dependencies are not Kuryr's. It must not know how Kuryr renders: it runs the program, whose path is KURYR ("make helm").
package helm

import (
	"cmp"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/strvals"
	"sigs.k8s.io/yaml"
)

const (
	folder = "../../deploy/kubernetes"
	system = "kuryr-system"
)

// digest is one of an image.
var digest = "sha256:" + strings.Repeat("0a", 32)

// values are what a user gives to either: the text of a file of values, and after it single ones, as --set has them.
type values struct {
	file string
	set  []string
}

func (v values) and(more ...string) values {
	return values{v.file, slices.Concat(v.set, more)}
}

// objects are what is installed, by kind and name.
type objects map[string]map[string]any

func read(t *testing.T, text string) objects {
	t.Helper()
	all := objects{}
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		object := map[string]any{}
		if err := yaml.Unmarshal([]byte(document+"\n"), &object); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if len(object) == 0 {
			continue
		}
		metadata, _ := object["metadata"].(map[string]any)
		name, _ := metadata["name"].(string)
		kind, _ := object["kind"].(string)
		if all[kind+" "+name] != nil {
			t.Errorf("%s %s is there twice", kind, name)
		}
		all[kind+" "+name] = object
	}
	return all
}

// program is the kuryr that the chart is of.
func program(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path := os.Getenv("KURYR")
	if path == "" {
		t.Fatal("KURYR does not name the program: make helm")
	}
	var complaint strings.Builder
	c := exec.CommandContext(t.Context(), path, args...)
	c.Stderr = &complaint
	out, err := c.Output()
	if err != nil {
		t.Logf("%s: %s", strings.Join(args, " "), complaint.String())
	}
	return string(out), err
}

// byKuryr is what "kuryr install kubernetes" prints, which makes the namespace unless told otherwise.
func byKuryr(t *testing.T, v values) (objects, error) {
	t.Helper()
	args := []string{"install", "kubernetes", "--namespace", system}
	if v.file != "" {
		path := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(path, []byte(v.file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--values", path)
	}
	for _, s := range v.set {
		args = append(args, "--set", s)
	}
	out, err := program(t, args...)
	return read(t, out), err
}

// load reads the chart, packaged with the program's version, as "helm package --app-version" does.
func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	said, err := program(t, "version")
	words := strings.Fields(said)
	if err != nil || len(words) < 2 {
		t.Fatalf("no version: %q, %v", said, err)
	}
	c.Metadata.AppVersion = words[1]
	return c
}

// byHelm is what helm installs.
func byHelm(t *testing.T, v values) (objects, error) {
	t.Helper()
	return byEngine(t, engine.Engine{Strict: true}, v)
}

// byEngine is what helm installs where its engine has a cluster, or none.
func byEngine(t *testing.T, e engine.Engine, v values) (objects, error) {
	t.Helper()
	files, err := renderFiles(t, e, v)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(path, ".yaml") { // the others only define what these use
			text.WriteString(files[path] + "\n---\n")
		}
	}
	for _, crd := range load(t).CRDObjects() {
		text.Write(crd.File.Data)
		text.WriteString("\n---\n")
	}
	return read(t, text.String()), nil
}

// renderFiles renders the chart's templates, by their paths.
func renderFiles(t *testing.T, e engine.Engine, v values) (map[string]string, error) {
	t.Helper()
	c := load(t)
	given := map[string]any{}
	if err := yaml.Unmarshal([]byte(v.file), &given); err != nil {
		t.Fatal(err)
	}
	for _, s := range v.set {
		if err := strvals.ParseInto(s, given); err != nil {
			t.Fatal(err)
		}
	}
	all, err := util.ToRenderValues(c, given, common.ReleaseOptions{Name: "any", Namespace: system, Revision: 1, IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	return e.RenderWithContext(t.Context(), c, all)
}

// same has both install with these values and tells where they differ.
func same(t *testing.T, v values) objects {
	t.Helper()
	ours, err := byKuryr(t, v)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := byHelm(t, v)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(ours, theirs); diff != "" {
		t.Errorf("kuryr (-) and helm (+) install different objects:\n%s", diff)
	}
	return theirs
}

// With nothing said both install the same, but that Kuryr makes the namespace, which is helm's --create-namespace.
func TestDefaults(t *testing.T) {
	t.Parallel()
	ours, err := byKuryr(t, values{})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := byHelm(t, values{})
	if err != nil {
		t.Fatal(err)
	}
	const namespace = "Namespace " + system
	if ours[namespace] == nil || theirs[namespace] != nil {
		t.Errorf("the namespace is Kuryr's %v, and helm's %v", ours[namespace], theirs[namespace])
	}
	delete(ours, namespace)
	if diff := gocmp.Diff(ours, theirs); diff != "" || len(ours) < 25 {
		t.Errorf("%d objects; kuryr (-) and helm (+) install different ones:\n%s", len(ours), diff)
	}
}

// changes has for each value of the chart another one, by its key, and what else has to be set so that it counts.
var changes = map[string]struct {
	file  string
	set   string
	among []string
}{
	"createNamespace":  {set: "createNamespace=true"},
	"image.repository": {set: "image.repository=registry.example:5000/kuryr"},
	"image.tag":        {set: "image.tag=1.0"}, // looks like a number
	"image.digest":     {set: "image.digest=" + digest},
	"image.pullPolicy": {set: "image.pullPolicy=Always"},
	"imagePullSecrets": {file: "imagePullSecrets: [{name: a}, {name: b}]"},
	"provider":         {set: "provider=neutron"},
	"installation":     {set: "installation=blue-1"},
	"neutron.secret":   {set: "neutron.secret=cloud", among: []string{"provider=neutron"}},
	"neutron.cloud":    {set: "neutron.cloud=prod", among: []string{"provider=neutron"}},
	"apiServer.host":   {set: "apiServer.host=192.0.2.1"},
	"apiServer.port":   {set: "apiServer.port=6443"},
	"config": {file: "config: {log: {level: debug}, controller: {pod_ranges: [10.32.0.0/11, 'fd00:1::/48'], " +
		"max_ports: 1234567, underlay_isolation: true, node_networks: [192.0.2.0/24]}}"},
	"services":                {set: "services=false"},
	"loadBalancers":           {set: "loadBalancers=node"},
	"ravenConf":               {file: "ravenConf: |\n  [DEFAULT]\n  debug = true\n\n  [neutron_defaults]\n  project = a: {b}\n"},
	"controller.replicas":     {set: "controller.replicas=3", among: []string{"provider=neutron"}},
	"controller.port":         {set: "controller.port=9000"},
	"controller.nodeSelector": {set: "controller.nodeSelector.disk=ssd"},
	"controller.resources":    {file: "controller: {resources: {requests: {cpu: 2}, limits: {memory: 1Gi}}}"},
	"node.nodeSelector":       {file: "node: {nodeSelector: {example.org/network: kuryr, kubernetes.io/arch: amd64}}"},
	"node.resources":          {set: "node.resources.limits.memory=1Gi"},
	"node.binDir":             {set: "node.binDir=/usr/lib/cni"},
	"node.specDir":            {set: "node.specDir="},
	"node.confDir":            {set: "node.confDir=/etc/cni/other"},
	"node.config":             {set: "node.config.node.wait_active=20s"},
	"sdn.nodeSelector":        {set: "sdn.nodeSelector.disk=ssd"},
	"sdn.resources":           {set: "sdn.resources.limits.cpu=1500m"},
}

// keys are those of all values; what anything may be set below is one.
func keys(prefix string, below map[string]any) (all []string) {
	for name, value := range below {
		inner, _ := value.(map[string]any)
		if len(inner) > 0 && name != "resources" {
			all = append(all, keys(prefix+name+".", inner)...)
			continue
		}
		all = append(all, prefix+name)
	}
	return all
}

// Each value changes what is installed, and in the same way.
func TestEachValue(t *testing.T) {
	t.Parallel()
	for _, key := range keys("", load(t).Values) {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			c, there := changes[key]
			if !there {
				t.Fatal("nothing is tried with this value")
			}
			before := values{}.and("createNamespace=false").and(c.among...)
			after := values{file: c.file, set: before.set}
			if c.set != "" {
				after = after.and(c.set)
			}
			if gocmp.Equal(same(t, before), same(t, after)) {
				t.Error("it changes nothing")
			}
		})
	}
}

// The setting of a daemon that needs more rights brings them, in both ways of writing it.
func TestNodeServices(t *testing.T) {
	t.Parallel()
	const role = "ClusterRole kuryr-node"
	without := same(t, values{set: []string{"createNamespace=false", "services=false"}})[role]
	for _, file := range []string{
		"node: {config: {node: {services: true}}}", "node: {config: {node.services: true}}", "services: true", "",
	} {
		with := same(t, values{file: file, set: []string{"createNamespace=false"}})[role]
		if more := len(with["rules"].([]any)) - len(without["rules"].([]any)); more != 2 {
			t.Errorf("%s: %d rules more", file, more)
		}
	}
}

// Several at once, as a cluster on Neutron that has everything of its own.
func TestEverything(t *testing.T) {
	t.Parallel()
	all := values{}
	for _, key := range slices.SortedFunc(maps.Keys(changes), func(a, b string) int { return cmp.Compare(b, a) }) {
		c := changes[key]
		if c.set != "" {
			all = all.and(c.set)
		}
		if c.file != "" && !strings.HasPrefix(c.file, "controller:") && !strings.HasPrefix(c.file, "node:") { // each key once in a file
			all.file += strings.TrimSuffix(c.file, "\n") + "\n"
		}
	}
	same(t, all)
}

// What Kuryr refuses to install helm refuses too.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, set := range []string{
		"provider=ovn", "installation=Blue", "installation=a-name-that-is-longer-than-thirty-six-characters", "nodes=3", "node.bindir=/x", "image.colour=red",
		"controller.replicas=many", "createNamespace=perhaps", "imagePullSecrets=a", "config=3", "node.resources=much", "loadBalancers=both",
		"config.controller.servics=true", "config.controller.pod_ranges={banana}", "config.log.level=loud",
		"config.controller.pod_ranges={10.0.0.0/33}", "config.controller.workers=many", "node.config.nodes=1",
		"node.config.node.services=perhaps", "services=maybe", "image.digest=sha256:1",
		"image.digest=" + strings.ToUpper(digest),
		"ravenConf=[neutron]\nauth_type = password\npassword : a\n", "ravenConf=[neutron]\ntoken=a",
	} {
		_, ours := byKuryr(t, values{}.and(set))
		_, theirs := byHelm(t, values{}.and(set))
		if ours == nil || theirs == nil {
			t.Errorf("%s: kuryr says %v, helm %v", set, ours, theirs)
		}
	}
	// Here helm would make a number of a text, which Kuryr does not.
	if _, err := byHelm(t, values{}.and("image.tag=20261122")); err == nil || !strings.Contains(err.Error(), "/image/tag") {
		t.Errorf("a number as the image's tag: %v", err)
	}
}

// As part of another chart it has that one's global values beside its own.
func TestGlobalValues(t *testing.T) {
	t.Parallel()
	if _, err := byHelm(t, values{}.and("global.registry=here")); err != nil {
		t.Error(err)
	}
}

func TestLint(t *testing.T) {
	t.Parallel()
	for _, provider := range []string{"embedded", "neutron"} {
		result := lint.RunAll(folder, map[string]any{"provider": provider, "createNamespace": true}, system)
		for _, m := range result.Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", provider, m)
			}
		}
		if result.HighestSeverity > support.InfoSev {
			t.Errorf("%s: severity %d", provider, result.HighestSeverity)
		}
	}
}

// The chart of a release runs the image of the release.
func TestReleasedChart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pack := func(version, digest string) error {
		return exec.CommandContext(t.Context(), "../../hack/chart.sh", version, digest, dir).Run()
	}
	for _, bad := range [][2]string{{"", digest}, {"1.2", digest}, {"1.2.3", ""}, {"1.2.3", "sha256:1"}} {
		if err := pack(bad[0], bad[1]); err == nil {
			t.Errorf("version %q with digest %q makes a chart", bad[0], bad[1])
		}
	}
	if err := pack("1.2.3", digest); err != nil {
		t.Fatal(err)
	}
	c, err := loader.Load(filepath.Join(dir, "kuryr-1.2.3.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	image, _ := c.Values["image"].(map[string]any)
	if c.Metadata.Version != "1.2.3" || c.Metadata.AppVersion != "1.2.3" || image["digest"] != digest {
		t.Errorf("version %s, appVersion %s, image %v", c.Metadata.Version, c.Metadata.AppVersion, image)
	}
	if n := len(c.CRDObjects()); n != 4 || c.Validate() != nil {
		t.Errorf("%d CRDs, %v", n, c.Validate())
	}
}

// The chart is what is deployed and nothing else, and says which releases of Kubernetes it is for, builds of vendors among them.
func TestChart(t *testing.T) {
	t.Parallel()
	c := load(t)
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	for _, f := range c.Files {
		if !strings.HasPrefix(f.Name, "crds/") && f.Name != ".helmignore" {
			t.Errorf("the chart has %s", f.Name)
		}
	}
	if n := len(c.CRDObjects()); n != 4 {
		t.Errorf("%d CRDs", n)
	}
	for version, fits := range map[string]bool{"v1.31.9": false, "v1.32.0": true, "v1.35.4": true, "v1.33.1-gke.100": true, "v1.34.2+k3s1": true} {
		if chartutil.IsCompatibleRange(c.Metadata.KubeVersion, version) != fits {
			t.Errorf("Kubernetes %s: want %v by %q", version, fits, c.Metadata.KubeVersion)
		}
	}
}
