//go:build e2e

package docker_test

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// sniffer prints the packets that come by an interface: what a receiver would see,
// whether or not anything listens there.
type sniffer struct {
	cmd   *exec.Cmd
	mu    sync.Mutex
	lines []string
}

// sniff listens in the host.
func (r rig) sniff(t *testing.T, dev, filter string) *sniffer { return r.sniffIn(t, nil, dev, filter) }

// sniff listens in the container's namespace.
func (b box) sniff(t *testing.T, filter string) *sniffer {
	return b.sniffIn(t, []string{"nsenter", "-t", b.pid, "-n", "--"}, "eth0", filter)
}

func (r rig) sniffIn(t *testing.T, enter []string, dev, filter string) *sniffer {
	t.Helper()
	// -Z root: the engine's host has no other user's rights to give to.
	s := &sniffer{cmd: r.Command(
		context.Background(),
		append(
			enter, "tcpdump", "-i", dev, "-Z", "root", "-nn", "-e", "-l", "--immediate-mode",
			filter,
		)...,
	)}
	out, write := io.Pipe()
	complaints, complain := io.Pipe()
	s.cmd.Stdout, s.cmd.Stderr = write, complain
	if err := r.StartCommand(s.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait()
		_, _ = write.Close(), complain.Close()
	}()
	t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	said := bufio.NewScanner(complaints)
	for !strings.Contains(said.Text(), "listening on") {
		if !said.Scan() {
			t.Fatalf("tcpdump did not start: %s", said.Text())
		}
	}
	go func() { _, _ = io.Copy(io.Discard, complaints) }()
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.mu.Lock()
			s.lines = append(s.lines, lines.Text())
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *sniffer) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines[:len(s.lines):len(s.lines)]
}

// until waits for a packet whose line holds mark, sent after all that matters, and
// returns the lines of all that came before: packets keep their order on the way, so what
// is not among them does not come.
func (s *sniffer) until(t *testing.T, mark string) []string {
	t.Helper()
	var before []string
	eventually(t, 10*time.Second, func() string {
		before = s.seen()
		for i, line := range before {
			if strings.Contains(line, mark) {
				before = before[:i]
				return ""
			}
		}
		return "nothing was seen of " + mark + ", only:\n" + strings.Join(before, "\n")
	})
	return before
}

// holding are the lines that have every one of words.
func holding(lines []string, words ...string) (found []string) {
next:
	for _, line := range lines {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		found = append(found, line)
	}
	return found
}
