//go:build linux

package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
)

// dockerEngine is an engine that knows networks and containers by the ids that they have for
// Kuryr. The commands, but no daemon, ask it.
func (m *machine) dockerEngine(t *testing.T, answers map[string]string) {
	t.Helper()
	l, err := net.Listen("unix", m.path("engine.sock"))
	if err != nil {
		t.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, answer)
	})
	server := &http.Server{Handler: handler} //nolint:gosec // of a test
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	m.env = append(m.env, "DOCKER_HOST=unix://"+m.path("engine.sock"))
}

// The names that users know stand for objects in all commands, and are listed and completed.
func TestUserNames(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	m.up(t)
	m.plug(t)
	// Another network on the same range, which the host cannot reach.
	const second = "3333333333333333333333333333333333333333333333333333333333333333"
	const data = `"IPv4Data":[{"AddressSpace":"local_scope","Pool":"10.77.0.0/24","Gateway":"10.77.0.1/24"}],"IPv6Data":[]`
	answer := m.call(t, "IpamDriver.RequestPool", `{"AddressSpace":"local_scope","Pool":"10.77.0.0/24"}`)
	const gateway = `"Options":{"RequestAddressType":"com.docker.network.gateway"}}`
	m.call(t, "IpamDriver.RequestAddress", `{"PoolID":"`+answer["PoolID"].(string)+`",`+gateway)
	m.call(t, "NetworkDriver.CreateNetwork", `{"NetworkID":"`+second+`","Options":{},`+data+`}`)
	m.dockerEngine(t, map[string]string{
		"/networks": `[{"Id":"` + networkID + `","Name":"blue"},{"Id":"` + second + `","Name":"red"}]`,
		"/containers/json": `[{"Id":"44444444444444444444","Names":["/web"],"State":"running","NetworkSettings":{"Networks":` +
			`{"blue":{"NetworkID":"` + networkID + `","EndpointID":"` + endpointID + `"}}}}]`,
	})
	show := func(args ...string) string { return m.must(t, append(args, "-o", "json")...) }
	for _, c := range []struct{ noun, words string }{
		{"network", "blue " + networkID + " " + networkID[:12]},
		{"port", "web 444444444444 44444444444444444444 " + endpointID[:12]},
		{"subnet", "blue"},
		{"router", "blue"},
	} {
		var first string
		for word := range strings.FieldsSeq(c.words) {
			out := show(c.noun, "show", word)
			if first == "" {
				first = out
			}
			if out != first {
				t.Errorf("kuryr %s show %s shows another than the first:\n%s", c.noun, word, out)
			}
		}
		name, _, _ := strings.Cut(c.words, " ")
		if out := m.must(t, c.noun, "list"); !strings.Contains(out, " "+name+" ") {
			t.Errorf("kuryr %s list does not name %s:\n%s", c.noun, name, out)
		}
		var own struct{ ID, Name string }
		if err := json.Unmarshal([]byte(first), &own); err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{name, own.Name} {
			out := show(c.noun, "list", "--filter", "name="+word)
			if !strings.Contains(out, own.ID) || word == name && strings.Count(out, `"created_at"`) != 1 {
				t.Errorf("kuryr %s list --filter name=%s:\n%s", c.noun, word, out)
			}
		}
		if out := m.must(t, "__complete", c.noun, "show", ""); !strings.Contains(out, name+"\t") {
			t.Errorf("completion of kuryr %s show does not have %s:\n%s", c.noun, name, out)
		}
	}
	if out := m.must(t, "__complete", "network", "delete", ""); !strings.Contains(out, "blue\t") {
		t.Errorf("completion of kuryr network delete does not have blue:\n%s", out)
	}
	if out := show("port", "list", "--filter", "network_id=blue"); !strings.Contains(out, endpointID) {
		t.Errorf("ports of blue:\n%s", out)
	}
	code, _, complaint := m.run(t, "network", "show", "green")
	if code != exitError || !strings.Contains(complaint, `"green"`) {
		t.Errorf("an unknown network: exit %d, %s", code, complaint)
	}

	const warning = "10.77.0.0/24 not reached by the host: overlaps network blue"
	out := m.must(t, "network", "list")
	if strings.Count(out, warning) != 1 || !strings.Contains(out, "WARNING") {
		t.Errorf("the overlapping range is not told of once:\n%s", out)
	}
	_, _, complaint = m.run(t, "network", "create", "late", "--subnet", "10.77.0.0/25")
	if !strings.Contains(complaint, `network "late": 10.77.0.0/25 not reached by the host: overlaps network blue`) {
		t.Errorf("create does not warn of the overlapping range: %s", complaint)
	}
	m.must(t, "network", "delete", "late")
	if out := m.must(t, "topology"); !strings.Contains(out, "(of blue)") {
		t.Errorf("topology does not name the network of the same range:\n%s", out)
	}

	// All that a router lacks is one finding, with the name that users know.
	for _, space := range m.spaces(t) {
		if out, err := exec.Command("nsenter", "--net="+space, "nft", "flush", "ruleset").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	_, out, _ = m.run(t, "doctor")
	if strings.Count(out, "router of blue: firewall rules missing (") != 1 ||
		!strings.Contains(out, "; kuryr doctor --fix repairs 2\n") {
		t.Errorf("doctor:\n%s", out)
	}
	_, verbose, _ := m.run(t, "doctor", "-v")
	if strings.Count(verbose, "\n") < strings.Count(out, "\n")+4 || !strings.Contains(verbose, "nft ") {
		t.Errorf("doctor -v:\n%s", verbose)
	}
	_, out, _ = m.run(t, "doctor", "--fix")
	if !strings.Contains(out, "fixed: router of blue: firewall rules restored (") || !strings.Contains(out, "\n2 fixed") {
		t.Errorf("doctor --fix:\n%s", out)
	}
	m.must(t, "down", "--force", "--purge")
}

// spaces are the files that pin network namespaces.
func (m *machine) spaces(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob(m.path("run/netns/*"))
	if err != nil || len(all) == 0 {
		t.Fatalf("%d namespaces, %v", len(all), err)
	}
	return all
}
