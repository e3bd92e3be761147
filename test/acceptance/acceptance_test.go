//go:build e2e

// Package acceptance_test runs gophercloud's own acceptance tests for networking and load
// balancing against "kuryr sdn --store-only". The tests are those of the gophercloud module in
// go.mod. The file "list" names each of them that does not pass, with its reason.
//
// KURYR_BIN is the program to test (bin/kuryr).
package acceptance_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	module   = "github.com/gophercloud/gophercloud/v2"
	packages = module + "/internal/acceptance/openstack/"
	password = "correct-horse"
)

// Each test of gophercloud is a subtest. One that the list names is skipped with its reason, and
// fails if it passes.
func TestGophercloud(t *testing.T) {
	outcomes := run(t, start(t))
	listed := readList(t)
	for _, name := range slices.Sorted(maps.Keys(outcomes)) {
		got := outcomes[name]
		t.Run(name, func(t *testing.T) {
			reason, ok := listed[name]
			switch {
			case got.action == "pass" && ok:
				t.Errorf("the test passes; take it off the list (%s)", reason)
			case got.action == "pass":
			case ok:
				t.Skip(reason)
			default:
				t.Errorf("%s\n%s", got.action, got.output)
			}
		})
	}
	for name := range listed {
		if _, ok := outcomes[name]; !ok {
			t.Errorf("the list names %s, which is not a test", name)
		}
	}
}

// outcome is how a test ended.
type outcome struct{ action, output string }

// readList reads the list: the test's package and name, "out" (of scope) or "fails", the reason.
func readList(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("list")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[1] != "out" && fields[1] != "fails" {
			t.Fatalf("invalid line %q: want TEST, out or fails, and the reason", line)
		}
		if _, twice := listed[fields[0]]; twice {
			t.Fatalf("the list names %s twice", fields[0])
		}
		listed[fields[0]] = strings.Join(fields[1:], " ")
	}
	return listed
}

// run runs the tests, one package at a time, because they share the SDN. Names are those of the
// package below the openstack folder and of the test: "networking/v2/TestNetworksCRUD".
func run(t *testing.T, env []string) map[string]outcome {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil || strings.TrimSpace(string(dir)) == "" {
		t.Fatalf("the module %s is not there: %v %s", module, err, dir)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-mod=readonly", "-tags", "acceptance", "-json", "-count=1",
		"-p", "1", "-parallel", "1", "-timeout", "10m", packages+"networking/...", packages+"loadbalancer/...")
	cmd.Dir = strings.TrimSpace(string(dir))
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output() // it fails when a test fails
	outcomes, output := map[string]outcome{}, map[string]string{}
	decoder := json.NewDecoder(bytes.NewReader(out))
	for {
		var e struct{ Action, Package, Test, Output, ImportPath string }
		if decodeErr := decoder.Decode(&e); decodeErr == io.EOF {
			break
		} else if decodeErr != nil {
			t.Fatalf("read the events: %v", decodeErr)
		}
		name := strings.TrimPrefix(e.Package, packages)
		top, _, sub := strings.Cut(e.Test, "/")
		if e.Test != "" {
			name += "/" + top
		}
		switch {
		case e.Action == "output" || e.Action == "build-output":
			output[name] += e.Output
		case e.Action == "build-fail":
			t.Fatalf("build %s:\n%s%s", e.ImportPath, output[name], stderr.String())
		case e.Test != "" && !sub && slices.Contains([]string{"pass", "fail", "skip"}, e.Action):
			outcomes[name] = outcome{e.Action, output[name]}
		}
	}
	if len(outcomes) == 0 {
		t.Fatalf("no test ran: %v\n%s", err, stderr.String())
	}
	return outcomes
}

// start starts the SDN, which ends with the test, and returns the environment of its
// administrator with an external network.
func start(t *testing.T) []string {
	t.Helper()
	kuryr, err := filepath.Abs(cmp.Or(os.Getenv("KURYR_BIN"), "../../bin/kuryr"))
	must(t, err)
	dir := t.TempDir()
	hash := exec.Command(kuryr, "sdn", "password", "admin", "admin", "admin")
	hash.Stdin = strings.NewReader(password + "\n")
	user, err := hash.Output()
	must(t, err)
	tokens := filepath.Join(dir, "tokens")
	must(t, os.WriteFile(tokens, user, 0o600))
	ready, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "n"), Net: "unixgram"})
	must(t, err)
	defer ready.Close()
	// An address of the loopback network that no other program of the machine takes in between.
	loopback := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	listener, err := net.Listen("tcp", loopback+":0")
	must(t, err)
	address := listener.Addr().String()
	must(t, listener.Close())

	cmd := exec.Command(kuryr, "sdn", "--store-only", "--state-dir", filepath.Join(dir, "s"),
		"--run-dir", filepath.Join(dir, "r"), "--sdn-rate", "0", "--sdn-listen", address, "--insecure-http",
		"--sdn-tokens", tokens)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+filepath.Join(dir, "n"))
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("kuryr sdn: %v\n%s", err, log.String())
		}
	})
	must(t, ready.SetReadDeadline(time.Now().Add(time.Minute)))
	for said, buffer := "", make([]byte, 1024); !strings.Contains(said, "READY=1"); {
		n, err := ready.Read(buffer)
		must(t, err)
		said = string(buffer[:n])
	}
	return []string{
		"OS_AUTH_URL=http://" + address + "/v3", "OS_USERNAME=admin", "OS_PASSWORD=" + password,
		"OS_PROJECT_NAME=admin", "OS_DOMAIN_NAME=Default", "OS_REGION_NAME=RegionOne", "OS_BRANCH=master",
		"OS_EXTGW_ID=" + external(t, filepath.Join(dir, "r", "sdn.sock")),
		// They must be set, and no test here uses them.
		"OS_IMAGE_ID=1", "OS_FLAVOR_ID=1", "OS_FLAVOR_ID_RESIZE=2", "OS_POOL_NAME=outside",
	}
}

// external creates an external network with a subnet and returns its ID.
func external(t *testing.T, socket string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{
		Dial: func(string, string) (net.Conn, error) { return net.Dial("unix", socket) },
	}}
	defer client.CloseIdleConnections()
	post := func(path, body string) (answer map[string]struct{ ID string }) {
		t.Helper()
		response, err := client.Post("http://kuryr/v2.0/"+path, "application/json", strings.NewReader(body))
		must(t, err)
		defer response.Body.Close()
		if response.StatusCode != http.StatusCreated {
			t.Fatalf("create %s: %s", path, response.Status)
		}
		must(t, json.NewDecoder(response.Body).Decode(&answer))
		return answer
	}
	id := post("networks", `{"network": {"name": "outside", "router:external": true}}`)["network"].ID
	post("subnets", fmt.Sprintf(
		`{"subnet": {"network_id": %q, "ip_version": 4, "cidr": "198.51.100.0/24", "enable_dhcp": false}}`, id))
	return id
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
