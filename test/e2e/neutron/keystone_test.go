//go:build e2e

package neutron_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// Kuryr as a user of Keystone's, by password and by application credential, who is no administrator, with tokens that
// expire between and during what it does; none of its calls fails for that.
func TestKeystone(t *testing.T) {
	const life = 15 * time.Second
	l := neutronlab.Start(t, neutronlab.Options{Hosts: 2, Docker: true, Kuryr: kuryr, Keystone: true, TokenLife: life})
	r := newRig(t, l)
	if err := prepare(r.ctx, l); err != nil {
		t.Fatal(err)
	}
	for _, cloud := range []string{neutronlab.CloudPassword, neutronlab.CloudCredential} {
		t.Run(cloud, func(t *testing.T) {
			r := newRig(t, l)
			for _, h := range []host{r.h1, r.h2} {
				if err := h.KillKuryr(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				if err := h.StartKuryr(r.ctx, "KURYR_NEUTRON_CLOUD="+cloud); err != nil {
					t.Fatal(err)
				}
			}
			r.h1.network("keys", "--subnet", "10.90.0.0/24", "--gateway", "10.90.0.1")
			a := r.h1.run("keys-a", "keys")
			if owner := a.port().Text("project_id"); owner != l.Project() {
				t.Errorf("the port is of project %s, not %s", owner, l.Project())
			}
			for begin, n := time.Now(), 0; time.Since(begin) < 2*life; n++ {
				b := r.h1.run(fmt.Sprintf("keys-%d", n), "keys")
				r.reaches(b.in, a.ip4, b.ip4)
				r.h1.docker("rm", "-f", b.name)
			}
		})
	}
}
