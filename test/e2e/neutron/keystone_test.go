//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// Kuryr as a user of Keystone's who is no administrator: by all that such a user has,
// with tokens that end in the middle, with credentials that are taken back and with a
// Keystone that goes.
func TestKeystone(t *testing.T) {
	t.Parallel()
	// A boot of its own: Neutron asks Keystone, which stops and gives short tokens.
	l := neutronlab.Start(t, neutronlab.Options{Hosts: 2, Docker: true, Kuryr: kuryr, Keystone: true})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := prepare(ctx, l); err != nil {
		t.Fatal(err)
	}
	t.Run("tokens end", func(t *testing.T) { keys{newRig(t, l)}.tokensEnd() })
	t.Run("variables", func(t *testing.T) { keys{newRig(t, l)}.variables() })
	t.Run("taken back", func(t *testing.T) { keys{newRig(t, l)}.takenBack() })
	t.Run("tls", func(t *testing.T) { keys{newRig(t, l)}.tls(t) })
	t.Run("keystone away", func(t *testing.T) { keys{newRig(t, l)}.keystoneAway() })
}

type keys struct{ *rig }

// again starts Kuryr anew with settings.
func (k keys) again(h host, env ...string) {
	k.Helper()
	if err := h.KillKuryr(syscall.SIGTERM); err != nil {
		k.Fatal(err)
	}
	if err := h.StartKuryr(k.ctx, env...); err != nil {
		k.Fatal(err)
	}
}

// live starts Keystone anew, whose tokens then live so long.
func (k keys) live(life time.Duration) {
	k.Helper()
	k.lab.SetTokenLife(life)
	if err := k.lab.StopKeystone(syscall.SIGKILL); err != nil {
		k.Fatal(err)
	}
	if err := k.lab.StartKeystone(k.ctx); err != nil {
		k.Fatal(err)
	}
}

// authentications are how many the host's Kuryr has had an answer of that status for.
func (k keys) authentications(h host, status string) (n int) {
	k.Helper()
	client := h.UnixClient("/run/kuryr/kuryr.sock")
	resp, err := client.Get("http://kuryr/metrics")
	if err != nil {
		k.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		k.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "kuryr_neutron_requests_total{") &&
			strings.Contains(line, `"tokens"`) && strings.Contains(line, `status="`+status+`"`) {
			if _, err := fmt.Sscan(strings.TrimSpace(line)[strings.LastIndex(line, " "):], &n); err != nil {
				k.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// tokensEnd: containers start, are reached and stop on one host by password and on
// another by application credential, both out of clouds.yaml, over the ends of several
// tokens, and no call fails of that.
func (k keys) tokensEnd() {
	const life = 40 * time.Second
	k.live(life)
	clouds := map[string]string{k.h1.Name: neutronlab.CloudPassword, k.h2.Name: neutronlab.CloudCredential}
	hosts := []host{k.h1, k.h2}
	for i, h := range hosts {
		k.again(h, "KURYR_NEUTRON_CLOUD="+clouds[h.Name])
		h.network("keys", "--subnet", fmt.Sprintf("10.9%d.0.0/24", i), "--gateway", fmt.Sprintf("10.9%d.0.1", i))
	}
	a := k.h1.run("keys-a", "keys")
	if owner := a.port().Text("project_id"); owner != k.lab.Project() {
		k.Errorf("the port is of project %s, not %s", owner, k.lab.Project())
	}
	for begin, n := time.Now(), 0; time.Since(begin) < 2*life || n < 2; n++ {
		for _, h := range hosts {
			b := h.run(fmt.Sprintf("keys-%d", n), "keys")
			if h.Name == a.Name {
				k.reaches(b.in, a.ip4, b.ip4)
			}
			h.docker("rm", "-f", b.name)
		}
	}
	for _, h := range hosts {
		if n := k.authentications(h, "200"); n < 2 {
			k.Errorf("%s authenticated %d times: no token ended", clouds[h.Name], n)
		}
	}
	k.live(0)
}

// variables: Kuryr without a clouds.yaml, by a password and by a token that was given;
// what Keystone does not take is said in words that tell whose it is.
func (k keys) variables() {
	id := k.lab.Identity()
	token, err := k.lab.Login(k.ctx, id.Name, id.Password, id.Name)
	if err != nil {
		k.Fatal(err)
	}
	variables := func(more ...string) []string {
		return append([]string{
			"KURYR_NEUTRON_CLOUD=", "KURYR_NEUTRON_CLOUDS_FILE=",
			"OS_AUTH_URL=" + neutronlab.KeystoneURL, "OS_REGION_NAME=RegionOne",
			"OS_PROJECT_NAME=" + id.Name, "OS_PROJECT_DOMAIN_ID=default"}, more...)
	}
	user := []string{"OS_USERNAME=" + id.Name, "OS_USER_DOMAIN_ID=default"}
	k.again(k.h1, variables(append(user, "OS_PASSWORD="+id.Password)...)...)
	k.h1.network("keys", "--subnet", "10.92.0.0/24")
	k.again(k.h2, variables("OS_TOKEN="+token)...)
	k.h2.network("keys", "--subnet", "10.93.0.0/24")

	k.again(k.h1, variables(append(user, "OS_PASSWORD=another")...)...)
	k.h1.refused(
		[]string{"refuses the credentials", fmt.Sprintf("the password of user %q", id.Name)},
		"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "wrong",
	)
	k.again(k.h2, variables("OS_TOKEN=another")...)
	k.h2.refused(
		[]string{"refuses the credentials", "the token that was given"}, "network", "create", "-d",
		"kuryr", "--ipam-driver", "kuryr", "wrong",
	)
	for _, h := range []host{k.h1, k.h2} {
		k.again(h)
	}
}

// takenBack: when an application credential is taken back, what gives fails with a
// sentence that names it, and the credential is not sent with every call; what cleans up
// is owed, and done by itself as soon as clouds.yaml has another.
func (k keys) takenBack() {
	const life = 40 * time.Second
	k.live(life)
	k.again(k.h2, "KURYR_NEUTRON_CLOUD="+neutronlab.CloudCredential)
	k.h2.network("back", "--subnet", "10.94.0.0/24")
	b := k.h2.run("back-b", "back")
	old := k.lab.Identity().Credential
	if err := k.lab.DeleteCredential(k.ctx); err != nil {
		k.Fatal(err)
	}
	create := []string{"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "wrong"}
	k.until("the credential is still taken", func(context.Context) error {
		if res := k.h2.sh(append([]string{"docker"}, create...)...); res.OK() {
			k.h2.docker("network", "rm", "wrong")
			return fmt.Errorf("a network was made")
		}
		return nil
	})
	words := []string{"Keystone", "refuses the credentials", "application credential", old, "tried again at "}
	k.h2.refused(words, create...)
	before := k.authentications(k.h2, "401") + k.authentications(k.h2, "404")
	for range 5 {
		k.h2.refused(words, create...)
	}
	if after := k.authentications(k.h2, "401") + k.authentications(k.h2, "404"); before < 1 || after > before+1 {
		k.Errorf("the credential was sent %d times at first and %d times after five calls more", before, after)
	}
	mac := b.mac
	k.h2.docker("rm", "-f", "back-b")
	if ports := k.find("ports", "mac_address="+mac); len(ports) != 1 {
		k.Errorf("%d ports while there are no credentials to delete one", len(ports))
	}
	if err := k.lab.CreateCredential(k.ctx); err != nil {
		k.Fatal(err)
	}
	k.until("what was owed is not done", func(context.Context) error {
		if ports := k.find("ports", "mac_address="+mac); len(ports) != 0 {
			return fmt.Errorf("the port is still there: %v", ports)
		}
		return nil
	})
	k.live(0)
}

// keystoneAway: with a token in hand nobody needs Keystone, be it away or starting again.
func (k keys) keystoneAway() {
	k.again(k.h1)
	k.h1.network("away", "--subnet", "10.95.0.0/24")
	k.h1.docker("rm", "-f", k.h1.run("away-before", "away").name) // Neutron has seen the token
	count := k.authentications(k.h1, "200")
	if err := k.lab.StopKeystone(syscall.SIGKILL); err != nil {
		k.Fatal(err)
	}
	away := k.h1.run("away", "away")
	k.h1.docker("rm", "-f", away.name)
	if err := k.lab.StartKeystone(k.ctx); err != nil {
		k.Fatal(err)
	}
	k.h1.run("away-after", "away")
	if n := k.authentications(k.h1, "200"); n != count {
		k.Errorf("%d authentications, then %d: the token was not kept", count, n)
	}
}
