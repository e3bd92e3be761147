//go:build linux

package local

import (
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

// inHost calls f in a host of its own, with a port that can be published.
func inHost(t *testing.T, f func(k *router.Kernel, p *Provider, port sdn.Port)) {
	t.Helper()
	nstest.Do(t, nstest.New(t), func() {
		var k *router.Kernel
		p, port := publishedBox(t, Options{NewDatapath: inKernel(t, &k)})
		f(k, p, port)
		checkSum(t, p)
		ok(t, k.Down(t.Context()))
		ok(t, p.Close())
		ok(t, k.Close())
	})
}

// run runs a program in the namespace of the caller.
func run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// TestRefusedPort checks that a port whose change the kernel refused can be changed again, and
// that one can be deleted.
func TestRefusedPort(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(p *Provider, port sdn.ID) error{
		"change": func(p *Provider, port sdn.ID) error {
			pairs := []sdn.AllowedPair{{Prefix: prefix("198.51.100.0/28")}}
			_, err := p.UpdatePort(t.Context(), port, sdn.PortPatch{AllowedPairs: &pairs})
			return err
		},
		"back": func(p *Provider, port sdn.ID) error {
			_, err := p.UpdatePort(t.Context(), port, sdn.PortPatch{AllowedPairs: &[]sdn.AllowedPair{}})
			return err
		},
		"delete": func(p *Provider, port sdn.ID) error { return p.DeletePorts(t.Context(), []sdn.ID{port}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inHost(t, func(k *router.Kernel, p *Provider, port sdn.Port) {
				// An element of another, with which no wider range can be in the set.
				element := fmt.Sprintf("{ %s . %s . 192.0.2.0/28 }", router.TapName(string(port.ID)), port.MAC)
				ns := "--net=" + port.VIF.Details[sdn.DetailNamespace]
				run(t, "nsenter", ns, "nft", "add", "element", "bridge", "kuryr", "ip4_range", element)
				pairs := []sdn.AllowedPair{{Prefix: prefix("192.0.2.0/24")}}
				if _, err := p.UpdatePort(t.Context(), port.ID, sdn.PortPatch{AllowedPairs: &pairs}); err == nil {
					t.Error("the kernel takes a range that overlaps another")
				}
				if err := then(p, port.ID); err != nil {
					t.Errorf("after the refused change: %v", err)
				}
				run(t, "nsenter", ns, "nft", "delete", "element", "bridge", "kuryr", "ip4_range", element)
			})
		})
	}
}

// TestRefusedPublication checks that a publication whose change the kernel refused can be changed
// again, and that one can be deleted.
func TestRefusedPublication(t *testing.T) {
	t.Parallel()
	const other = "{ tcp . 8080 : 100.64.9.9 . 8080 }"
	publish := func(p *Provider, port sdn.ID, internal uint16, external ...uint16) error {
		spec := sdn.PublicationSpec{Key: publishedKey(p)}
		for _, n := range external {
			spec.Ports = append(spec.Ports, sdn.PublishedPort{Host: netip.IPv4Unspecified(), Forward: sdn.Forward{
				Protocol: sdn.TCP, External: sdn.PortRange{First: n}, Target: sdn.Target{Port: port},
				Internal: sdn.PortRange{First: internal},
			}})
		}
		_, err := p.Publish(t.Context(), spec)
		return err
	}
	for name, then := range map[string]func(p *Provider, port sdn.ID) error{
		"change": func(p *Provider, port sdn.ID) error { return publish(p, port, 82, 8090) },
		"back":   func(p *Provider, port sdn.ID) error { return publish(p, port, 80, 8090) },
		"delete": func(p *Provider, port sdn.ID) error { return p.Unpublish(t.Context(), publishedKey(p)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inHost(t, func(k *router.Kernel, p *Provider, port sdn.Port) {
				run(t, "nft", "add", "element", "inet", "kuryr", "published4", other) // another has the port
				ok(t, publish(p, port.ID, 80, 8090))
				if err := publish(p, port.ID, 81, 8090, 8080); err == nil {
					t.Error("the kernel takes a port that is another's")
				}
				if err := then(p, port.ID); err != nil {
					t.Errorf("after the refused change: %v", err)
				}
				run(t, "nft", "delete", "element", "inet", "kuryr", "published4", other)
			})
		})
	}
}
