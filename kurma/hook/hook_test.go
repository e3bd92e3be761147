//go:build linux

package hook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// daemon answers hooks by a real HTTP server, and notes what they ask.
func daemon(t *testing.T, status int, body string) (socket string, asked func() string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "kurma.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	calls := make(chan string, 10)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var b bytes.Buffer
		_, _ = b.ReadFrom(r.Body)
		calls <- r.Method + " " + r.URL.Path + " " + b.String()
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return socket, func() string {
		select {
		case c := <-calls:
			return c
		default:
			return ""
		}
	}
}

func stateOf(annotations string) string {
	return `{"ociVersion":"1.2.0","id":"c1","status":"creating","pid":4711,"bundle":"/nowhere","annotations":` + annotations + `}`
}

func TestCreateRuntime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, annotations, want string
	}{
		{"nothing asked", `null`, `{"pid":4711,"container":"c1"}`},
		{"an empty list", `{"kurma.io/networks":" "}`, `{"pid":4711,"container":"c1"}`},
		{"none", `{"kurma.io/networks":"none"}`, `{"networks":[],"pid":4711,"container":"c1"}`},
		{"with spaces, as podman takes commas for its own", `{"kurma.io/networks":"blue red"}`, `{"networks":["blue","red"],"pid":4711,"container":"c1"}`},
		{"two, and a UUID", `{"kurma.io/networks":"blue, red","kurma.io/pod-uuid":"146d7cef-fbf6-41da-a2f8-eba218597f9c"}`,
			`{"uuid":"146d7cef-fbf6-41da-a2f8-eba218597f9c","networks":["blue","red"],"pid":4711,"container":"c1"}`},
	} {
		socket, asked := daemon(t, 200, `{}`)
		var errs bytes.Buffer
		if code := Run([]string{"createRuntime", "--socket", socket}, strings.NewReader(stateOf(c.annotations)), &errs); code != exitOK {
			t.Errorf("%s: exit %d, %s", c.name, code, &errs)
		}
		if got := asked(); got != "POST /v1/pods "+c.want {
			t.Errorf("%s: asked %s, want %s", c.name, got, c.want)
		}
	}
}

func TestPostStop(t *testing.T) {
	t.Parallel()
	socket, asked := daemon(t, 204, "")
	var errs bytes.Buffer
	if code := Run([]string{"--socket=" + socket, "poststop"}, strings.NewReader(`{"id":"a/b c","status":"stopped"}`), &errs); code != exitOK {
		t.Errorf("exit %d, %s", code, &errs)
	}
	if got := asked(); got != "DELETE /v1/containers/a/b c " {
		t.Errorf("asked %q", got)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	refuses, _ := daemon(t, 403, `{"error":"network blue: kurma.grants does not name cgroup /a","reason":"denied"}`)
	broken, _ := daemon(t, 500, "oh")
	for _, c := range []struct {
		name  string
		args  []string
		state string
		code  int
		text  string
	}{
		{"no stage", nil, "", exitUsage, "usage:"},
		{"another stage", []string{"prestart"}, "", exitUsage, "usage:"},
		{"two stages", []string{"createRuntime", "poststop"}, "", exitUsage, "usage:"},
		{"no socket", []string{"poststop", "--socket"}, "", exitUsage, "usage:"},
		{"not JSON", []string{"poststop"}, "x", exitError, "state: invalid character"},
		{"no id", []string{"poststop"}, "{}", exitError, "state: it has no id"},
		{"no pid", []string{"createRuntime"}, `{"id":"c1"}`, exitError, "state: container c1 has no pid"},
		{"an empty name", []string{"createRuntime"}, stateOf(`{"kurma.io/networks":"a,,b"}`), exitError, "kurma.io/networks"},
		{"a long state", []string{"poststop"}, strings.Repeat(" ", maxState+1), exitError, "more than 1048576 bytes"},
		{"no daemon", []string{"poststop", "--socket", "/nowhere/kurma.sock"}, `{"id":"c1"}`, exitError, "kuryr kurma does not run"},
		{"refused", []string{"createRuntime", "--socket", refuses}, stateOf("{}"), exitError, "kuryr-oci-hook: network blue: kurma.grants does not name cgroup /a"},
		{"broken", []string{"poststop", "--socket", broken}, `{"id":"c1"}`, exitError, "kuryr kurma answered HTTP/1.0 500"},
	} {
		var errs bytes.Buffer
		if code := Run(c.args, strings.NewReader(c.state), &errs); code != c.code || !strings.Contains(errs.String(), c.text) || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%s: exit %d, %q; want %d with %q", c.name, code, &errs, c.code, c.text)
		}
	}
}

// An answer that is cut off is none.
func TestJudge(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"HTTP/1.0 200 OK\r\n\r\n{}": true, "HTTP/1.1 204 No Content\r\nDate: x\r\n\r\n": true, "HTTP/1.0 200 OK\r\n": false, "": false, "HTTP/1.0 2000\r\n\r\n": false, "SSH-2.0 200\r\n\r\n": false,
	} {
		if err := judge([]byte(text)); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What is deployed is what is printed.
func TestDeployed(t *testing.T) {
	t.Parallel()
	for _, stage := range Stages {
		want, err := Folder(stage, DefaultProgram, "")
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("../../deploy/oci/hooks.d", File(stage)))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: %v\n%s", File(stage), err, want)
		}
	}
}

func TestBundleHasTheSocket(t *testing.T) {
	t.Parallel()
	text, err := Bundle("/x/hook", "/y/sock")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Hooks map[string][]command `json:"hooks"`
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for _, stage := range Stages {
		want := command{"/x/hook", []string{"kuryr-oci-hook", stage, "--socket", "/y/sock"}}
		if list := got.Hooks[stage]; len(list) != 1 || fmt.Sprint(list[0]) != fmt.Sprint(want) {
			t.Errorf("%s: %v", stage, list)
		}
	}
}

// FuzzState: whatever a runtime and a bundle say, nothing panics, and nobody is asked for what is not whole.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"id":"c","pid":1,"bundle":"/","annotations":{"kurma.io/networks":"a"}}`), "a,b")
	f.Fuzz(func(t *testing.T, text []byte, annotation string) {
		if code := Run([]string{"poststop", "--socket", "/nowhere"}, bytes.NewReader(text), &bytes.Buffer{}); code != exitError {
			t.Errorf("exit %d", code)
		}
		if list, err := networksOf(annotation); err == nil && list != nil {
			for _, name := range *list {
				if name == "" {
					t.Error("an empty name")
				}
			}
		}
		_ = judge(text)
	})
}
