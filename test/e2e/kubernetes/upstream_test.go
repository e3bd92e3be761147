//go:build e2e

package kubernetes_test

import (
	"cmp"
	"context"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// upstreamEnv names the folder that "hack/kubernetes.sh upstream" printed; proxyEnv, if
// set, has kube-proxy and the reference plugins be tested in place of Kuryr; neutronEnv
// has two nodes on a real Neutron without Octavia, each of whose kernels balances.
// focusEnv chooses tests: by an expression, "ci" for CI's list, or "2/4" for the second
// quarter of all. logEnv is a file for ginkgo's output.
const (
	upstreamEnv = "KURYR_E2E_UPSTREAM"
	proxyEnv    = "KURYR_E2E_UPSTREAM_PROXY"
	neutronEnv  = "KURYR_E2E_UPSTREAM_NEUTRON"
	focusEnv    = "KURYR_E2E_UPSTREAM_FOCUS"
	logEnv      = "KURYR_E2E_UPSTREAM_LOG"
)

// upstreamClaimed is the external address that one of the tests claims.
const upstreamClaimed = "203.0.113.250/32"

// floatingRange is where the embedded SDN's floating IPs are, the first of sdn.uplink_ranges.
const floatingRange = "100.64.0.0/16"

func upstreamPrograms(t *testing.T) string {
	t.Helper()
	programs := os.Getenv(upstreamEnv)
	if programs == "" {
		t.Fatalf("%s is not set: run \"make e2e-kubernetes\"", upstreamEnv)
	}
	return programs
}

// Kubernetes' own tests of sig-network, by its own program, on a cluster without kube-proxy.
func TestUpstream(t *testing.T) {
	programs := upstreamPrograms(t)
	var r *rig
	switch {
	case os.Getenv(neutronEnv) != "":
		ranges := []string{
			"--controller-pod-ranges", podRange + "," + podRange6, "--controller-service-ranges",
			kubelab.ServiceRange + "," + kubelab.ServiceRange6, "--controller-node-ranges",
			nodeRange + "," + nodeRange6,
		}
		s := startStack(
			t, "two nodes on Neutron", upstreamOptions(t, programs, 2),
			append([]string{"--node-load-balancers=node"}, daemonServices...),
			append(ranges, "--controller-services=true", "--controller-load-balancers=node")...,
		)
		s.leadBack()
		r = s.rig
		r.must(r.DeployDNS(r.ctx))
	case os.Getenv(proxyEnv) != "":
		opts := upstreamOptions(t, programs, 1)
		opts.Booted = func(ctx context.Context, n *kubelab.Node) error {
			if err := kubelab.ReferenceNetwork(ctx, n); err != nil {
				return err
			}
			return n.StartProxy(ctx)
		}
		r = start(t, "kube-proxy and the reference plugins run in Kuryr's place", opts)
		r.must(r.WaitReady(r.ctx))
		r.must(r.DeployDNS(r.ctx))
	default:
		r = shareNode(t).rig
	}
	r.must(r.WaitDNS(r.ctx))

	kubeconfig, err := r.Kubeconfig(nil, "administrator", "system:masters")
	r.must(err)
	focus, skip, count := upstreamChosen(t, programs, os.Getenv(focusEnv), len(r.Nodes))
	dir := t.TempDir()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 35*time.Minute)
	defer cancel()
	log, err := os.Create(cmp.Or(os.Getenv(logEnv), filepath.Join(dir, "ginkgo.log")))
	r.must(err)
	defer log.Close()
	// Some tests ask for the number of nodes that they are told, and then take as many as
	// there are: one is enough for them.
	ginkgo := r.Central.Command(
		ctx, "env", "HOME="+dir, "KUBECONFIG="+kubeconfig, filepath.Join(programs, "ginkgo"),
		"--procs=4", "--no-color", "--timeout=34m", "--silence-skips", "--poll-progress-after=90s",
		"--focus="+focus, "--skip="+skip, filepath.Join(programs, "e2e.test"), "--",
		"--kubeconfig="+kubeconfig, "--provider=skeleton", "--num-nodes=2", "--disable-log-dump",
		"--dump-logs-on-failure=false", "--report-dir="+dir)
	ginkgo.Dir, ginkgo.Stdout, ginkgo.Stderr = dir, log, log
	r.must(r.Central.StartCommand(ginkgo))
	ended := ginkgo.Wait()
	reports, err := filepath.Glob(filepath.Join(dir, "junit*.xml"))
	r.must(err)
	if len(reports) == 0 {
		said, _ := os.ReadFile(log.Name())
		t.Fatalf("there is no report: %v: %s", ended, said[max(0, len(said)-4000):])
	}
	ran := 0
	for _, file := range reports {
		ran += report(t, file)
	}
	t.Logf("%d tests of Kubernetes in %s", ran, time.Since(begin).Round(time.Second))
	if ran == 0 || count > 0 && ran != count {
		t.Errorf("%d tests of Kubernetes have run, want %d", ran, count)
	}
	if ended != nil && !t.Failed() {
		t.Errorf("ginkgo failed, and no test: %v", ended)
	}
	for _, s := range upstreamSkipped {
		t.Logf("not run: %s: %s", s.test, s.because)
	}
}

func upstreamOptions(t *testing.T, programs string, nodes int) kubelab.Options {
	t.Helper()
	return kubelab.Options{
		Nodes: nodes, Families: kubelab.DualStack, DNS: true, Egress: true, Images: upstreamImages(t, programs),
	}
}

// upstreamFailure is what a report tells of a test that failed.
type upstreamFailure struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// report makes each test that ran one of Go's, and returns how many they are.
func report(t *testing.T, file string) (ran int) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Suites []struct {
			Cases []struct {
				Name    string `xml:"name,attr"`
				Status  string `xml:"status,attr"`
				Seconds string `xml:"time,attr"`
				Skipped *struct {
					Message string `xml:"message,attr"`
				} `xml:"skipped"`
				Failure *upstreamFailure `xml:"failure"`
				Error   *upstreamFailure `xml:"error"` // a panic, or the end of the time
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &all); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	labels := regexp.MustCompile(`^\[It\] | \[sig-network[^\]]*\]$`)
	for _, suite := range all.Suites {
		for _, c := range suite.Cases {
			// Those that the list leaves out are skipped without a word.
			if !strings.HasPrefix(c.Name, "[It]") || c.Status == "skipped" &&
				(c.Skipped == nil || c.Skipped.Message == "skipped") {
				continue
			}
			ran++
			t.Run(labels.ReplaceAllString(c.Name, ""), func(t *testing.T) {
				t.Logf("%s s", c.Seconds)
				if c.Status == "skipped" {
					t.Errorf("it skips itself, and the list has no reason for that: %s", c.Skipped.Message)
				}
				for _, f := range []*upstreamFailure{c.Failure, c.Error} {
					if f != nil {
						t.Errorf("%s\n%s", f.Message, f.Text)
					}
				}
			})
		}
	}
	return ran
}

// upstreamImages are those that the tests' pods want, made of the machine's own programs,
// with the libraries of each. Where a name is asked for, busybox's own are no use: it is
// static, and cannot load these libraries.
func upstreamImages(t *testing.T, programs string) []kubelab.Image {
	t.Helper()
	version, err := os.ReadFile(filepath.Join(programs, "VERSION"))
	if err != nil {
		t.Fatal(err)
	}
	tools := kubelab.Image{
		Name:     "registry.k8s.io/e2e-test-images/jessie-dnsutils:1.7",
		Programs: map[string]string{"/bin/busybox": "/bin/busybox"}, Links: map[string]string{},
		Texts: map[string]string{
			"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "/etc/group": "root:x:0:\n",
			"/uploads/.keep": "",
		},
	}
	for applet := range strings.FieldsSeq(output(t, "/bin/busybox", "--list")) {
		if applet != "busybox" {
			tools.Links["/bin/"+applet] = "busybox"
		}
	}
	for at, name := range map[string]string{
		"bash": "bash", "sh": "dash", "curl": "curl", "nc": "nc.openbsd", "dig": "dig",
		"nslookup": "nslookup", "getent": "getent", "ip": "ip", "ss": "ss", "ping": "ping",
		"wget": "wget", "conntrack": "conntrack",
	} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("hack/deps.sh upstream has not been run: %v", err)
		}
		delete(tools.Links, "/bin/"+at)
		tools.Programs["/bin/"+at] = program
		for _, library := range regexp.MustCompile(`/\S+\.so\S*`).FindAllString(output(t, "ldd", program), -1) {
			tools.Programs[library] = library
		}
	}
	cluster := os.Getenv(kubelab.ProgramsEnv)
	pause := kubelab.Image{
		Name:     "registry.k8s.io/pause:3.10.1",
		Programs: map[string]string{"/pause": filepath.Join(cluster, "pause")},
		Command:  []string{"/pause"},
	}
	agnhost := tools
	agnhost.Name, agnhost.Entry, agnhost.Command = "registry.k8s.io/e2e-test-images/agnhost:"+
		strings.TrimSpace(string(version)), []string{"/agnhost"}, []string{"pause"}
	agnhost.Programs = map[string]string{
		"/agnhost":       filepath.Join(programs, "agnhost"),
		"/localhost.crt": filepath.Join(programs, "localhost.crt"),
		"/localhost.key": filepath.Join(programs, "localhost.key"),
	}
	for at, from := range tools.Programs {
		agnhost.Programs[at] = from
	}
	return []kubelab.Image{tools, agnhost, pause}
}

func output(t *testing.T, argv ...string) string {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).Output()
	if err != nil {
		t.Fatalf("%v: %v", argv, err)
	}
	return string(said)
}
