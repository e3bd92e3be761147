//go:build linux

package ferry

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
)

// asFerry, in its environment, has the test binary be kuryr-cni with the socket that it names.
const asFerry = "FERRY_TEST_SOCKET"

func TestMain(m *testing.M) {
	if socket := os.Getenv(asFerry); socket != "" {
		os.Exit(Ferry{Socket: socket, Whole: "whole"}.Run())
	}
	os.Exit(m.Run())
}

// rig has the test binary in a folder, and beside it the whole program, which says that it is that, its standard input's length and what it begins with.
type rig struct{ program, socket string }

func newRig(t *testing.T, whole string) rig {
	t.Helper()
	r := rig{filepath.Join(t.TempDir(), "kuryr"), filepath.Join(t.TempDir(), "s")}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	nstest.WriteProgram(t, r.program, self)
	if whole != "" {
		nstest.WriteProgram(t, filepath.Join(filepath.Dir(r.program), "whole"), []byte(whole))
	}
	return r
}

const whole = "#!/bin/sh\nread -r text; echo \"whole$* $CNI_COMMAND $text $(wc -c)\"; exit 7\n"

// daemon answers one call with this, and gives the call's message.
func (r rig) daemon(t *testing.T, answer []byte) (asked func() []byte) {
	t.Helper()
	l, err := net.Listen("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	got := make(chan []byte, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		var size uint32
		if binary.Read(conn, binary.BigEndian, &size) != nil {
			return
		}
		message, _ := io.ReadAll(io.LimitReader(conn, int64(size)))
		_, _ = conn.Write(answer)
		got <- message
	}()
	return func() []byte { return <-got }
}

func frame(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func (r rig) run(t *testing.T, verb, input string) (status int, output string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), r.program)
	cmd.Env = []string{asFerry + "=" + r.socket, "PATH=/usr/bin:/bin", "CNI_COMMAND=" + verb, "CNI_CONTAINERID=a", "CNI_NETNS=/run/netns/a", "CNI_IFNAME=eth0", "CNI_ARGS=B=1;C=ü"}
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.Output()
	if failed := new(exec.ExitError); err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func TestFerried(t *testing.T) {
	t.Parallel()
	large := "{" + strings.Repeat(" ", MaxInput-2) + "}"
	for _, row := range []struct {
		name, input string
		status      int
		output      string
	}{
		{"a result", `{"name": "blue"}`, 0, "result"},
		{"nothing", `{"name": "blue"}`, 0, ""},
		{"an error", `{"name": "blue"}`, 106, `{"code": 106}`},
		{"much", large, 0, strings.Repeat("x", maxAnswer-3)},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, whole)
			asked := r.daemon(t, frame(Answer(row.status, []byte(row.output))))
			if status, output := r.run(t, "ADD", row.input); status != row.status || output != row.output {
				t.Errorf("exit status %d, want %d; %d bytes of output, want %d", status, row.status, len(output), len(row.output))
			}
			c, ok := ParseCall(asked())
			if !ok || c.Verb != "ADD" || c.Container != "a" || c.Namespace != "/run/netns/a" || c.Interface != "eth0" || c.Args != "B=1;C=ü" || string(c.Input) != row.input {
				t.Errorf("the daemon was asked %+v", c)
			}
		})
	}
}

// What is not for the ferry the whole program does, with all that the runtime has said.
func TestWhole(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, verb, input string
		answer            []byte // nil: nobody listens
		lost              string
		rest              string
	}{
		{"no daemon", "ADD", "{}\nabc", nil, "", "{} 3"},
		{"no daemon, and much input", "ADD", "{}\n" + strings.Repeat(" ", MaxInput-3), nil, "", "{} 1048573"},
		{"no verb", "", "{}\n", nil, "", "{} 0"},
		{"VERSION", "VERSION", "{}\n", frame(Answer(0, nil)), "", "{} 0"},
		{"another socket", "ADD", `{"socket":"/s"}` + "\n", frame(Answer(0, nil)), "", `{"socket":"/s"} 0`},
		{"JSON", "DEL", "{}\n", frame([]byte(`{"error": {}}`)), "", "{} 0"},
		{"another form", "ADD", "{}\n", frame([]byte{mark, form + 1, 0}), "", "{} 0"},
		{"cut short", "ADD", "{}\n", frame(Answer(0, []byte("result")))[:8], Lost, "{} 0"},
		{"too much", "ADD", "{}\n", binary.BigEndian.AppendUint32(nil, maxAnswer+1), Lost, "{} 0"},
		{"killed", "ADD", "{}\n", []byte{}, Lost, "{} 0"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, whole)
			if row.answer != nil {
				r.daemon(t, row.answer)
			}
			want := "whole" + row.lost + " " + row.verb + " " + row.rest + "\n"
			if status, output := r.run(t, row.verb, row.input); status != 7 || output != want {
				t.Errorf("exit status %d, %q, want 7 and %q", status, output, want)
			}
		})
	}
}

func TestTooMuch(t *testing.T) {
	t.Parallel()
	r := newRig(t, whole)
	r.daemon(t, frame(Answer(0, nil)))
	if status, output := r.run(t, "GC", strings.Repeat(" ", MaxInput+1)); status != exitInput || !strings.Contains(output, fmt.Sprint(MaxInput)) {
		t.Errorf("exit status %d, %s", status, output)
	}
}

func TestNoWhole(t *testing.T) {
	t.Parallel()
	status, output := newRig(t, "").run(t, "ADD", "{}")
	if status != exitLater || !strings.Contains(output, `"code": 11`) || !strings.Contains(output, "whole") {
		t.Errorf("exit status %d, %s", status, output)
	}
}

func TestUsual(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]bool{
		``:                                   true,
		`{"name": "blue", "type": "kuryr"}`:  true,
		`{"sock": 1, "sockets`:               false,
		`{"name": "sockeT"}`:                 false,
		`{"Socket": "/s"}`:                   false,
		`{"\u0073ocket": "/s"}`:              false,
		"{\"\u017focket\": \"/s\"}":          false, // which Go's JSON takes for an s
		`{"name": "soc`:                      true,
		`{"prevResult": {"sockSock": "et"}}`: true,
	} {
		if got := usual([]byte(config)); got != want {
			t.Errorf("%s: %v, want %v", config, got, want)
		}
	}
}

func FuzzParseCall(f *testing.F) {
	f.Add(Call{Verb: "ADD", Container: "a", Input: []byte("{}")}.message())
	f.Add([]byte{mark, form})
	f.Fuzz(func(t *testing.T, message []byte) {
		c, ok := ParseCall(message)
		if ok && !bytes.Equal(c.message(), message) {
			t.Errorf("%q is read as %+v", message, c)
		}
	})
}

func (c Call) message() []byte { return append(c.head(nil), c.Input...) }
