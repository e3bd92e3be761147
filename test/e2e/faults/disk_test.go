//go:build e2e

package faults_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// On a disk that takes a tenth of a second for each write, forty containers start at
// once, what runs goes on, and what writes nothing is answered.
func TestSlowDisk(t *testing.T) {
	r := newRig(t)
	r.docker(create("slow", "10.71.0.0/24")...)
	a, _ := r.run("slow-a", "slow")
	_, to := r.run("slow-b", "slow")
	stop := r.inject("fdatasync,fsync:delay_enter=100000")
	const n = 40
	results := make([]privatehost.Result, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			results[i] = r.sh(
				"docker", "run", "-d", "--name", fmt.Sprintf("slow-%d", i), "--network", "slow",
				"busybox", "sleep", "1000000",
			)
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	answered := 0
	for writing := true; writing; {
		select {
		case <-done:
			writing = false
		default:
		}
		r.pings(a, to)
		for _, command := range [][]string{{"status"}, {"network", "list"}, {"port", "list"}} {
			r.must(append([]string{kuryr}, command...)...)
			answered++
		}
	}
	t.Logf("%d commands were answered meanwhile", answered)
	for _, res := range results {
		if !res.OK() {
			t.Error(res)
		}
	}
	stop()
	r.check("after a slow disk")
	r.empty()
}

// smallState gives Kuryr's state a file system of its own.
const smallState = "mount -t tmpfs -o size=8m,mode=700 tmpfs /var/lib/kuryr"

// fill leaves not a byte in a folder; free undoes it.
const (
	fill = "dd if=/dev/zero of=%[1]s/filler bs=4k 2>/dev/null; df %[1]s | grep -q 100%%"
	free = "rm %s/filler"
)

// On a full disk nothing new can be made, and the message says why and where; what runs
// goes on, what goes is remembered, and when there is room again all is well without a
// restart.
func TestFullDisk(t *testing.T) {
	r := newRig(t, smallState)
	r.docker(create("full", "10.72.0.0/24")...)
	a, _ := r.run("full-a", "full")
	_, to := r.run("full-b", "full", "-p", "8080:80")
	r.docker("run", "-d", "--name", "full-goes", "--network", "full", "busybox", "sleep", "1000000")
	r.must("sh", "-c", fmt.Sprintf(fill, "/var/lib/kuryr"))
	// The store has some pages of its own left.
	made := 0
	for ; made < 200; made++ {
		if !r.sh(
			append(
				[]string{"docker"},
				create(fmt.Sprintf("more-%d", made), fmt.Sprintf("10.73.%d.0/24", made))...,
			)...,
		).OK() {
			break
		}
	}
	t.Logf("%d networks fitted into a full disk", made)
	words := []string{"no space left on device", "/var/lib/kuryr/kuryr.db"}
	r.refused(words, create("nope", "10.74.0.0/24")...)
	r.refused(words, "run", "--name", "full-none", "--network", "full", "busybox", "true")
	r.pings(a, to)
	r.must(kuryr, "status")
	r.must(kuryr, "port", "list")
	r.check("on a full disk")
	r.docker("rm", "-f", "full-goes", "full-none")
	r.must("sh", "-c", fmt.Sprintf(free, "/var/lib/kuryr"))
	r.docker(create("again", "10.75.0.0/24")...)
	c, _ := r.run("full-c", "full")
	r.pings(c, to)
	r.check("with room again")
	r.restart()
	r.pings(c, to)
	r.check("after a restart")
	r.empty()
}

// smallRun gives the pins of namespaces and the sockets a file system of few inodes.
const smallRun = "mount -t tmpfs -o size=1m,nr_inodes=40,mode=755 tmpfs /run/kuryr"

// With /run full no network can be made, and the message says so; it is well again without a restart.
func TestFullRun(t *testing.T) {
	r := newRig(t, smallRun)
	r.docker(create("run", "10.76.0.0/24")...)
	a, _ := r.run("run-a", "run")
	_, to := r.run("run-b", "run")
	r.must("sh", "-c", "i=0; while touch /run/kuryr/filler-$i; do i=$((i+1)); done 2>/dev/null; ls /run/kuryr/filler-1")
	r.refused([]string{"no space left on device", "/run/kuryr/netns"}, create("nope", "10.77.0.0/24")...)
	r.pings(a, to)
	r.must(kuryr, "status")
	r.must(kuryr, "port", "list")
	r.run("run-c", "run") // needs no pin
	r.docker("rm", "-f", "run-c")
	r.check("with /run full")
	r.must("sh", "-c", "rm /run/kuryr/filler-*")
	r.docker(create("again", "10.77.0.0/24")...)
	c, other := r.run("run-d", "again")
	r.pings(c, other)
	r.check("with room again")
	r.restart()
	r.check("after a restart")
	r.empty()
}

// A disk that fails, or a file system that the kernel has made read-only: reads go on,
// writes are refused with the reason, nothing is half made, and the store and the kernel
// are one whatever reached the disk.
func TestFailingDisk(t *testing.T) {
	for name, fault := range map[string]struct{ inject, says string }{
		"EIO at fdatasync":       {"fdatasync,fsync:error=EIO", "input/output error"},
		"EIO at write":           {"pwrite64:error=EIO", "input/output error"},
		"read-only":              {"pwrite64:error=EROFS", "read-only file system"},
		"EIO at every second":    {"fdatasync,fsync:error=EIO:when=2+2", "input/output error"},
		"full at the last write": {"pwrite64:error=ENOSPC:when=4+4", "no space left on device"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.docker(create("sick", "10.78.0.0/24")...)
			a, _ := r.run("sick-a", "sick")
			_, to := r.run("sick-b", "sick")
			r.docker("run", "-d", "--name", "sick-goes", "--network", "sick", "busybox", "sleep", "1000000")
			stop := r.inject(fault.inject)
			r.refused([]string{fault.says, "/var/lib/kuryr/"}, create("nope", "10.79.0.0/24")...)
			r.sh("docker", "run", "--name", "sick-none", "--network", "sick", "busybox", "true")
			r.docker("rm", "-f", "sick-goes")
			r.pings(a, to)
			r.must(kuryr, "port", "list")
			stop()
			r.check("after the fault")
			r.sh("docker", "rm", "-f", "sick-none")
			r.takesOver(create("nope", "10.79.0.0/24"))
			c, _ := r.run("sick-c", "sick")
			r.pings(c, to)
			r.check("after new work")
			r.restart()
			r.pings(c, to)
			r.check("after a restart")
			r.empty()
		})
	}
}

// takesOver makes again what was refused on a bad disk, of which something may be left.
// Where not even its end could be written down the range is held for a minute, and the
// message says so.
func (r rig) takesOver(create []string) {
	r.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		res := r.sh(append([]string{"docker"}, create...)...)
		if res.OK() {
			return
		}
		if !strings.Contains(res.Stderr, "try again in a minute") || time.Now().After(end) {
			r.t.Fatal(res)
		}
	}
}
