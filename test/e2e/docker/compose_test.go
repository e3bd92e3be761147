//go:build e2e

package docker_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// A project with a public, a private and an internal network, as docker-compose's users write it.
const composeFile = `version: "2.4"
services:
  web:
    image: box
    command: [probe, serve, "7000"]
    init: true
    restart: always
    stop_grace_period: 1s
    ports: ["8100:7000", "7001"]
    networks:
      public:
        aliases: [www, site]
        ipv4_address: 10.100.1.10
        ipv6_address: fd00:100:1::10
      private:
        priority: 10
  worker:
    image: box
    command: [probe, serve, "7000"]
    depends_on: [web]
    stop_grace_period: 1s
    networks: [private, vault]
  store:
    image: box
    command: [probe, serve, "7000"]
    stop_grace_period: 1s
    volumes: ["data:/data"]
    networks:
      vault:
        ipv4_address: 10.100.3.77
networks:
  public:
    driver: DRIVER
    enable_ipv6: true
    driver_opts:
      com.docker.network.driver.mtu: "1400"
    ipam:
      driver: IPAM
      config:
        - {subnet: 10.100.1.0/24, gateway: 10.100.1.254, ip_range: 10.100.1.128/25, aux_addresses: {printer: 10.100.1.129}}
        - {subnet: "fd00:100:1::/64"}
  private:
    driver: DRIVER
    driver_opts:
      WAYOUT
    ipam: {driver: IPAM, config: [{subnet: 10.100.2.0/24}]}
  vault:
    driver: DRIVER
    internal: true
    ipam: {driver: IPAM, config: [{subnet: 10.100.3.0/24}]}
volumes:
  data: {}
`

// project is a compose project on a host.
type project struct {
	rig
	file string
}

func (p project) compose(t *testing.T, args ...string) string {
	t.Helper()
	argv := append([]string{"docker-compose", "--ansi", "never", "-p", "shop", "-f", p.file}, args...)
	res := askingAgain(func() privatehost.Result {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		return p.Exec(ctx, argv...)
	})
	if !res.OK() {
		t.Fatal(res)
	}
	return res.Out()
}

func TestCompose(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	untilEngine(t, 24) // version 1 of compose reads what later engines no longer tell of images
	r := newRig(t)
	p := project{r, filepath.Join(t.TempDir(), "docker-compose.yml")}
	out := "shop: public" // means nothing
	if onNeutron {
		out = strings.Replace(outsideNetwork, "=", ": ", 1)
	}
	text := strings.NewReplacer("DRIVER", driver, "IPAM", driver, "WAYOUT", out).Replace(composeFile)
	if err := os.WriteFile(p.file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	before, err := r.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	web := func(t *testing.T) box { t.Helper(); return r.look(t, "shop_web_1", "shop_public") }
	// whole checks the project as it is written, with so many workers.
	whole := func(t *testing.T, workers int) {
		t.Helper()
		w, store := web(t), r.look(t, "shop_store_1", "shop_vault")
		if w.ip4.String() != "10.100.1.10" || w.ip6.String() != "fd00:100:1::10" || store.ip4.String() != "10.100.3.77" {
			t.Errorf("not the addresses asked for: %s %s %s", w.ip4, w.ip6, store.ip4)
		}
		if link := w.in(
			"sh", "-c",
			"ip -o link show dev $(ip -o -4 addr | sed -n 's/^[0-9]*: \\([a-z0-9]*\\) *inet "+
				"10.100.1.10.*/\\1/p')",
		); !strings.Contains(link.Stdout, " mtu 1400 ") {
			t.Errorf("not the MTU asked for: %s", link)
		}
		answers(t, r, host4, 8100)
		answers(t, r, host6, 8100)
		back := r.look(t, "shop_web_1", "shop_private")
		seen := map[netip.Addr]string{back.ip4: "web"}
		for i := range workers {
			name := fmt.Sprintf("shop_worker_%d", i+1)
			b, inner := r.look(t, name, "shop_private"), r.look(t, name, "shop_vault")
			if other := seen[b.ip4]; other != "" {
				t.Errorf("%s has the address of %s", name, other)
			}
			seen[b.ip4] = name
			reaches(t, b.in, back.ip4, b.ip4)
			reaches(t, b.in, store.ip4, inner.ip4)
			getsOut(t, b)
			for service, at := range map[string]netip.Addr{"web": back.ip4, "store": store.ip4, "shop_web_1": back.ip4} {
				if got := r.docker(t, "exec", name, "ping", "-c", "1", "-W", "10", service); !strings.Contains(got, at.String()) {
					t.Errorf("for %s, %s is not %s:\n%s", name, service, at, got)
				}
			}
		}
		cut(t, store.in, out4)
		cut(t, store.in, w.ip4)
	}
	t.Run("up", func(t *testing.T) {
		p.compose(t, "up", "-d")
		whole(t, 1)
		guest := r.run(t, "guest", "shop_public")
		inside(t, "10.100.1.128/25", guest.ip4)
		if guest.ip4.String() == "10.100.1.129" {
			t.Error("an aux address was given")
		}
		for _, alias := range []string{"www", "site", "web"} {
			if got := r.docker(
				t, "exec", "guest", "ping", "-c", "1", "-W", "10", alias,
			); !strings.Contains(got, "(10.100.1.10)") &&
				!strings.Contains(got, "(fd00:100:1::10)") {
				t.Errorf("%s is not the web's address:\n%s", alias, got)
			}
		}
		// Names are of the networks that one is on, no others. The engine asks the host's
		// servers then, which there are none of.
		if res := r.sh(
			"docker", "exec", "shop_store_1", "timeout", "1", "ping", "-c", "1", "-W", "1", "www",
		); strings.Contains(res.Stdout, "PING") {
			t.Errorf("the vault's store knows a name of the public network: %s", res)
		}
	})
	t.Run("up again changes nothing", func(t *testing.T) {
		was := r.docker(t, "ps", "-q", "--no-trunc")
		p.compose(t, "up", "-d")
		if now := r.docker(t, "ps", "-q", "--no-trunc"); now != was {
			t.Errorf("other containers:\n%s\n%s", was, now)
		}
	})
	t.Run("scale", func(t *testing.T) {
		p.compose(t, "up", "-d", "--scale", "worker=3")
		whole(t, 3)
		p.compose(t, "up", "-d", "--scale", "worker=1")
		whole(t, 1)
	})
	t.Run("recreate", func(t *testing.T) {
		p.compose(t, "up", "-d", "--force-recreate")
		whole(t, 1)
	})
	t.Run("stop and start", func(t *testing.T) {
		p.compose(t, "stop")
		silent(t, r, host4, 8100)
		p.compose(t, "start")
		whole(t, 1)
		p.compose(t, "restart", "web")
		whole(t, 1)
	})
	t.Run("restart policy", func(t *testing.T) {
		was := web(t)
		r.must(t, "kill", "-9", was.pid)
		eventually(t, 20*time.Second, func() string {
			if pid := r.docker(
				t, "inspect", "-f", "{{.State.Pid}} {{.State.Running}}", "shop_web_1",
			); !strings.HasSuffix(pid, "true") || strings.HasPrefix(pid, was.pid+" ") {
				return "the container did not come back: " + pid
			}
			return ""
		})
		eventually(t, 10*time.Second, func() string {
			if res := r.outside(probe, "tcp", at(host4, 8100)); !res.OK() {
				return res.String()
			}
			return ""
		})
		whole(t, 1)
	})
	t.Run("down", func(t *testing.T) {
		p.compose(t, "down", "-v", "--timeout", "1")
		for _, noun := range []string{"network", "subnet", "subnetpool", "port", "router", "floatingip"} {
			eventually(t, 15*time.Second, func() string {
				if left := r.list(t, noun); len(left) > 0 {
					return fmt.Sprintf("kuryr %s list: %v", noun, left)
				}
				return ""
			})
		}
		eventually(t, 15*time.Second, func() string {
			after, err := r.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			diff := before.Diff(
				after, privatehost.Links, privatehost.Addresses, privatehost.Routes,
				privatehost.Rules, privatehost.Namespaces,
			)
			return strings.Join(slices.DeleteFunc(diff, func(l string) bool { return strings.Contains(l, "docker0") }), "\n")
		})
		p.compose(t, "up", "-d") // and again from nothing
		whole(t, 1)
		p.compose(t, "down", "-v", "--timeout", "1")
	})
}
