//go:build e2e

package cni_test

import (
	"path/filepath"
	"testing"
)

// limited is what a container wants whose port is limited.
const limited = `"runtimeConfig": {"bandwidth": {"ingressRate": 8000000}}`

// dying has the daemon that runs from now on die at a failpoint.
func (r *rig) dying(t *testing.T, step string) {
	t.Helper()
	r.kill(t)
	r.start(t, "KURYR_FAILPOINT="+step)
}

// killedAdd has the daemon killed at a step of an ADD: repeated on the next daemon it
// ends with what was asked for, and after a DEL there is nothing.
func (r *rig) killedAdd(t *testing.T, step, want string, env ...string) {
	t.Helper()
	r.dying(t, step)
	if code, out := r.plugin(t, "ADD", "a", want, env...); code != 21 {
		t.Fatalf("%s: ADD was not killed: exit status %d\n%s", step, code, out)
	}
	<-r.node.Gone()
	r.start(t)
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		if code, out := r.plugin(t, verb, "a", want, env...); code != 0 {
			t.Errorf("%s: %s after a kill: exit status %d\n%s", step, verb, code, out)
		}
	}
}

// killedDel has the daemon killed at a step of a DEL, which is then written down: the next daemon ends it.
func (r *rig) killedDel(t *testing.T, step, want string, env ...string) {
	t.Helper()
	if code, out := r.plugin(t, "ADD", "a", want, env...); code != 0 {
		t.Fatalf("%s: exit status %d\n%s", step, code, out)
	}
	r.dying(t, step)
	if code, out := r.plugin(t, "DEL", "a", want, env...); code != 0 {
		t.Errorf("%s: DEL: exit status %d\n%s", step, code, out)
	}
	<-r.node.Gone()
	r.start(t)
}

// Killed at each step of an ADD and of a DEL, the daemon comes back and ends with what
// was asked for: after a DEL, nothing.
func TestFailpoints(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.must(t, "ip", "netns", "add", "a")
	before := r.snapshot(t)
	r.program = filepath.Join(filepath.Dir(kuryr), "kuryr-failpoints")
	// An ADD that failed is being taken back.
	r.must(t, "ip", "-n", "a", "link", "add", "eth0", "type", "bridge")
	r.dying(t, "agent.del.unplugged")
	if code, out := r.plugin(t, "ADD", "a", limited); code != 21 {
		t.Errorf("agent.del.unplugged: ADD was not killed: exit status %d\n%s", code, out)
	}
	<-r.node.Gone()
	r.must(t, "ip", "-n", "a", "link", "del", "eth0")
	r.start(t)
	r.clean(t, before)
	for _, step := range []string{
		"agent.network.port", "agent.network.policy", "agent.add.claimed", "bind.plug.configured",
		"agent.add.plugged",
	} {
		r.killedAdd(t, step, limited)
		r.clean(t, before)
	}
	// Nobody asks again: what has no interface goes by itself.
	r.dying(t, "agent.add.claimed")
	r.plugin(t, "ADD", "a", limited)
	<-r.node.Gone()
	r.start(t)
	r.clean(t, before)
	for _, step := range []string{"agent.del.unplugged", "agent.network.unpublished", "agent.network.unlimited"} {
		r.killedDel(t, step, limited)
		r.clean(t, before)
	}
}

// The same of a port that CNI_ARGS give.
func TestFailpointsOfStatic(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.must(t, "ip", "netns", "add", "a")
	before := r.snapshot(t)
	r.program = filepath.Join(filepath.Dir(kuryr), "kuryr-failpoints")
	for _, step := range []string{"static.bind.recorded", "static.bind.plugged"} {
		r.killedAdd(t, step, `"args": {}`, givenArgs)
		r.clean(t, before)
	}
	r.killedDel(t, "static.unbind.unplugged", `"args": {}`, givenArgs)
	r.clean(t, before)
}

// The same of a published port.
func TestFailpointsOfPublished(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.routed(t)
	r.must(t, "ip", "netns", "add", "a")
	before := r.snapshot(t)
	r.program = filepath.Join(filepath.Dir(kuryr), "kuryr-failpoints")
	want := `"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}`
	for _, step := range []string{"agent.network.reserved", "agent.network.published"} {
		r.killedAdd(t, step, want)
		r.clean(t, before)
	}
	r.killedDel(t, "agent.network.unpublished", want)
	r.clean(t, before)
}
