package docker

import (
	"slices"
	"testing"
)

// optNoProxy is set by an engine if another endpoint of the container is its IPv6 gateway (moby:
// netlabel.NoProxy6To4).
const optNoProxy = "com.docker.network.driver.private.no_proxy_6to4"

// TestPublishOnTwoNetworks checks one published port of a container whose IPv4 gateway is on an
// IPv4 network and whose IPv6 gateway is on a dual-stack one, in both orders of joining. Each
// endpoint publishes its own family. Engines since April 2026 choose gateways so; they tell the
// dual-stack endpoint nothing of the other one.
func TestPublishOnTwoNetworks(t *testing.T) {
	t.Parallel()
	for name, dualFirst := range map[string]bool{"IPv4 first": false, "dual stack first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			published := []m{{"Proto": 6, "Port": 80, "HostPort": 8080, "HostPortEnd": 8080}}
			four := &endpoint{net: b.create(v4Network("10.51.0.0/24")), published: published}
			dual := &endpoint{net: b.create(dualNetwork()), published: published}
			withoutIPv6 := four.options()
			withoutIPv6[optNoProxy] = true
			if dualFirst {
				b.join(dual)
				b.publish(dual)
				b.join(four)
				b.publish(dual)
				program := four.program(published...)
				program["Options"] = withoutIPv6
				b.ok("NetworkDriver.ProgramExternalConnectivity", program)
			} else {
				b.join(four)
				b.publish(four)
				b.join(dual)
				b.publish(dual)
			}
			for _, c := range []struct {
				of   string
				e    *endpoint
				want []string
			}{{"IPv4", four, []string{"0.0.0.0"}}, {"dual-stack", dual, []string{"::"}}} {
				var got []string
				for host, forwards := range b.forwards(c.e.id) {
					if len(forwards) > 0 {
						got = append(got, host)
					}
				}
				if slices.Sort(got); !slices.Equal(got, c.want) {
					t.Errorf("the %s endpoint is published on %v, want %v", c.of, got, c.want)
				}
			}
			b.stop(four)
			// The engine then makes the other endpoint the gateway of both families.
			b.publish(dual)
			if got := b.forwards(dual.id); len(got["0.0.0.0"]) != 1 || len(got["::"]) != 1 {
				t.Errorf("after the IPv4 endpoint left, the other is published on %v", got)
			}
			b.stop(dual)
			b.remove(four.net)
			b.remove(dual.net)
			b.clean()
		})
	}
}
