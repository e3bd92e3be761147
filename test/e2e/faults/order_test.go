//go:build e2e

package faults_test

import (
	"context"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// The engine starts first, and finds Kuryr when it comes.
func TestKuryrAfterTheEngine(t *testing.T) {
	t.Parallel()
	r := rig{privatehost.Start(t, privatehost.Options{Docker: true, Kuryr: kuryr, KuryrLater: true}), t}
	r.refused([]string{"kuryr"}, create("early", "10.63.0.0/24")...)
	r.start()
	r.docker(create("early", "10.63.0.0/24")...)
	a, _ := r.run("early-a", "early")
	_, to := r.run("early-b", "early")
	r.pings(a, to)
	r.check("started after the engine")
	r.empty()
}

// The engine restarts while Kuryr is away, with networks and containers of Kuryr's: it
// comes up, and when Kuryr is back all can be used. That holds for a restart and for a
// boot in the wrong order. The engine waits for the plugin as long as it always does,
// which takes most of the time here.
func TestEngineRestartsWithoutKuryr(t *testing.T) {
	for name, restart := range map[string]func(rig){
		"SIGTERM": func(r rig) { r.restartDocker(syscall.SIGTERM) },
		"boot": func(r rig) {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			if err := r.RebootBare(ctx); err != nil {
				r.t.Fatal(err)
			}
			if err := r.StartDocker(ctx); err != nil {
				r.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.docker(create("alone", "10.64.0.0/24")...)
			r.run("alone-a", "alone", "--restart", "always", "-p", "8080:80")
			r.run("alone-b", "alone", "--restart", "always")
			if err := r.KillKuryr(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			restart(r)
			r.docker("ps")
			r.start()
			// What the engine could not start then, it starts when asked.
			r.eventually("the containers do not start", func() string {
				if res := r.sh("docker", "start", "alone-a", "alone-b"); !res.OK() {
					return res.String()
				}
				return ""
			})
			a, _ := r.look("alone-a")
			_, to := r.look("alone-b")
			r.pings(a, to)
			r.docker(create("fresh", "10.65.0.0/24")...)
			r.run("alone-c", "fresh")
			r.check("with Kuryr back")
		})
	}
}
