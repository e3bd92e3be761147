package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSet(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ key, value, says string }{
		{"provider", "neutron", ""},
		{"installation", "", ""},
		{"installation", "blue-1", ""},
		{"config.controller.pod_ranges", "[10.64.0.0/10]", ""},
		{"image.tag", "1.0", ""}, // a text, though it looks like a number
		{"apiServer.port", "6443", ""},
		{"controller.replicas", "3", ""},
		{"createNamespace", "true", ""},
		{"config.log.level", "debug", ""},
		{"config.neutron.timeout", "10s", ""},
		{"node.nodeSelector.disk", "ssd", ""},
		{"node.resources", "{requests: {cpu: 1}}", ""},
		{"imagePullSecrets", "[{name: a}]", ""},
		{"", "x", "unknown"},
		{"nodes.binDir", "/x", `"nodes" has nothing below it`},
		{"node.bindir", "/x", "value node.bindir: unknown; there are binDir"},
		{"provider.x", "1", `"provider" has nothing below it`},
		{"controller.replicas", "many", "want a number"},
		{"createNamespace", "perhaps", "want true or false"},
		{"imagePullSecrets", "a", "want a list"},
		{"config", "3", "want values below it"},
	} {
		v, err := Defaults()
		if err != nil {
			t.Fatal(err)
		}
		err = v.Set(c.key, c.value)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s=%s: %v, want %q", c.key, c.value, err, c.says)
		}
		if c.says == "" {
			if _, err := Render(Release{Namespace: "a", Values: v}); err != nil {
				t.Errorf("%s=%s: %v", c.key, c.value, err)
			}
		}
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	for file, says := range map[string]string{
		"provider: neutron\nimage: {tag: v2}\nconfig: {log: {level: debug}}\n": "",
		"{}":                         "",
		"colour: red\n":              "value colour: unknown",
		"image: {colour: red}\n":     "value image.colour: unknown",
		"image: red\n":               "value image: want values below it",
		"provider: [a]\n":            "value provider: want a text",
		"provider: a\nprovider: b\n": "already set",
		"provider: x\n":              "value provider: want embedded or neutron",
		"installation: A\n":          "value installation",
	} {
		v, err := Defaults()
		if err != nil {
			t.Fatal(err)
		}
		if err = v.Merge([]byte(file)); err == nil {
			_, err = Render(Release{Namespace: "a", Values: v})
		}
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: %v, want %q", file, err, says)
		}
	}
	if _, err := Render(Release{Namespace: "Not_A_Name", Values: Values{}}); err == nil || !strings.Contains(err.Error(), "namespace") {
		t.Errorf("a bad namespace: %v", err)
	}
}

func TestPlugin(t *testing.T) {
	t.Parallel()
	from := filepath.Join(t.TempDir(), "kuryr-cni")
	write := func(path, content string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(from, "new plugin", 0o700)
	fresh, old, same := t.TempDir(), t.TempDir(), t.TempDir()
	write(filepath.Join(old, PluginName), "old plugin", 0o755)
	write(filepath.Join(same, PluginName), "new plugin", 0o755)
	running, err := os.Open(filepath.Join(old, PluginName)) // as a runtime has it that runs it
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	before, err := os.Stat(filepath.Join(same, PluginName))
	if err != nil {
		t.Fatal(err)
	}
	if err := Plugin(from, fresh, old, same); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{fresh, old, same} {
		path := filepath.Join(folder, PluginName)
		data, err := os.ReadFile(path)
		info, _ := os.Stat(path)
		if err != nil || string(data) != "new plugin" || info.Mode() != 0o755 {
			t.Errorf("%s: %q, %v, %v", path, data, info.Mode(), err)
		}
		if left, _ := os.ReadDir(folder); len(left) != 1 {
			t.Errorf("%s has %v", folder, left)
		}
	}
	was := make([]byte, 3)
	if _, err := running.ReadAt(was, 0); err != nil || string(was) != "old" {
		t.Errorf("what runs was overwritten: %q, %v", was, err)
	}
	if after, _ := os.Stat(filepath.Join(same, PluginName)); !os.SameFile(before, after) {
		t.Error("a plugin that was the same was replaced")
	}
	if err := Plugin(from, filepath.Join(fresh, "none"), old); err == nil || !strings.Contains(err.Error(), filepath.Join(fresh, "none")) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if err := Plugin(filepath.Join(fresh, "none"), fresh); err == nil {
		t.Error("no plugin, and no error")
	}
}
