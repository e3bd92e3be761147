//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/doctor"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

func TestDoctorOutput(t *testing.T) {
	t.Parallel()
	report := doctorReport{
		Verdict: doctor.Problem, Fixed: []string{"removed a\x1b[1m network"}, Failed: []string{"the kernel: busy"},
		Findings: []doctor.Finding{
			{Check: "store and kernel", Verdict: doctor.Problem, What: "route is missing", Remediation: "`kuryr doctor --fix`"},
			{Check: "kuryr", Verdict: doctor.OK, What: "it runs"},
		},
	}
	for format, want := range map[table.Format]string{
		table.Table: "fixed: removed a�[1m network\n" + `failed: the kernel: busy
VERDICT   CHECK              WHAT
problem   store and kernel   route is missing
                             to repair it: ` + "`kuryr doctor --fix`" + `
ok        kuryr              it runs
1 fixed, 1 needs you: kuryr doctor --fix
`,
		table.YAML: `verdict: problem
fixed:
  - "removed a\e[1m network"
failed:
  - "the kernel: busy"
findings:
  - check: "store and kernel"
    verdict: problem
    what: "route is missing"
    mend: "` + "`kuryr doctor --fix`" + `"
  - check: kuryr
    verdict: ok
    what: "it runs"
`,
	} {
		var out buffer
		err := (&app{out: &out}).printDoctor(format, report, doctorOptions{fix: true})
		if err != nil || out.String() != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", format, err, out.String(), want)
		}
	}
	var out buffer
	err := (&app{out: &out}).printDoctor(table.JSON, report, doctorOptions{})
	if err != nil || !json.Valid([]byte(out.String())) {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestDoctorUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"doctor", "--now"}, {"doctor", "--forget-engine", "x"}, {"doctor", "-o", "xml"}, {"doctor", "web"}} {
		if code, _, complaint := kuryr(t.Context(), nil, args...); code != exitUsage || complaint == "" {
			t.Errorf("kuryr %v: exit %d, %s", args, code, complaint)
		}
	}
}

func TestDriverNames(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		config config.Docker
		want   string
	}{
		{config.Docker{Socket: "/run/docker/plugins/kuryr.sock"}, "kuryr"},
		{config.Docker{Socket: "/run/docker/plugins/blue/blue.sock"}, "blue"},
		{config.Docker{Socket: "/run/docker/plugins/blue.sock", Listen: "tcp://127.0.0.1:1"}, "blue kuryr"},
		{config.Docker{Socket: "/srv/blue.sock"}, "blue kuryr"}, // by kuryr.spec of `kuryr docker install`, or blue.spec
		{config.Docker{Socket: "/srv/kuryr.sock", Listen: "tcp://127.0.0.1:1"}, "kuryr"},
		{config.Docker{Listen: "tcp://127.0.0.1:1"}, "kuryr"},
	} {
		if got := strings.Join(driverNames(tc.config), " "); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.config, got, tc.want)
		}
	}
}

// The entry point by which a managed plugin is told to be Kuryr is that of its folder.
func TestManagedIsFound(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/docker-plugin/config.json")
	if err != nil {
		t.Fatal(err)
	}
	var folder map[string]any
	if err := json.Unmarshal(text, &folder); err != nil {
		t.Fatal(err)
	}
	foreign := map[string]any{"entrypoint": []string{"/bin/weave"}, "interface": folder["interface"]}
	answer, err := json.Marshal([]map[string]any{
		{"Name": "store/weave:latest", "Enabled": true, "Config": foreign}, {"Name": "example/net:1", "Enabled": false, "Config": folder},
	})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) }))
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	api := engine.New(socket)
	defer api.Close()
	if got, err := managed(t.Context(), api); err != nil || !slices.Equal(got, []doctor.Managed{{Name: "example/net:1"}}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// fakeDocker answers as an engine that has one network and one container on it, and knows who it is.
func fakeDocker(t *testing.T, socket string, networks *atomic.Value) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers := map[string]string{
			"/info":              `{"ID":"AB:CD","ServerVersion":"20.10.24"}`,
			"/networks":          networks.Load().(string),
			"/plugins":           `[]`,
			"/containers/json":   `[{"Id":"c","Names":["/down"],"State":"exited","NetworkSettings":{"Networks":{"blue":{"EndpointID":""}}}},{"Id":"d","Names":["/lost"],"State":"running","NetworkSettings":{"Networks":{"blue":{"EndpointID":"e9","NetworkID":"` + networkID + `"}}}}]`,
			"/containers/c/json": `{"State":{"Status":"exited","Error":"network blue: plugin kuryr not found"},"HostConfig":{"RestartPolicy":{"Name":"always"}}}`,
		}
		if r.URL.Path == "/events" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		answer, ok := answers[r.URL.Path]
		if !ok {
			answer = `{"Containers":{}}`
		}
		_, _ = w.Write([]byte(answer))
	}))
	server.Listener = l
	server.Start()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
}

const onlyNone = `{"Id":"n0","Name":"none","Driver":"null"}`

// The doctor with a real kuryr and an engine that is made up: what Docker knows, what it forgets, and --fix.
func TestDoctorRuns(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	var networks atomic.Value
	networks.Store("[" + onlyNone + `,{"Id":"` + networkID + `","Name":"blue","Driver":"kuryr","IPAM":{"Driver":"kuryr","Config":[{"Subnet":"10.77.0.0/24"}]}}]`)
	look := func(args ...string) (doctorReport, int) {
		t.Helper()
		code, out, complaint := m.run(t, append([]string{"doctor", "-o", "json"}, args...)...)
		var r doctorReport
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("exit %d: %s%s", code, out, complaint)
		}
		return r, code
	}
	found := func(r doctorReport, verdict doctor.Verdict, what string) bool {
		return slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool { return f.Verdict == verdict && strings.Contains(f.What, what) })
	}
	says := func(r doctorReport, verdict doctor.Verdict, what string) {
		t.Helper()
		if !found(r, verdict, what) {
			t.Errorf("no %s that says %q: %+v", verdict, what, r.Findings)
		}
	}
	r, code := look()
	if code != exitError {
		t.Errorf("exit %d though kuryr does not run", code)
	}
	says(r, doctor.Problem, "kuryr is not running")
	says(r, doctor.Problem, "the Docker engine does not answer")
	says(r, doctor.OK, "it has all that the data path needs")

	stop, _ := m.up(t)
	m.plug(t)
	fakeDocker(t, m.path("docker.sock"), &networks)
	wait := func(what string, until func() bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for !until() {
			select {
			case <-ctx.Done():
				t.Fatal(errors.New("waited in vain until " + what))
			case <-tick.C:
			}
		}
	}
	// The engine comes. The network is noted as its own, and the endpoint that no container has is an orphan.
	m.call(t, "Plugin.Activate", `{}`)
	wait("the network is noted", func() bool {
		rows, err := admin.NewClient(m.path("run/kuryr.sock")).Intents(t.Context())
		return err == nil && strings.Contains(string(rows["network/"+networkID]), `"engine":`)
	})
	r, code = look()
	if code != exitError {
		t.Errorf("exit %d though a container is down", code)
	}
	says(r, doctor.Problem, "container down should run (restart policy always)")
	says(r, doctor.Problem, "container lost (endpoint e9) runs, and the SDN does not have its endpoint")
	says(r, doctor.Warning, "endpoint "+endpointID+" is forgotten")

	// The network goes too: nothing is removed before its time, and all on demand when it was not touched just now.
	networks.Store("[" + onlyNone + "]")
	// What was changed less than 10 seconds ago may be in the making: it is not told.
	wait("it is told", func() bool {
		r, _ = look("--fix")
		return found(r, doctor.Warning, "network "+networkID+" is forgotten")
	})
	wait("it is removed on demand", func() bool {
		r, _ = look("--fix", "--now")
		return !found(r, doctor.Warning, "is forgotten")
	})
	for _, f := range r.Findings {
		if f.Check == "docker's memory" && f.Verdict != doctor.OK {
			t.Errorf("still %+v", f)
		}
	}
	if out := m.must(t, "network", "list", "-o", "json"); strings.Contains(out, networkID[:32]) {
		t.Errorf("the network is there: %s", out)
	}
	networks.Store("[]") // an answer that cannot be whole
	r, _ = look()
	says(r, doctor.Warning, "Kuryr could not compare with Docker")
	if code := stop(); code != 0 {
		t.Errorf("ended with %d", code)
	}
}

// What a project's router keeps from the host is told by the status; nothing is to be mended.
func TestDoctorLeavesProjects(t *testing.T) {
	status := admin.Status{Unreached: []admin.Unreached{
		{Router: "edge", Prefix: "10.5.0.0/24", Reason: sdn.UnreachedProject}, {Router: "blue", Prefix: "10.6.0.0/24", Reason: "overlaps the host's route"}}}
	got := new(examination).routes(t.Context(), status, false, doctor.RouteFacts{}).Unreached
	if len(got) != 1 || got[0].Router != "blue" {
		t.Errorf("the doctor looks at %+v", got)
	}
}
