//go:build e2e

package soak_test

import (
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// attempts is how often what Docker refuses to remove is asked for again.
const attempts = 4

// removeAll removes every container and network, as a user would who asks again. An
// engine that was killed many times may refuse at first: it misses the end of a
// container, or counts endpoints of a network that it has not. It mends both when it
// starts.
func (s *soak) removeAll() {
	s.t.Helper()
	s.insist("remove all containers", func() privatehost.Result {
		return s.sh("sh", "-c", "docker ps -aq | xargs -r docker rm -f && test -z \"$(docker ps -aq)\"")
	})
	s.insist("remove all networks", func() privatehost.Result {
		return s.sh(
			"sh", "-c",
			"docker network ls -q --filter driver=kuryr | xargs -r docker network rm && test -z "+
				"\"$(docker network ls -q --filter driver=kuryr)\"",
		)
	})
}

// insist runs a command until it succeeds, and starts the engine anew in between.
func (s *soak) insist(what string, command func() privatehost.Result) {
	s.t.Helper()
	for i := range attempts {
		r := command()
		if r.OK() {
			return
		}
		if i == attempts-1 {
			s.bad("%s: %s", what, r)
			return
		}
		s.t.Logf("%s: %s", what, r)
		_ = s.StopDocker(syscall.SIGTERM)
		s.startDocker()
	}
}

// ours are names and addresses that belong to one object: in rules and set elements nothing of the kind may stay.
var ours = regexp.MustCompile(`\b(kr|tap)[-_]?[0-9a-f]{4,}|10\.8[1-6]\.|fd82::|\. 2[0-9]{4}\b`)

// nothingLeft compares host and store with what they were before the first network.
func (s *soak) nothingLeft() {
	s.t.Helper()
	var left []string
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		left = nil
		for _, line := range s.bare.Diff(s.snapshot()) {
			switch {
			case strings.HasPrefix(line, "+ "+privatehost.Firewall):
				if ours.MatchString(line) {
					left = append(left, line)
				}
			case !strings.Contains(line, privatehost.Firewall) && !strings.Contains(line, privatehost.Forwarding):
				left = append(left, line)
			}
		}
		w, err := s.askStore()
		if err != nil {
			s.t.Fatal(err)
		}
		for noun, all := range map[string]map[string]object{"network": w.networks, "subnet": w.subnets, "port": w.ports,
			"router": w.routers, "pool": w.pools, "floating IP": w.floating} {
			for _, o := range all {
				left = append(left, noun+": "+asJSON(o))
			}
		}
		if len(left) == 0 {
			return
		}
	}
	s.bad("with everything gone there is still:\n%s", strings.Join(left, "\n"))
}
