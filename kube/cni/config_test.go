package cni

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseConfig(t *testing.T) {
	conf := func(more string) string {
		return `{"cniVersion": "1.1.0", "name": "blue", "type": "kuryr"` + more + `}`
	}
	for _, row := range []struct {
		verb, text string
		kind       Kind // zero: none
		names      string
	}{
		{Add, conf(""), Kind{}, ""},
		{Add, `{"name": "blue", "type": "kuryr"}`, Kind{}, ""},
		{Add, conf(`, "unknown": {"a": 1}`), Kind{}, ""},
		{GC, conf(`, "cni.dev/valid-attachments": []`), Kind{}, ""},
		{GC, conf(`, "cni.dev/valid-attachments": null`), Kind{}, ""},
		{GC, conf(`, "cni.dev/attachments": [{"containerID": "a", "ifname": "eth0"}]`), Kind{}, ""},
		{Add, `{`, Undecodable, "configuration"},
		{Add, `[]`, Undecodable, "configuration"},
		{Add, `{"cniVersion": "2.0.0", "name": "a"}`, IncompatibleVersion, "cniVersion"},
		{Check, `{"cniVersion": "0.3.1", "name": "a"}`, IncompatibleVersion, "CHECK"},
		{GC, `{"cniVersion": "1.0.0", "name": "a", "cni.dev/valid-attachments": []}`, IncompatibleVersion, "GC"},
		{GC, conf(""), BadConfig, "cni.dev/valid-attachments"},
		{GC, conf(`, "cni.dev/valid-attachments": "all"`), Undecodable, "cni.dev/valid-attachments"},
		{Add, `{"cniVersion": "1.1.0"}`, BadConfig, "name"},
		{Add, `{"cniVersion": "1.1.0", "name": "a b"}`, BadConfig, "name"},
		{Add, `{"name": "a", "type": "bridge"}`, BadConfig, "type"},
		{Add, conf(`, "socket": "run/a"`), BadConfig, "socket"},
		{Add, conf(`, "mtu": 1400`), BadConfig, "mtu"},
		{Add, conf(`, "runtimeConfig": {"ips": ["a"]}`), BadConfig, "runtimeConfig.ips"},
		{Add, conf(`, "args": {"cni": {"ips": ["10.0.0.1/64"]}}`), BadConfig, "ips"},
		{Add, conf(`, "runtimeConfig": {"mac": "1"}`), BadConfig, "runtimeConfig.mac"},
		{Add, conf(`, "runtimeConfig": {"bandwidth": {"ingressRate": -1}}`), BadConfig, "bandwidth"},
		{Add, conf(`, "runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 0}]}`), BadConfig, "portMappings[0]: containerPort"},
		{Add, conf(`, "runtimeConfig": {"portMappings": [{"hostPort": 70000, "containerPort": 1}]}`), BadConfig, "hostPort"},
		{Add, conf(`, "runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 1, "protocol": "icmp"}]}`), BadConfig, "protocol"},
		{Add, conf(`, "runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 1, "hostIP": "here"}]}`), BadConfig, "hostIP"},
	} {
		_, err := ParseConfig(row.verb, []byte(row.text))
		if row.kind == (Kind{}) {
			if err != nil {
				t.Errorf("%s %s: %v", row.verb, row.text, err)
			}
			continue
		}
		if e := AsError(err); e == nil || e.Code != row.kind.Code || !strings.Contains(e.Details, row.names) {
			t.Errorf("%s %s: %v, want %s naming %s", row.verb, row.text, err, row.kind.Name, row.names)
		}
	}
}

// A prevResult is read in each version, with and without its own.
func TestPrevious(t *testing.T) {
	for _, version := range Versions[2:] {
		ip := `{"address": "10.0.0.5/24"}`
		if version < "1" {
			ip = `{"version": "4", "address": "10.0.0.5/24"}`
		}
		c, err := ParseConfig(Del, fmt.Appendf(nil, `{"cniVersion": %q, "name": "a", "prevResult": {"ips": [%s]}}`, version, ip))
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Previous()
		if err != nil || len(r.IPs) != 1 || r.IPs[0].Address.String() != "10.0.0.5/24" {
			t.Errorf("%s: %+v, %v", version, r, err)
		}
	}
	for _, wrong := range []string{`"a"`, `{"ips": [{"address": "x"}]}`} {
		c := Config{CNIVersion: "1.0.0", PrevResult: []byte(wrong)}
		if _, err := c.Previous(); AsError(err) == nil || AsError(err).Code != Undecodable.Code {
			t.Errorf("prevResult %s: %v", wrong, err)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("GC", []byte(`{"cniVersion": "1.1.0", "name": "blue", "type": "kuryr", "cni.dev/valid-attachments": [], "prevResult": {}}`))
	f.Fuzz(func(t *testing.T, verb string, data []byte) {
		c, err := ParseConfig(verb, data)
		if err != nil {
			return
		}
		if verb == GC && c.Valid == nil {
			t.Error("GC without a list")
		}
		_, _ = c.Previous()
	})
}
