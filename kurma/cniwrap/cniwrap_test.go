//go:build linux

package cniwrap

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
)

// spy writes what it is called with to the file LOG beside it, refuses to add a pod where "refuse" says so, and else answers with an address.
const spy = `#!/bin/sh
conf=$(cat)
case $CNI_COMMAND in VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0"]}'; exit;; esac
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $conf" >> LOG
case $CNI_COMMAND$conf in ADD*refuse*) echo '{"code": 100, "msg": "not today"}'; exit 1;; esac
case $CNI_COMMAND$conf in
ADD*1.0.0*) echo '{"cniVersion":"1.0.0","ips":[{"address":"10.10.0.5/16"}]}';;
ADD*) echo '{"ip4":{"ip":"10.10.0.5/16"}}';;
esac
`

// the specification's example.
const specs = `{"name": "mynet", "aci": "apcera.com/kurma/cni-netplugin", "default": true, "containerInterface": "eth0", "type": "bridge", "bridge": "mynet0", "isGateway": true, "ipMasq": true,
  "ipam": {"type": "host-local", "subnet": "10.10.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}}`

func wrap(t *testing.T) (w Wrap, log func() []string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "log")
	for _, name := range []string{"bridge", "tuning"} {
		nstest.WriteProgram(t, filepath.Join(dir, name), []byte(strings.ReplaceAll(spy, "LOG", file)))
	}
	return New(dir, t.TempDir()), func() []string {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil
		}
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
}

var pod = Attachment{Namespace: "/var/lib/kurma/netns/146d7cef-fbf6-41da-a2f8-eba218597f9c", Pod: "146d7cef-fbf6-41da-a2f8-eba218597f9c", Interface: "eth0"}

func TestOnePlugin(t *testing.T) {
	t.Parallel()
	w, log := wrap(t)
	list, err := Parse([]byte(specs))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Check(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	r, err := w.Add(t.Context(), list, pod)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(text), `"ip4"`) {
		t.Errorf("an entry without a version is answered in the specification's form, not %s (%v)", text, err)
	}
	if err := w.Del(t.Context(), list, pod); err != nil {
		t.Fatal(err)
	}
	calls := log()
	if len(calls) != 2 {
		t.Fatalf("calls %q", calls)
	}
	for i, verb := range []string{"ADD", "DEL"} {
		if !strings.HasPrefix(calls[i], verb+" "+pod.Pod+" "+pod.Namespace+" eth0 ") || !strings.Contains(calls[i], `"bridge":"mynet0"`) || !strings.Contains(calls[i], `"subnet":"10.10.0.0/16"`) {
			t.Errorf("call %q", calls[i])
		}
		for _, key := range kurmas {
			if strings.Contains(calls[i], key) {
				t.Errorf("the plugin is told of %s: %q", key, calls[i])
			}
		}
	}
}

// Of a chain that fails, what went before is taken away.
func TestChain(t *testing.T) {
	t.Parallel()
	w, log := wrap(t)
	list, err := Parse([]byte(`{"name": "n", "aci": "x", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}, {"type": "tuning", "refuse": true}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Add(t.Context(), list, pod); err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("error %v", err)
	}
	var verbs []string
	for _, c := range log() {
		verbs = append(verbs, c[:3])
	}
	if got := strings.Join(verbs, " "); got != "ADD ADD DEL DEL" {
		t.Errorf("calls %s", got)
	}
}

func TestWithoutInterface(t *testing.T) {
	t.Parallel()
	w, log := wrap(t)
	list, err := Parse([]byte(`{"name": "loop", "type": "bridge"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Add(context.Background(), list, Attachment{Namespace: "/n", Pod: pod.Pod}); err != nil {
		t.Fatal(err)
	}
	if c := log(); len(c) != 1 || !strings.Contains(c[0], " /n lo ") {
		t.Errorf("calls %q", c)
	}
}

func TestBadEntries(t *testing.T) {
	t.Parallel()
	w, _ := wrap(t)
	for entry, want := range map[string]string{
		`[]`:                                   "no JSON object",
		`{"name": "n"}`:                        `"type"`,
		`{"type": "bridge"}`:                   "no name",
		`{"name": "n", "plugins": []}`:         "no plugins",
		`{"name": "n", "plugins": [{"a": 1}]}`: "type",
		`{"name": "n", "type": "absent"}`:      "absent",
		`{"name": "n", "type": "bridge", "cniVersion": "9.0.0"}`: "9.0.0",
	} {
		list, err := Parse([]byte(entry))
		if err == nil {
			err = w.Check(t.Context(), list)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", entry, err)
		}
	}
}
