package podnet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

const example = `{
  "pod_networks": [
    {
      "name": "mynet",
      "aci": "apcera.com/kurma/cni-netplugin",
      "default": true,
      "containerInterface": "eth0",
      "type": "bridge",
      "ipam": { "type": "host-local",   "subnet": "10.10.0.0/16", "n": 12345678901234567890 }
    }
  ]
}`

func TestLoad(t *testing.T) {
	t.Parallel()
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	all, err := Load(write("a.json", example))
	if err != nil {
		t.Fatal(err)
	}
	n := all[0]
	if len(all) != 1 || n.Name != "mynet" || n.Image != "apcera.com/kurma/cni-netplugin" || !n.Default || n.Interface != "eth0" {
		t.Errorf("%+v", all)
	}
	// What the plugin is given is what was written, spaces and all.
	if from := strings.Index(example, "{\n      \"name"); string(n.Raw) != example[from:strings.LastIndex(example, "}\n  ]")+1] {
		t.Errorf("entry %s", n.Raw)
	}
	all, err = Load(write("a.yaml", "podNetworks:\n- name: a\n  aci: file:///a.aci\n  mtu: 1400\n  list: [1, x]\n- {name: b, aci: 'docker:///user/b:1'}\n"))
	if err != nil || len(all) != 2 || string(all[0].Raw) != `{"aci":"file:///a.aci","list":[1,"x"],"mtu":1400,"name":"a"}` {
		t.Errorf("%+v, %v", all, err)
	}
	if all, err := Load(write("empty.yaml", "# nothing\n")); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	for name, text := range map[string]string{"two.yaml": "pod_networks: []\n---\n{}", "date.yaml": "pod_networks: [{name: a, aci: b, d: 2020-01-01}]", "a.toml": "", "bad.yaml": "\t:"} {
		if _, err := Load(write(name, text)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if _, err := Load(write("large.json", strings.Repeat(" ", maxFile+1))); err == nil {
		t.Error("a file without bounds was taken")
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	one := func(members string) string { return `{"pod_networks":[{` + members + `}]}` }
	for in, want := range map[string]string{
		`{"pod_networks":[],"podNetworks":[]}`: "both pod_networks and podNetworks",
		`{"pod_network":[]}`:                   `unknown key "pod_network": want pod_networks`,
		`{"a":1,"podnetworks":[]}`:             `unknown key "podnetworks": want pod_networks`,
		`{"Pod-Netwroks":[]}`:                  `unknown key "Pod-Netwroks": want pod_networks`,
		`{"pod_networks":null}x`:               "something follows",
		`{"pod_networks":{}}`:                  "pod_networks: want a list",
		`{"pod_networks":["a"]}`:               "pod_networks[0]: want an object",
		`[]`:                                   "want an object",
		`{"pod_networks":[}`:                   "no JSON",
		`{"pod_networks":[]} x`:                "something follows",
		one(`"aci":"a"`):                       "pod_networks[0]: name: is missing",
		one(`"name":"","aci":"a"`):             "name: is missing",
		one(`"name":1,"aci":"a"`):              "name: want a text, not 1",
		one(`"name":"A","aci":"a"`):            `name: "A": want lower-case`,
		one(`"name":"a/b","aci":"a"`):          `name: "a/b"`,
		one(`"name":"a--b","aci":"a"`):         `name: "a--b"`,
		one(`"name":"` + strings.Repeat("a", 65) + `","aci":"a"`): "65 characters long",
		one(`"name":"a"`):                                                                           "pod_networks[0] (a): aci: is missing",
		one(`"name":"a","aci":null`):                                                                "aci: want a text, not null",
		one(`"name":"a","aci":"ftp://x/y"`):                                                         `aci: unknown scheme "ftp"`,
		one(`"name":"a","aci":"file://"`):                                                           "names nothing",
		one(`"name":"a","aci":"a b"`):                                                               "white space",
		one(`"name":"a","aci":"a","default":"yes"`):                                                 `default: want true or false, not "yes"`,
		one(`"name":"a","name":"b","aci":"a"`):                                                      `key "name" is there twice`,
		one(`"name":"a","aci":"a","containerInterface":"{{"`):                                       "containerInterface: ",
		one(`"name":"a","aci":"a","containerInterface":"{{nope}}"`):                                 `function "nope" not defined`,
		one(`"name":"a","aci":"a","containerInterface":"{{uuid}}"`):                                 "36 bytes long",
		one(`"name":"a","aci":"a","containerInterface":"lo"`):                                       "in every pod already",
		one(`"name":"a","aci":"a","containerInterface":"a/b"`):                                      `has '/' in it`,
		one(`"name":"a","aci":"a","containerInterface":"a b"`):                                      `has ' ' in it`,
		one(`"name":"a","aci":"a","containerInterface":"{{random 0}}"`):                             "want 1 to 32",
		one(`"name":"a","aci":"a","containerInterface":"{{range 9999999}}aaaaaaaaaaaaaaaa{{end}}"`): "too long",
		`{"pod_networks":[{"name":"a","aci":"x"},{"name":"a","aci":"y"}]}`:                          `pod_networks[1] (a): name: pod_networks[0] is called "a" too`,
	} {
		if _, err := Parse([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
}

// A key of Kurma's that is misspelt is not taken for the plugin's.
func TestMisspeltKeys(t *testing.T) {
	t.Parallel()
	for member, want := range map[string]string{
		`"Default":true`:            `unknown key "Default": want default`,
		`"defualt":false`:           `unknown key "defualt": want default`,
		`"defaults":true`:           `unknown key "defaults": want default`,
		`"container_interface":"e"`: `unknown key "container_interface": want containerInterface`,
		`"containerIntreface":"e"`:  `unknown key "containerIntreface": want containerInterface`,
		`"NAME":"b"`:                `unknown key "NAME": want name`,
	} {
		_, err := Parse([]byte(`{"pod_networks":[{"name":"a","aci":"a",` + member + `}]}`))
		if err == nil || err.Error() != "pod_networks[0] (a): "+want {
			t.Errorf("%s: %v, want %q", member, err, want)
		}
	}
}

// Other sections of the configuration are another program's, and keys of an entry that are not
// Kurma's are the plugin's.
func TestOtherKeys(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`{"debug":true,"pod_networks":[{"name":"a","aci":"b"}],"services":{"name":1}}`:          1,
		`{"networks":[],"pods":{"pod_networks":{}}}`:                                            0,
		`{"pod_networks":[{"name":"a","aci":"b","defaults":{},"defaultGW":true,"mac":"c"}]}`:    1,
		`{"pod_networks":[{"name":"a","aci":"b","names":"c","acl":"d","Default":"route"}]}`:     1,
		`{"pod_networks":[{"name":"a","aci":"b","containerInterfaces":["e"],"interface":"e"}]}`: 1,
	} {
		if all, err := Parse([]byte(text)); err != nil || len(all) != want {
			t.Errorf("%s: %+v, %v", text, all, err)
		}
	}
	path := filepath.Join(t.TempDir(), "a.yaml")
	text := "since: 2020-01-01\n1: {2: 3}\nlimit: .nan\npod_networks: [{name: a, aci: b}]\nservices: [{on: [x]}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := Load(path); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestInterfaceName(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("146d7cef-fbf6-41da-a2f8-eba218597f9c")
	for _, c := range []struct {
		template string
		vars     Vars
		want     string // begins so
		fails    string
	}{
		{template: "", want: ""},
		{template: "eth0", want: "eth0"},
		{template: "eth{{num}}", vars: Vars{Num: 3}, want: "eth3"},
		{template: "veth+{{shortuuid}}", want: "veth+146d7cef"},
		{template: "v{{random 3}}", want: "v"},
		{template: "eth0", vars: Vars{Taken: []string{"eth0"}}, fails: `"eth0": is the name of another interface`},
		{template: "eth{{num}}", vars: Vars{Num: 1 << 50}, fails: "the kernel takes at most 15"},
	} {
		c.vars.Pod = id
		all, err := Parse([]byte(`{"pod_networks":[{"name":"a","aci":"b","containerInterface":"` + c.template + `"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		got, err := all[0].InterfaceName(c.vars)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %q, %v", c.template, got, err)
			}
			continue
		}
		if err != nil || !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q, %v", c.template, got, err)
		}
	}
}

// However many names are taken, one that is given is free; where none is, the error says so.
func TestRandomNamesAreFree(t *testing.T) {
	t.Parallel()
	all, err := Parse([]byte(`{"pod_networks":[{"name":"a","aci":"b","containerInterface":"{{random 1}}"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		taken := rapid.SliceOfDistinct(rapid.SampledFrom(strings.Split(alphanumeric, "")), rapid.ID[string]).Draw(t, "taken")
		name, err := all[0].InterfaceName(Vars{Taken: taken})
		if err != nil && len(taken) < len(alphanumeric)/2 { // 64 attempts, each failing less than every second time
			t.Fatal(err)
		}
		for _, other := range taken {
			if err == nil && name == other {
				t.Fatalf("%s is taken", name)
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(`{"podNetworks":[{"name":"a","aci":"b","containerInterface":"{{random 3}}"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := Parse(data)
		if err != nil {
			return
		}
		for _, n := range all {
			if _, err := n.InterfaceName(Vars{Pod: uuid.New()}); err != nil && n.Interface != "" && !strings.Contains(n.Interface, "{{") {
				t.Errorf("%q was taken, and gives %v", n.Interface, err)
			}
		}
	})
}
