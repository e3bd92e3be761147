//go:build e2e

package openstack_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// stepLimit is for one command. They take a tenth of a second.
const stepLimit = 3 * time.Minute

// object is one as the command shows it, by the names of its columns.
type object map[string]any

func (o object) text(column string) string {
	s, _ := o[column].(string)
	return s
}

func (o object) id() string { return o.text("id") }

// session is an openstack command that reads commands: to start it takes longer than all else.
type session struct {
	*testing.T
	in     io.WriteCloser
	lines  chan string
	serial int
}

// open starts the command with these settings of its environment, and without any other of OpenStack's.
func open(t *testing.T, env ...string) *session {
	t.Helper()
	cmd := exec.Command("openstack")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "OS_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(
		cmd.Env, "PYTHONUNBUFFERED=1", "PYTHONWARNINGS=ignore", "HOME="+t.TempDir(), "no_proxy=*", "NO_PROXY=*",
	)
	cmd.Env = append(cmd.Env, env...)
	cmd.Dir = t.TempDir() // with no clouds.yaml
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &session{T: t, in: in, lines: make(chan string)}
	go func() {
		defer close(s.lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			s.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		for range s.lines { // what it says at its end
		}
		_ = cmd.Wait()
	})
	return s
}

// in gives the session to a subtest.
func (s *session) sub(name string, f func(*session)) {
	s.Run(name, func(t *testing.T) {
		same := *s
		same.T = t
		f(&same)
		s.serial = same.serial
	})
}

// do runs a command and gives all that it says. Its arguments are quoted as a shell has it.
func (s *session) do(command string, args ...any) string {
	s.Helper()
	command = fmt.Sprintf(command, args...)
	s.serial++
	mark := fmt.Sprintf("kuryr-step-%d", s.serial)
	if _, err := fmt.Fprintf(s.in, "%s\nshell echo %s\n", command, mark); err != nil {
		s.Fatalf("%s: %v", command, err)
	}
	var said []string
	timeout := time.NewTimer(stepLimit)
	defer timeout.Stop()
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				s.Fatalf("%s: openstack has ended\n%s", command, strings.Join(said, "\n"))
			}
			if line == mark {
				return strings.TrimSpace(strings.Join(said, "\n"))
			}
			said = append(said, line)
		case <-timeout.C:
			s.Fatalf("%s: no end in %v\n%s", command, stepLimit, strings.Join(said, "\n"))
		}
	}
}

// quiet runs a command that says nothing when it succeeds.
func (s *session) quiet(command string, args ...any) {
	s.Helper()
	if said := s.do(command, args...); said != "" {
		s.Fatalf("%s:\n%s", fmt.Sprintf(command, args...), said)
	}
}

// one runs a command that shows one object.
func (s *session) one(command string, args ...any) object {
	s.Helper()
	var o object
	s.decode(&o, command, args...)
	return o
}

// list runs a command that lists objects.
func (s *session) list(command string, args ...any) []object {
	s.Helper()
	var all []object
	s.decode(&all, command, args...)
	return all
}

func (s *session) decode(into any, command string, args ...any) {
	s.Helper()
	command = fmt.Sprintf(command, args...) + " -f json"
	said := s.do("%s", command)
	if err := json.Unmarshal([]byte(said), into); err != nil {
		s.Fatalf("%s: no JSON:\n%s", command, said)
	}
}

// refused runs a command that must fail and say so with these words.
func (s *session) refused(words, command string, args ...any) {
	s.Helper()
	if said := s.do(command, args...); !strings.Contains(said, words) {
		s.Errorf("%s: it says\n%s\nwant %q", fmt.Sprintf(command, args...), said, words)
	}
}

// is compares columns of an object: pairs of a name and a value, which is compared as JSON prints it.
func (s *session) is(o object, columns ...any) {
	s.Helper()
	for i := 0; i < len(columns); i += 2 {
		name := columns[i].(string)
		have, found := o[name]
		if got, want := printed(have), printed(columns[i+1]); !found || got != want {
			s.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

func printed(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// names are the values of one column, in order.
func names(all []object, column string) string {
	var out []string
	for _, o := range all {
		out = append(out, o.text(column))
	}
	return strings.Join(out, " ")
}
