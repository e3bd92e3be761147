package neutron

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
	"github.com/kuryr/kuryr/sdn/sdntest"
)

// realConfig is the Neutron to test with, by the environment: KURYR_NEUTRON_URL is one without authentication, KURYR_NEUTRON_CLOUD an entry of
// clouds.yaml. KURYR_NEUTRON_HOST is a host that it can bind ports to, KURYR_NEUTRON_EXTERNAL the id of an external network, KURYR_NEUTRON_LOAD_BALANCER_PROVIDER the
// provider of Octavia's to use. Without either of the first
// two the test is skipped. The deadline is that of a small machine on which Neutron and its tests share two processors.
func realConfig(t *testing.T) Config {
	t.Helper()
	c := Config{Timeout: 5 * time.Minute, Installation: "contract-" + uuid.NewString()[:8], Host: os.Getenv("KURYR_NEUTRON_HOST"), Project: os.Getenv("KURYR_NEUTRON_PROJECT")}
	c.Backend = os.Getenv("KURYR_NEUTRON_LOAD_BALANCER_PROVIDER")
	switch {
	case os.Getenv("KURYR_NEUTRON_URL") != "":
		c.Endpoint, c.Auth.Type = os.Getenv("KURYR_NEUTRON_URL"), "none"
		if c.Project == "" {
			c.Project = c.Installation
		}
	case os.Getenv("KURYR_NEUTRON_CLOUD") != "":
		c.Cloud = os.Getenv("KURYR_NEUTRON_CLOUD")
	default:
		t.Skip("neither KURYR_NEUTRON_URL nor KURYR_NEUTRON_CLOUD says where a Neutron is")
	}
	return c
}

// metadataOwner is the device owner of the port whose address OVN's provider of Octavia 11 checks
// members from. Neutron creates that port only if OVN serves metadata.
const metadataOwner = "network:distributed"

// openReal opens a provider, with a proxy before the Neutron where its address is known.
func openReal(t *testing.T, c Config) (*Provider, *neutrontest.Proxy) {
	t.Helper()
	var proxy *neutrontest.Proxy
	if c.Endpoint != "" {
		proxy = neutrontest.New(t, c.Endpoint)
		c.Endpoint = proxy.URL
	}
	p, err := Open(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, proxy
}

// contract gives p as what the suite wants.
func contract(t *testing.T, p *Provider) sdn.Provider {
	t.Helper()
	whole, ok := any(p).(sdn.Provider)
	if !ok {
		t.Fatal("the provider does not have all nouns")
	}
	if external := os.Getenv("KURYR_NEUTRON_EXTERNAL"); external != "" {
		return toTheOutside{whole, sdn.ID(external)}
	}
	return whole
}

func TestContract(t *testing.T) {
	c := realConfig(t)
	sdntest.RunSideBySide(t, func(t *testing.T) sdntest.Fixture {
		p, proxy := openReal(t, c)
		if err := p.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.needOctavia(t.Context()); err != nil && !sdn.IsUnsupported(err) {
			t.Fatal(err) // Ping does not wait for it as long as it may take here
		}
		f := sdntest.Fixture{
			Provider: contract(t, p), Host: c.Host, Timeout: 10 * time.Minute,
			Reopen: func(t *testing.T) sdn.Provider {
				again, _ := openReal(t, c)
				if err := again.Ping(t.Context()); err != nil {
					t.Fatal(err)
				}
				return contract(t, again)
			},
		}
		if c.Backend == ovn {
			f.MonitorOwner = metadataOwner
		}
		if proxy != nil {
			deaf := &deaf{Provider: f.Provider, p: p, proxy: proxy}
			f.Provider = deaf
			f.DropReply = func(*testing.T) { deaf.drop = true }
		}
		return f
	})
}

// toTheOutside tells of an external network, which a Neutron does not choose by itself.
type toTheOutside struct {
	sdn.Provider
	external sdn.ID
}

func (o toTheOutside) Capabilities() sdn.Capabilities {
	can := o.Provider.Capabilities()
	can.ExternalNetwork = o.external
	return can
}

// deaf loses the answer to the first POST of one call, and then finds Neutron away until the call has ended: else the provider would look and find
// what it has made.
type deaf struct {
	sdn.Provider
	p     *Provider
	proxy *neutrontest.Proxy
	drop  bool
}

func (d *deaf) lose() (back func()) {
	if !d.drop {
		return func() {}
	}
	d.drop = false
	d.proxy.CutAndGo(neutrontest.Call{Method: "POST"})
	return func() {
		d.proxy.Reset()
		d.p.client.breaker.done(false, nil)
	}
}

func (d *deaf) EnsureNetwork(ctx context.Context, spec sdn.NetworkSpec) (sdn.Network, error) {
	defer d.lose()()
	return d.Provider.EnsureNetwork(ctx, spec)
}

func (d *deaf) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	defer d.lose()()
	return d.Provider.EnsurePorts(ctx, specs)
}

func (d *deaf) ApplySecurityGroup(ctx context.Context, spec sdn.SecurityGroupSpec) (sdn.SecurityGroup, error) {
	defer d.lose()()
	return d.Provider.ApplySecurityGroup(ctx, spec)
}
