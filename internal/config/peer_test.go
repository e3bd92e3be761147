package config

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func loadPeerText(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kuryr.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(Source{Path: "/absent", Peer: path})
}

func TestPeerFile(t *testing.T) {
	t.Parallel()
	c, err := loadPeerText(t, `
[DEFAULT]
capability_scope = global
bindir = /usr/local/libexec/kuryr
process_external_connectivity = False
debug = True
kuryr_uri = http://127.0.0.1:23750
default_port_driver = kuryr_libnetwork.port_driver.drivers.nested
[neutron]
auth_type = v3password
auth_url = http://keystone:5000/v3
username = kuryr
password = p#ss;w"rd
user_domain_name = Default
project_name = service
project_domain_id = default
region_name = RegionOne
endpoint_type = internalURL
cafile = /etc/ssl/ca.pem
insecure = no
timeout = 30
vif_plugging_is_fatal = True
vif_plugging_timeout = 12
default_subnetpool_v4 = kuryr
[binding]
link_iface = ens3
`)
	if err != nil {
		t.Fatal(err)
	}
	n := c.Neutron
	want := Neutron{AuthType: "password", Region: "RegionOne", Interface: "internal",
		CAFile: "/etc/ssl/ca.pem", Timeout: 30 * time.Second, Credentials: Credentials{
			AuthURL: "http://keystone:5000/v3", Username: "kuryr", UserDomainName: "Default",
			ProjectName: "service", ProjectDomainID: "default", Secret: `p#ss;w"rd`,
		}}
	if n != want {
		t.Errorf("section neutron is %+v, want %+v", n, want)
	}
	if c.Provider != ProviderNeutron || c.Docker.CapabilityScope != "global" ||
		c.Docker.ProcessExternalConnectivity || c.Log.Level.String() != "DEBUG" ||
		c.Bind.Executables != "/usr/local/libexec/kuryr" || c.Bind.Nested != "macvlan" ||
		c.Bind.LinkInterface != "ens3" || c.Docker.WaitActive != 12*time.Second {
		t.Errorf("settings are %+v", c)
	}
	said := strings.Join(c.Ignored, "\n")
	if len(c.Ignored) != 2 || !strings.Contains(said, "[DEFAULT] kuryr_uri is not served") ||
		!strings.Contains(said, "[neutron] default_subnetpool_v4 is not served") {
		t.Errorf("ignored are:\n%s", said)
	}
}

func TestPeerFileBelowOurs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	peer, ours := filepath.Join(dir, "kuryr.conf"), filepath.Join(dir, "kuryr.yaml")
	for path, text := range map[string]string{
		peer: "[DEFAULT]\ncapability_scope = global\n",
		ours: "docker:\n  capability_scope: local\nprovider: local\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Load(Source{Path: ours, Peer: peer})
	if err != nil || c.Docker.CapabilityScope != "local" || c.Provider != ProviderLocal {
		t.Errorf("got %+v, %v: the file of ours is over the peer's", c, err)
	}
}

func TestPeerFileWrong(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"[DEFAULT]\ncapability_scope = galactic\n": "[DEFAULT] capability_scope: " +
			"docker.capability_scope: want local or global",
		"[neutron]\nendpoint = ftp://x\n":              "[neutron] endpoint",
		"[neutron\npassword = topsecret\n":             "is not of kuryr.conf's form",
		"[neutron]\ntimeout = soon\n":                  "[neutron] timeout",
		"[neutron]\ncertfile = /c\nauth_type = none\n": "needed together",
	} {
		_, err := loadPeerText(t, text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "topsecret") {
			t.Errorf("%q: the error tells a secret: %v", text, err)
		}
	}
	if _, err := Load(Source{Path: "/absent", Peer: "/absent", PeerMust: true}); err == nil {
		t.Error("a peer's file that was asked for may be absent")
	}
}

// What the peer says in words of its own is translated or passed over, and said.
func TestPeerFileWords(t *testing.T) {
	t.Parallel()
	c, err := loadPeerText(
		t,
		"[DEFAULT]\ndebug = maybe\n[neutron]\nauth_type = kerberos\nvif_plugging_is_fatal = "+
			"perhaps\nvif_plugging_timeout = 12\n[binding]\ndefault_driver = "+
			"kuryr.lib.binding.drivers.ipvlan\n",
	)
	fatal := func(s string) bool {
		return strings.Contains(s, `[neutron] vif_plugging_is_fatal "perhaps" is neither true nor false`)
	}
	if err != nil || len(c.Ignored) != 4 || !slices.ContainsFunc(c.Ignored, fatal) ||
		c.Neutron.AuthType != "" || c.Bind.Nested != "" || c.Docker.WaitActive != 0 {
		t.Errorf("got %v, %v, %+v", c.Ignored, err, c)
	}
}

// A password may end in a backslash, which joins no lines.
func TestPeerFileBackslash(t *testing.T) {
	t.Parallel()
	c, err := loadPeerText(t, "[neutron]\npassword = se\\cret\\\nusername = kuryr\n")
	if err != nil || c.Neutron.Credentials.Secret != `se\cret\` || c.Neutron.Credentials.Username != "kuryr" {
		t.Errorf("got %q for %q, %v", c.Neutron.Credentials.Secret, c.Neutron.Credentials.Username, err)
	}
}

// However a configuration is printed, the secret is not.
func TestPeerSecretIsNotShown(t *testing.T) {
	t.Parallel()
	c, err := loadPeerText(t, "[neutron]\npassword = topsecret\nusername = kuryr\n")
	if err != nil || c.Neutron.Credentials.Secret != "topsecret" {
		t.Fatalf("got %v", err)
	}
	var log strings.Builder
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("read", "credentials", c.Neutron.Credentials, "neutron", c.Neutron)
	}
	for _, shown := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c.Neutron), log.String()} {
		if strings.Contains(shown, "topsecret") || !strings.Contains(shown, "kuryr") {
			t.Errorf("shown as %s", shown)
		}
	}
}

func FuzzPeer(f *testing.F) {
	f.Add([]byte("[DEFAULT]\ndebug = true\n[neutron]\npassword = x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > maxPeerFile {
			return
		}
		c := Default()
		if err := parsePeer(&c, "kuryr.conf", data); err == nil && c.Provider != ProviderNeutron {
			t.Errorf("read without being Neutron's: %q", data)
		}
	})
}
