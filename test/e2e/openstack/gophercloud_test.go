//go:build e2e

package openstack_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/attributestags"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/floatingips"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/portforwarding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/addressgroups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/rules"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	"github.com/gophercloud/gophercloud/v2/pagination"
)

// client is gophercloud's, with the endpoint that the catalogue tells.
func (s *server) client(t *testing.T, options gophercloud.AuthOptions) (*gophercloud.ServiceClient, error) {
	t.Helper()
	provider, err := s.provider(t, options)
	if err != nil {
		return nil, err
	}
	return openstack.NewNetworkV2(provider, gophercloud.EndpointOpts{Region: "RegionOne"})
}

// provider is a client of gophercloud's that knows who it is.
func (s *server) provider(t *testing.T, options gophercloud.AuthOptions) (*gophercloud.ProviderClient, error) {
	t.Helper()
	authority, err := os.ReadFile(s.ca)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	options.IdentityEndpoint = s.url + "/v3"
	provider, err := openstack.NewClient(options.IdentityEndpoint)
	must(t, err)
	provider.HTTPClient = http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
	}}
	t.Cleanup(provider.HTTPClient.CloseIdleConnections)
	return provider, openstack.Authenticate(t.Context(), provider, options)
}

func byPassword(user, project string) gophercloud.AuthOptions {
	return gophercloud.AuthOptions{Username: user, Password: password, DomainName: "Default", TenantName: project}
}

// Gophercloud makes, changes, lists and deletes with what it got for a password, and for a token of the file.
func TestGophercloud(t *testing.T) {
	s := start(t)
	if s.free {
		t.Skip("this API wants no credentials")
	}
	operator, err := s.client(t, gophercloud.AuthOptions{
		TokenID: s.token, Scope: &gophercloud.AuthScope{ProjectName: "demo", DomainName: "Default"},
	})
	must(t, err)
	outside := made(networks.Create(t.Context(), operator, external{networks.CreateOpts{Name: "outside"}}).Extract())(t)
	made(
		subnets.Create(
			t.Context(), operator,
			subnets.CreateOpts{NetworkID: outside.ID, IPVersion: 4, CIDR: "198.51.100.0/24"},
		).Extract(),
	)(t)

	c, err := s.client(t, byPassword(bob, "demo"))
	must(t, err)
	ctx := t.Context()
	network := made(networks.Create(ctx, c, networks.CreateOpts{Name: "blue"}).Extract())(t)
	subnet := made(
		subnets.Create(
			ctx, c, subnets.CreateOpts{NetworkID: network.ID, IPVersion: 4, CIDR: "10.0.0.0/24"},
		).Extract(),
	)(t)
	group := made(groups.Create(ctx, c, groups.CreateOpts{Name: "web"}).Extract())(t)
	made(
		rules.Create(ctx, c, rules.CreateOpts{
			SecGroupID: group.ID, Direction: rules.DirIngress, EtherType: rules.EtherType4,
			Protocol: rules.ProtocolTCP, PortRangeMin: 80, PortRangeMax: 80,
		}).Extract(),
	)(t)
	addresses := made(
		addressgroups.Create(
			ctx, c, addressgroups.CreateOpts{Name: "us", Addresses: []string{"192.0.2.0/24"}},
		).Extract(),
	)(t)
	made(
		addressgroups.AddAddresses(ctx, c, addresses.ID, addressgroups.UpdateAddressesOpts{
			Addresses: []string{"198.51.100.0/24"},
		}).Extract(),
	)(t)
	port := made(
		ports.Create(
			ctx, c, ports.CreateOpts{NetworkID: network.ID, SecurityGroups: &[]string{group.ID}},
		).Extract(),
	)(t)
	name := "renamed"
	revision := port.RevisionNumber
	port = made(ports.Update(ctx, c, port.ID, ports.UpdateOpts{Name: &name, RevisionNumber: &revision}).Extract())(t)
	if _, err := ports.Update(
		ctx, c, port.ID, ports.UpdateOpts{Name: &name, RevisionNumber: &revision},
	).Extract(); !gophercloud.ResponseCodeIs(err, http.StatusPreconditionFailed) {
		t.Errorf("a change at a revision that is gone: %v", err)
	}
	if tags := made(
		attributestags.ReplaceAll(
			ctx, c, "ports", port.ID, attributestags.ReplaceAllOpts{Tags: []string{"a", "b"}},
		).Extract(),
	)(t); len(tags) != 2 {
		t.Errorf("tags %v", tags)
	}
	router := made(
		routers.Create(ctx, c, routers.CreateOpts{
			Name: "r", GatewayInfo: &routers.GatewayInfo{NetworkID: outside.ID},
		}).Extract(),
	)(t)
	made(routers.AddInterface(ctx, c, router.ID, routers.AddInterfaceOpts{SubnetID: subnet.ID}).Extract())(t)
	fip := made(
		floatingips.Create(
			ctx, c, floatingips.CreateOpts{FloatingNetworkID: outside.ID, PortID: port.ID},
		).Extract(),
	)(t)
	if fip.FixedIP != port.FixedIPs[0].IPAddress {
		t.Errorf("the floating IP leads to %s", fip.FixedIP)
	}
	made(floatingips.Update(ctx, c, fip.ID, floatingips.UpdateOpts{PortID: new(string)}).Extract())(t)
	forward := made(
		portforwarding.Create(ctx, c, fip.ID, portforwarding.CreateOpts{
			Protocol: "tcp", InternalPort: 80, ExternalPort: 8080, InternalPortID: port.ID,
			InternalIPAddress: fip.FixedIP,
		}).Extract(),
	)(t)
	must(t, portforwarding.Delete(ctx, c, fip.ID, forward.ID).ExtractErr())

	for range 7 {
		made(ports.Create(ctx, c, ports.CreateOpts{NetworkID: network.ID}).Extract())(t)
	}
	pages, found := 0, map[string]bool{}
	must(t, ports.List(
		c, ports.ListOpts{NetworkID: network.ID, Limit: 3},
	).EachPage(ctx, func(_ context.Context, page pagination.Page) (bool, error) {
		pages++
		all, err := ports.ExtractPorts(page)
		for _, p := range all {
			found[p.ID] = true
		}
		return true, err
	}))
	if len(found) != 9 || pages < 3 { // with the router's leg
		t.Errorf("%d ports were found on %d pages", len(found), pages)
	}

	other, err := s.client(t, byPassword(carol, "other"))
	must(t, err)
	if _, err := networks.Get(ctx, other, network.ID).Extract(); !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
		t.Errorf("another project's network: %v", err)
	}
	reader, err := s.client(t, byPassword(ruth, "demo"))
	must(t, err)
	made(networks.Get(ctx, reader, network.ID).Extract())(t)
	if err := networks.Delete(ctx, reader, network.ID).ExtractErr(); !gophercloud.ResponseCodeIs(
		err, http.StatusForbidden,
	) {
		t.Errorf("a reader's change: %v", err)
	}
	wrong := byPassword(bob, "demo")
	wrong.Password = "no-such-password"
	if _, err := s.client(t, wrong); !gophercloud.ResponseCodeIs(err, http.StatusUnauthorized) {
		t.Errorf("a wrong password: %v", err)
	}
}

// made gives what a call has made, or ends the test.
func made[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// external is the attribute of a network that gophercloud has in a package of its own.
type external struct{ networks.CreateOpts }

func (e external) ToNetworkCreateMap() (map[string]any, error) {
	body, err := e.CreateOpts.ToNetworkCreateMap()
	if err == nil {
		body["network"].(map[string]any)["router:external"] = true
	}
	return body, err
}
