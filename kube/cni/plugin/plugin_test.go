//go:build linux

package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/kube/cni/static"
)

// rig runs the plugin with a socket and a state folder of its own.
type rig struct {
	socket, state string
	netns         string
	lost          bool
	api           func(context.Context, cni.Call, cni.Config, *static.Bindings) ([]byte, error)
}

func newRig(t *testing.T) rig {
	dir := t.TempDir()
	return rig{netns: "/run/netns/none", socket: filepath.Join(dir, "s"), state: filepath.Join(dir, "state")}
}

func (r rig) run(t *testing.T, verb, args string) (int, string) {
	t.Helper()
	env := map[string]string{"CNI_COMMAND": verb, "CNI_CONTAINERID": "a", "CNI_NETNS": r.netns, "CNI_IFNAME": "eth0", "CNI_ARGS": args}
	fields := map[string]any{"cniVersion": "1.1.0", "name": "blue", "type": "kuryr", "socket": r.socket, "state": r.state, "cni.dev/valid-attachments": nil}
	if r.api != nil {
		fields["api_server"] = "https://192.0.2.1:6443"
	}
	config, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	code := Plugin{Getenv: func(name string) string { return env[name] }, Stdin: bytes.NewReader(config), Stdout: &out, Lost: r.lost, API: r.api}.Run(t.Context())
	return code, out.String()
}

// daemon answers on the socket with one reply after the other; an empty Reply is no answer at all: it was killed.
func (r rig) daemon(t *testing.T, replies ...cni.Reply) (asked func() []cni.Request) {
	t.Helper()
	l, err := net.Listen("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	var all []cni.Request
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, reply := range replies {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var q cni.Request
			if cni.ReadFrame(conn, &q) == nil {
				all = append(all, q)
			}
			if reply.Protocol != 0 {
				_ = cni.WriteFrame(conn, reply)
			}
			_ = conn.Close()
		}
		_ = l.Close()
	}()
	return func() []cni.Request { <-done; return all }
}

func (r rig) owed(t *testing.T) int {
	t.Helper()
	all, err := jsonstore.Load[cni.Call](cni.PendingDELs(r.state))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestWithoutDaemon(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		verb, args string
		exit, owed int
		says       string
	}{
		{cni.Version, "", 0, 0, `"supportedVersions"`},
		{cni.Add, "", cni.TryAgain.Exit, 0, `"code": 11`},
		{cni.Check, "", cni.TryAgain.Exit, 0, `"code": 11`},
		{cni.GC, "", cni.TryAgain.Exit, 0, `"code": 11`},
		{cni.Status, "", cni.NotReady.Exit, 0, `"code": 50`},
		{cni.Del, "", 0, 1, ""},
		{cni.Add, "MTU=1", cni.BadEnvironment.Exit, 0, "MTU"},
		{cni.Add, "PORT_UUID=a28c7404-7495-4557-b7fc-3e293508dbc6;IPV4=10.0.0.15/16;PORT_TYPE=tap", cni.UnknownContainer.Exit, 0, "/run/netns/none"},
	} {
		r := newRig(t)
		code, out := r.run(t, row.verb, row.args)
		if code != row.exit || !strings.Contains(out, row.says) || r.owed(t) != row.owed {
			t.Errorf("%s %s: exit status %d, %d owed, want %d, %d and %q\n%s", row.verb, row.args, code, r.owed(t), row.exit, row.owed, row.says, out)
		}
	}
}

// Where the configuration names an API server STATUS asks that, and so does ADD; GC and CHECK are the daemon's.
func TestByAPI(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		verb   string
		answer error
		exit   int
	}{
		{cni.Status, nil, 0},
		{cni.Status, cni.NotReady.Errorf("401"), cni.NotReady.Exit},
		{cni.Status, cni.TryAgain.Errorf("it does not answer"), cni.NotReady.Exit},
		{cni.Add, nil, 0},
		{cni.Add, cni.TimedOut.Errorf("no port"), cni.TimedOut.Exit},
		{cni.GC, nil, cni.TryAgain.Exit},
		{cni.Check, nil, cni.TryAgain.Exit},
	} {
		r := newRig(t)
		var asked []string
		r.api = func(_ context.Context, c cni.Call, _ cni.Config, _ *static.Bindings) ([]byte, error) {
			asked = append(asked, c.Verb)
			return nil, row.answer
		}
		code, out := r.run(t, row.verb, "")
		if byAPI := row.verb == cni.Status || row.verb == cni.Add; code != row.exit || (len(asked) == 1) != byAPI {
			t.Errorf("%s answered with %v: exit status %d, want %d; the API was asked for %v\n%s", row.verb, row.answer, code, row.exit, asked, out)
		}
	}
}

// What the daemon has been asked already nobody else does, though all is said that it takes: an ADD, half made, may be there. A DEL is written down.
func TestLost(t *testing.T) {
	t.Parallel()
	const given = "PORT_UUID=a28c7404-7495-4557-b7fc-3e293508dbc6;IPV4=10.0.0.15/16;PORT_TYPE=tap"
	for _, row := range []struct {
		verb       string
		exit, owed int
	}{{cni.Add, cni.TryAgain.Exit, 0}, {cni.Check, cni.TryAgain.Exit, 0}, {cni.Del, 0, 1}} {
		r := newRig(t)
		r.lost = true
		if code, out := r.run(t, row.verb, given); code != row.exit || r.owed(t) != row.owed {
			t.Errorf("%s: exit status %d, %d owed, want %d and %d\n%s", row.verb, code, r.owed(t), row.exit, row.owed, out)
		}
	}
}

func TestByDaemon(t *testing.T) {
	t.Parallel()
	refused := cni.NewReply(nil, cni.Exhausted.Errorf("no address"))
	for _, row := range []struct {
		name, verb string
		replies    []cni.Reply
		exit, owed int
		says       string
	}{
		{"answered", cni.Add, []cni.Reply{cni.NewReply([]byte("result"), nil)}, 0, 0, "result"},
		{"refused", cni.Add, []cni.Reply{refused}, cni.Exhausted.Exit, 0, `"code": 101`},
		{"killed", cni.Add, []cni.Reply{{}}, cni.TryAgain.Exit, 0, `"code": 11`},
		{"two steps newer", cni.Add, []cni.Reply{{Protocol: cni.Protocol + 2, Least: cni.Protocol + 1}}, cni.IncompatibleVersion.Exit, 0, "upgrade kuryr-cni"},
		{"DEL refused", cni.Del, []cni.Reply{refused}, cni.Exhausted.Exit, 0, `"code": 101`},
		{"DEL, killed and not back", cni.Del, []cni.Reply{{}}, 0, 1, ""},
		{"DEL, killed and back at once", cni.Del, []cni.Reply{{}, cni.NewReply(nil, nil)}, 0, 0, ""},
	} {
		r := newRig(t)
		asked := r.daemon(t, row.replies...)
		code, out := r.run(t, row.verb, "K8S_POD_NAME=a")
		if code != row.exit || !strings.Contains(out, row.says) || r.owed(t) != row.owed {
			t.Errorf("%s: exit status %d, %d owed, want %d, %d and %q\n%s", row.name, code, r.owed(t), row.exit, row.owed, row.says, out)
		}
		for _, q := range asked() {
			if q.Verb != row.verb || q.Container != "a" || q.Args != "K8S_POD_NAME=a" {
				t.Errorf("%s: asked %+v", row.name, q)
			}
		}
	}
}
