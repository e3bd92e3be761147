//go:build e2e

// Package soak_test lets forty users at once start, stop, connect and remove containers
// on a private host while Kuryr and the Docker engine are killed at random, and then
// compares, object by object, what Docker's API, Kuryr's store and the kernel say. It
// must not look into Kuryr but through its commands and its plugin socket.
//
// Kuryr removes by itself what Docker has forgotten, after a docker.forget_after of
// seconds: in the end nothing may differ. Only what Docker's own API contradicts itself
// about is counted instead, as long as the container is there.
//
// SOAK is how long (60s), KURYR_SOAK_SEED repeats the choices of an earlier run (not
// their timing), KURYR_BIN names the program.
package soak_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

var kuryr string

func TestMain(m *testing.M) {
	kuryr = privatehost.Program("../../../bin/kuryr", "make build")
	os.Exit(m.Run())
}

// limit bounds a command. The engine retries a plugin's call for half a minute, and a command makes several.
const limit = 4 * time.Minute

const users = 40

// forgetful is Kuryr's environment: a grace that a test can wait for, and long enough
// that Docker is done with what it has begun.
var forgetful = []string{"KURYR_DOCKER_FORGET_AFTER=5s"}

// soak is one host and what is known of it.
type soak struct {
	*privatehost.Host
	t    *testing.T
	seed uint64
	bare privatehost.Snapshot
	// calm is set while nothing is killed: then no command may fail.
	calm bool
	done map[string]int // commands that succeeded, by verb
	fail map[string]int // and that did not
	mu   sync.Mutex

	verdict []string // what was wrong
	judging sync.Mutex
}

// bad notes what is wrong. It is said at once, and again after the logs, where it is seen.
func (s *soak) bad(format string, args ...any) {
	s.t.Helper()
	s.t.Errorf(format, args...)
	s.judging.Lock()
	defer s.judging.Unlock()
	s.verdict = append(s.verdict, fmt.Sprintf(format, args...))
}

func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(setting("SOAK", "60s"))
	if err != nil {
		t.Fatal("SOAK: ", err)
	}
	seed, err := strconv.ParseUint(setting("KURYR_SOAK_SEED", strconv.FormatInt(time.Now().UnixNano()%1e9, 10)), 10, 64)
	if err != nil {
		t.Fatal("KURYR_SOAK_SEED: ", err)
	}
	t.Logf("KURYR_SOAK_SEED=%d SOAK=%s", seed, length)
	s := &soak{t: t, seed: seed, done: map[string]int{}, fail: map[string]int{}}
	t.Cleanup(func() {
		if len(s.verdict) > 0 {
			t.Logf("SOAK FAILED, KURYR_SOAK_SEED=%d:\n%s", seed, strings.Join(s.verdict, "\n"))
		}
	})
	s.Host = privatehost.Start(t, privatehost.Options{Docker: true, Kuryr: kuryr, KuryrEnv: forgetful})
	s.bare = s.snapshot()
	s.networks()

	s.calm = true
	s.crowd(length/3, func(context.Context) {})
	t.Logf("calm: %v", s.done)
	s.agree("after a time without kills")
	if t.Failed() {
		return
	}
	s.calm = false
	clear(s.done)
	var kills map[string]int
	s.crowd(length-length/3, func(ctx context.Context) { kills = s.killing(ctx) })
	t.Logf("storm: %v, failed %v, kills %v", s.done, s.fail, kills)
	s.agree("after the kills")

	s.removeAll()
	s.agree("with everything removed")
	s.nothingLeft()
}

func setting(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// shared are the networks that all users share; a user's second network is another of these.
var shared = []struct {
	name string
	args []string
}{
	{"soak-a", []string{"--ipam-driver", "kuryr", "--subnet", "10.81.0.0/22", "-o", "kuryr.router=soak"}},
	{"soak-b", []string{
		"--ipam-driver", "kuryr", "--ipv6", "--subnet", "10.82.0.0/22", "--subnet", "fd82::/64",
		"-o", "kuryr.router=soak",
	}},
	{"soak-c", []string{"--ipam-driver", "kuryr", "--subnet", "10.83.0.0/22"}},
	{"soak-d", []string{"--ipam-driver", "kuryr", "--internal", "--subnet", "10.84.0.0/22"}},
	{"soak-e", []string{"--subnet", "10.85.0.0/22"}}, // addresses by Docker's own IPAM driver
}

func (s *soak) networks() {
	s.t.Helper()
	for _, n := range shared {
		if r := s.docker(append(append([]string{"network", "create", "-d", "kuryr"}, n.args...), n.name)...); !r.OK() {
			s.t.Fatal(r)
		}
	}
}

func (s *soak) docker(args ...string) privatehost.Result {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return s.Docker(ctx, args...)
}

func (s *soak) sh(argv ...string) privatehost.Result {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return s.Exec(ctx, argv...)
}

func (s *soak) snapshot() privatehost.Snapshot {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	snap, err := s.Snapshot(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return snap
}

// crowd has the users at work for a time, while meanwhile runs, and waits for both.
func (s *soak) crowd(length time.Duration, meanwhile func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), length)
	defer cancel()
	var wg sync.WaitGroup
	for i := range users {
		u := &user{soak: s, id: i, rand: rand.New(rand.NewPCG(s.seed, uint64(i)))}
		wg.Go(func() {
			for ctx.Err() == nil {
				u.step(ctx)
			}
		})
	}
	meanwhile(ctx)
	wg.Wait()
}

// user works on one container, or, every eighth, on one network and a container on it.
type user struct {
	*soak
	id      int
	rand    *rand.Rand
	round   int
	exists  bool
	running bool
	first   int   // the network it was run on
	on      []int // others it is connected to
}

func (u *user) name() string { return fmt.Sprintf("soak-%d-%d", u.id, u.round) }

// do runs a docker command. It tells whether it succeeded; in a calm it must.
func (u *user) do(ctx context.Context, args ...string) bool {
	r := u.docker(args...)
	verb := args[0]
	if verb == "network" {
		verb += " " + args[1]
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if r.OK() {
		u.done[verb]++
		return true
	}
	u.fail[verb]++
	if u.calm {
		u.bad("nothing was killed, and a command failed: %s", r)
	}
	if strings.Contains(r.Stderr, "Cannot connect") {
		wait(ctx, 200*time.Millisecond)
	}
	return false
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (u *user) step(ctx context.Context) {
	if u.id%8 == 7 {
		u.ownNetwork(ctx)
		return
	}
	if !u.exists {
		u.run(ctx)
		return
	}
	switch u.rand.IntN(10) {
	case 0, 1, 2:
		u.remove(ctx)
	case 3, 4:
		u.connect(ctx)
	case 5, 6:
		if len(u.on) > 0 {
			n := u.on[0]
			u.on = u.on[1:]
			u.do(ctx, "network", "disconnect", "-f", shared[n].name, u.name())
		}
	case 7:
		if u.running {
			u.do(ctx, "stop", "-t", "0", u.name())
			u.running = false
		}
	default:
		if !u.running {
			u.running = u.do(ctx, "start", u.name())
		}
	}
}

func (u *user) run(ctx context.Context) {
	u.round++
	u.first, u.on = u.rand.IntN(len(shared)), nil
	args := []string{"run", "-d", "--name", u.name(), "--network", shared[u.first].name, "--stop-timeout", "0"}
	switch u.rand.IntN(6) {
	case 0, 1:
		args = append(args, "-p", fmt.Sprintf("%d:80", 20000+u.id))
	case 2:
		args = append(args, "-p", fmt.Sprintf("%d:80", 20000+u.id), "-p", fmt.Sprintf("%d:53/udp", 20000+u.id))
	case 3:
		if shared[u.first].name == "soak-c" {
			args = append(args, "--ip", fmt.Sprintf("10.83.2.%d", 10+u.id))
		}
	case 4:
		args = append(args, "--restart", "always")
	}
	u.exists = true // perhaps only its name is taken
	u.running = u.do(ctx, append(args, "busybox", "sleep", "1000000")...)
}

func (u *user) remove(ctx context.Context) {
	if u.do(ctx, "rm", "-f", u.name()) || !u.calm {
		u.exists, u.running = false, false // a name is never used again
	}
}

func (u *user) connect(ctx context.Context) {
	n := u.rand.IntN(len(shared))
	if n == u.first || len(u.on) > 0 {
		return
	}
	if u.do(ctx, "network", "connect", shared[n].name, u.name()) {
		u.on = append(u.on, n)
	}
}

// ownNetwork makes a network, runs a container on it, and removes both.
func (u *user) ownNetwork(ctx context.Context) {
	u.round++
	net := fmt.Sprintf("soak-net-%d-%d", u.id, u.round)
	args := []string{"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr"}
	if u.rand.IntN(2) == 0 {
		args = append(args, "--subnet", fmt.Sprintf("10.86.%d.0/24", u.id))
	}
	if !u.do(ctx, append(args, net)...) {
		return
	}
	u.do(ctx, "run", "-d", "--name", u.name(), "--network", net, "busybox", "sleep", "1000000")
	u.do(ctx, "rm", "-f", u.name())
	u.do(ctx, "network", "rm", net)
}
