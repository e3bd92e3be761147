package install

import (
	"strings"
	"testing"
)

func TestSet(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ key, value, says string }{
		{"provider", "neutron", ""},
		{"installation", "", ""},
		{"installation", "blue-1", ""},
		{"config.controller.pod_ranges", "[10.32.0.0/11]", ""},
		{"image.tag", "1.0", ""}, // a text, though it looks like a number
		{"apiServer.port", "6443", ""},
		{"controller.replicas", "3", ""},
		{"createNamespace", "true", ""},
		{"config.log.level", "debug", ""},
		{"config.neutron.timeout", "10s", ""},
		{"node.nodeSelector.disk", "ssd", ""},
		{"node.resources", "{requests: {cpu: 1}}", ""},
		{"node.config.node.wait_active", "5s", ""},
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
		"{}": "",
		"controller: {resources: {requests: {cpu: 2}}}\n": "", // a number is as good there as the text before
		"colour: red\n":              "value colour: unknown",
		"image: {colour: red}\n":     "value image.colour: unknown",
		"image: red\n":               "value image: want values below it",
		"provider: [a]\n":            "value provider: want a text",
		"provider: a\nprovider: b\n": "already set",
		"provider: x\n":              "value provider: want embedded or neutron",
		"installation: A\n":          "value installation",
		"loadBalancers: both\n":      "value loadBalancers: want sdn or node",
		"loadBalancers: node\nconfig: {controller: {services: true}}\n":      "",
		"config: {controller: {load_balancers: node}}\n":                     "",
		"loadBalancers: node\nconfig: {controller: {load_balancers: sdn}}\n": "values loadBalancers and config.controller.load_balancers",
		"loadBalancers: node\nnode: {config: {node.load_balancers: node}}\n": "values loadBalancers and node.config.node.load_balancers",
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

// raven.conf goes into a ConfigMap: what lets whoever reads it into the SDN is refused, and never shown.
func TestSecretsInRavenConf(t *testing.T) {
	t.Parallel()
	for conf, named := range map[string]string{
		"": "",
		"[neutron]\nendpoint_type = internalURL\n":                                      "",
		"[neutron]\npassword =\n":                                                       "",
		"[kubernetes]\ntoken_file = /a\n":                                               "",
		"[neutron]\npassword = hunter2\n":                                               "[neutron] password:",
		"[DEFAULT]\ndebug = true\n[neutron]\ntoken: hunter2\n":                          "[neutron] token:",
		"[neutron]\napplication_credential_secret=hunter2\n":                            "[neutron] application_credential_secret:",
		"[neutron]\npassword = hunter2\n[keystone_authtoken]\nadmin_password=hunter3\n": "[keystone_authtoken] admin_password, [neutron] password:",
		"hunter2": "is not of kuryr.conf's form",
	} {
		v, err := Defaults()
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Set("neutron.secret", "blue-cloud"); err != nil {
			t.Fatal(err)
		}
		if err := v.Set("ravenConf", conf); err != nil {
			t.Fatal(err)
		}
		_, err = Render(Release{Namespace: "a", Values: v})
		if named == "" && err != nil || named != "" && (err == nil || !strings.Contains(err.Error(), named) || strings.Contains(err.Error(), "hunter")) {
			t.Errorf("%q: %v, want %q", conf, err, named)
		}
		if err != nil && strings.HasPrefix(named, "[") && !strings.Contains(err.Error(), "Secret blue-cloud") {
			t.Errorf("%q: %v does not tell where it belongs", conf, err)
		}
	}
}
