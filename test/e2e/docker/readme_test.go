//go:build e2e

package docker_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// block is a fenced shell block of README.md.
type block struct {
	line int
	text string
	why  string // it is not run; empty for the others
}

var (
	fence  = regexp.MustCompile(`^\x60\x60\x60(\w*)$`)
	notRun = regexp.MustCompile(`^<!-- not run here: (.+) -->$`)
)

// readmeBlocks returns the shell blocks of a Markdown text.
func readmeBlocks(t *testing.T, text string) (all []block) {
	t.Helper()
	var now *block
	why := ""
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case now == nil && m != nil && m[1] == "sh":
			now = &block{line: i + 2, why: why}
		case now != nil && m != nil:
			all = append(all, *now)
			now = nil
		case now != nil:
			now.text += line + "\n"
		case m != nil:
			t.Fatalf("README.md:%d: a block that is not marked as sh", i+1)
		}
		why = ""
		if m := notRun.FindStringSubmatch(line); m != nil {
			why = m[1]
		}
	}
	return all
}

// README's shell blocks work exactly as printed, one after the other, on a host with Docker
// and with the tree. A block that is marked is not run; the mark says why.
func TestReadme(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	needs(t, ownKernel)
	top, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(top, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	r := rig{Host: privatehost.Start(t, privatehost.Options{Docker: true, Kuryr: kuryr, KuryrLater: true})}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	// The host shares the machine's files: programs are built and installed above them.
	for i, dir := range []string{"/usr/local/bin", filepath.Join(top, "bin")} {
		r.must(t, "sh", "-ec", fmt.Sprintf(`mkdir -p %[1]s /run/readme/%[2]d/upper /run/readme/%[2]d/work
			mount -t overlay overlay %[1]s \
			-o lowerdir=%[1]s,upperdir=/run/readme/%[2]d/upper,workdir=/run/readme/%[2]d/work`, dir, i))
	}
	r.must(t, "sh", "-ec", "rm -f /usr/local/bin/kuryr; ip link set lo up")
	// The world's 8.8.8.8 is the neighbour here, and its image nginx, for lack of a registry,
	// one of the tests' own.
	if res := r.outside("sh", "-ec", "ip link set lo up; ip addr add 8.8.8.8/32 dev lo"); !res.OK() {
		t.Fatal(res)
	}
	if err := importBox(ctx, r.Host); err != nil {
		t.Fatal(err)
	}
	r.docker(t, "create", "--name", "server", "box")
	r.docker(t, "commit", "-c", `CMD ["probe", "serve", "80"]`, "server", "nginx")
	r.docker(t, "rm", "server")
	r.must(t, "sh", "-ec", `mount -t tmpfs none /opt
		mkdir -p /opt/cni/bin /etc/containers /run/docker-config
		echo '{}' >/run/docker-config/config.json
		cat >/etc/containers/containers.conf <<-end
			[network]
			network_backend = "cni"
			cni_plugin_dirs = ["/opt/cni/bin"]
			[engine]
			runtime = "runc"
			cgroup_manager = "cgroupfs"
			events_logger = "none"
		end
		cat >/etc/containers/storage.conf <<-end
			[storage]
			driver = "vfs"
			runroot = "/run/containers/storage"
			graphroot = "/var/lib/containers/storage"
		end
		docker save -o /run/readme/nginx.tar nginx
		podman load -i /run/readme/nginx.tar`)
	ran := 0
	for _, b := range readmeBlocks(t, string(text)) {
		if b.why != "" {
			t.Logf("README.md:%d is not run here: %s", b.line, b.why)
			continue
		}
		ran++
		// Its daemons go on after it, as in a user's shell, and write to a file.
		log := fmt.Sprintf("/run/readme/%d.log", b.line)
		script := "cd " + top + "; export TMPDIR=/run/readme; set -eux -o pipefail\n" + b.text
		res := r.Exec(ctx, "bash", "-c", `bash -c "$1" >`+log+` 2>&1 </dev/null`, "bash", script)
		if !res.OK() {
			t.Fatalf("README.md:%d: exit %d\n%s", b.line, res.Code, r.sh("cat", log).Stdout)
		}
		r.afterBlock(t, b)
	}
	if ran < 5 {
		t.Errorf("only %d blocks of README.md are run", ran)
	}
}

// afterBlock checks what a block promises, and removes what it leaves.
func (r rig) afterBlock(t *testing.T, b block) {
	t.Helper()
	switch {
	case strings.Contains(b.text, "down --purge"):
		for _, path := range []string{"/var/lib/kuryr/kuryr.db", "/run/kuryr/kuryr.sock"} {
			if res := r.sh("test", "-e", path); res.OK() {
				t.Errorf("README.md:%d leaves %s", b.line, path)
			}
		}
	case strings.Contains(b.text, "-p 8080:80"):
		if res := r.outside(probe, "tcp", at(host4, 8080)); !res.OK() {
			t.Errorf("README.md:%d: the published port does not answer: %s", b.line, res)
		}
	case strings.Contains(b.text, "podman run"):
		web := r.docker(t, "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", "web")
		r.must(t, "podman", "exec", "db", "probe", "tcp", web+":80")
		r.must(t, "sh", "-ec", `podman rm -f -t 0 db; docker rm -f web; docker network rm blue
			kuryr network delete blue; kuryr down --purge`)
	case strings.Contains(b.text, "kuryr docker"):
		r.docker(t, createArgs("shared", "--subnet", "10.10.1.0/24")...)
		r.docker(t, "network", "rm", "shared")
		r.must(t, "/usr/local/bin/kuryr", "down", "--purge") // as the block finds it
		eventually(t, 10*time.Second, func() string {
			if res := r.sh("pgrep", "-a", "kuryr"); res.OK() {
				return "still running: " + res.Stdout
			}
			return ""
		})
	}
}
