//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
)

const planted = "hunter2-PLANTED"

// unpack gives the files of a bundle by their names below its folder.
func unpack(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for reader := tar.NewReader(unzipped); ; {
		h, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		data, readErr := io.ReadAll(reader)
		if err := errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		out[name] = string(data)
	}
}

// fakeDocker answers as an engine does whose containers have secrets everywhere.
func (m *machine) fakeDocker(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", m.path("docker.sock"))
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]string{
		"/version": `{"Version":"20.10.24","ApiVersion":"1.41"}`,
		"/info":    `{"ServerVersion":"20.10.24","HttpProxy":"http://me:` + planted + `@proxy","Labels":["x=` + planted + `"],"RegistryConfig":{"Mirrors":["https://` + planted + `@r"]}}`,
		"/networks": `[{"Id":"n1","Name":"front","Driver":"kuryr","Options":{"password":"` + planted + `"},"Labels":{"l":"` + planted + `"},
			"IPAM":{"Driver":"kuryr","Options":{"o":"` + planted + `"},"Config":[{"Subnet":"10.9.0.0/24","Gateway":"` + planted + `"}]}}]`,
		"/containers/json": `[{"Id":"c1","Names":["/web"],"Image":"` + planted + `","Command":"run --token ` + planted + `","Labels":{"l":"` + planted + `"},"Env":["PASSWORD=` + planted + `"],
			"Mounts":[{"Source":"/` + planted + `"}],"State":"running","NetworkSettings":{"Networks":{"front":{"NetworkID":"n1","EndpointID":"e1","IPAddress":"10.9.0.2","DriverOpts":{"x":"` + planted + `"},"Links":["` + planted + `"]}}}},
			{"Id":"c2","Names":["/away"],"State":"exited","NetworkSettings":{"Networks":{"front":{}}}}]`,
		"/containers/c2/json": `{"State":{"Status":"exited","Error":"plugin not found for run --token ` + planted + `"},"HostConfig":{"RestartPolicy":{"Name":"always"}}}`,
		"/plugins":            `[]`,
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, answers[r.URL.Path])
	}))
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
}

// A bundle has what helps and no secret, whether kuryr runs or not.
func TestSupportBundle(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	m.fakeDocker(t)
	config := "# " + planted + "\nlog:\n  level: warn # " + planted + "\n"
	if err := os.WriteFile(m.path("kuryr.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	m.env = append(m.env, "KURYR_CONFIG="+m.path("kuryr.yaml"), "OS_PASSWORD="+planted, "HOME=/"+planted)
	stop, _ := m.up(t)
	m.plug(t)
	m.env = append(m.env, "KURYR_LOG_FORMAT=text")
	check := func(text string, running bool) {
		t.Helper()
		got := unpack(t, []byte(text))
		all := ""
		for name, data := range got {
			all += name + "\n" + data + "\n"
			if strings.Contains(data, planted) {
				t.Errorf("%s holds the secret:\n%s", name, data)
			}
		}
		for name, want := range map[string]string{
			"about.txt": version, "configuration/file.yaml": "level: warn", "configuration/effective.txt": "docker.socket: " + m.plugin, "configuration/environment.txt": "KURYR_HOST=testhost",
			"objects/ports.json": `"10.77.0.`, "objects/networks.json": "kuryr/", "docker/networks.json": "10.9.0.0/24", "docker/containers.json": `"/web"`, "docker/version.json": "20.10.24",
			"host/kernel.txt": "Linux", "host/memory.txt": "MemTotal", "namespaces/host/network.txt": "# routes, IPv4", "namespaces/host/sysctls.txt": "net.ipv4.ip_forward = 1",
			"kuryr/intents.json": "endpoint/2222", "host/files.txt": "kuryr.db", "kuryr/doctor.json": map[bool]string{true: "it runs, version", false: "kuryr is not running"}[running],
		} {
			if !strings.Contains(got[name], want) {
				t.Errorf("%s does not hold %q:\n%s", name, want, got[name])
			}
		}
		routers := 0
		for name := range got {
			if matched, _ := path.Match("namespaces/*-*/network.txt", name); matched && strings.Contains(got[name], "br-") {
				routers++
			}
		}
		if routers != 1 {
			t.Errorf("%d routers' namespaces are told of", routers)
		}
		if !strings.Contains(got["kuryr/doctor.json"], "container away should run") {
			t.Errorf("the doctor: %s", got["kuryr/doctor.json"])
		}
		for _, name := range []string{"kuryr/status.json", "kuryr/check.json", "kuryr/metrics.txt", "kuryr/topology.txt"} {
			if (got[name] != "") != running {
				t.Errorf("%s, running %v:\n%s", name, running, got[name])
			}
		}
		if told := strings.Contains(got["errors.txt"], "kuryr/status.json: ") && strings.Contains(got["errors.txt"], "kuryr is not running"); told == running {
			t.Errorf("errors.txt, running %v:\n%s", running, got["errors.txt"])
		}
	}
	check(m.must(t, "support-bundle", "-"), true)
	if code := stop(); code != 0 {
		t.Fatalf("ended with %d", code)
	}
	check(m.must(t, "support-bundle", "-"), false)

	file := m.path("bundle.tar.gz")
	if out := m.must(t, "support-bundle", file); !strings.Contains(out, file) {
		t.Errorf("it says %q", out)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, mode %v", err, info)
	}

	// A configuration that cannot be read: nothing of it is told, and the rest is there.
	if err := os.WriteFile(m.path("kuryr.conf"), []byte("password = "+planted+"\nusername = "+planted+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, data := range unpack(t, []byte(m.must(t, "support-bundle", "--config", m.path("kuryr.conf"), "-"))) {
		if strings.Contains(data, planted) {
			t.Errorf("%s holds what kuryr.conf does:\n%s", name, data)
		}
	}
	for _, bad := range []string{"password: [" + planted, "docker:\n  tls_token: " + planted + "\n  url: https://me:" + planted + "@x\n"} {
		if err := os.WriteFile(m.path("kuryr.yaml"), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		m.env = append(m.env, "KURYR_STRANGE="+planted)
		got := unpack(t, []byte(m.must(t, "support-bundle", "-")))
		for name, data := range got {
			if strings.Contains(data, planted) {
				t.Errorf("%s holds the secret:\n%s", name, data)
			}
		}
		if !strings.Contains(got["configuration/environment.txt"], "KURYR_STRANGE=[redacted]") || !strings.Contains(got["host/kernel.txt"], "Linux") {
			t.Errorf("with a bad configuration:\n%s", got["configuration/environment.txt"])
		}
	}
}
