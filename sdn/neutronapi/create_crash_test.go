//go:build linux && failpoints

package neutronapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

// victim is a request that a process of its own answers, by a store, until it is killed.
type victim struct{ Store, Method, Path, Body string }

const victimEnv = "KURYR_RESTAPI_VICTIM"

func init() {
	text := os.Getenv(victimEnv)
	if text == "" {
		return
	}
	var v victim
	err := json.Unmarshal([]byte(text), &v)
	if err == nil {
		err = v.answer()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (v victim) answer() error {
	p, err := local.Open(context.Background(), local.Options{Path: v.Store, Host: "h"})
	if err != nil {
		return err
	}
	answer := httptest.NewRecorder()
	As(Caller{Role: Admin}, NewHandler(p, Options{})).ServeHTTP(answer, httptest.NewRequest(v.Method, v.Path, strings.NewReader(v.Body)))
	if answer.Code >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s %s: %d %s", v.Method, v.Path, answer.Code, answer.Body)
	}
	return errors.Join(err, p.Close())
}

// run has a process of its own answer, and tells whether it was killed.
func (v victim) run(t *testing.T, at string) (killed bool) {
	t.Helper()
	text, err := json.Marshal(v)
	must(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), victimEnv+"="+string(text), "KURYR_FAILPOINT="+at)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return false
}

// stored is what of interest a store holds.
func stored(t *testing.T, path string) []string {
	t.Helper()
	ctx := t.Context()
	p, err := local.Open(ctx, local.Options{Path: path, Host: "h"})
	must(t, err)
	var list []string
	add := func(noun sdn.Noun, m sdn.Meta, more any) {
		list = append(list, fmt.Sprintf("%s %q %q %v", noun, m.Name, m.Description, more))
	}
	for n, err := range p.FindNetworks(ctx, sdn.NetworkQuery{}) {
		must(t, err)
		add(sdn.NounNetwork, n.Meta, len(n.Subnets))
	}
	for s, err := range p.FindSubnets(ctx, sdn.SubnetQuery{}) {
		must(t, err)
		add(sdn.NounSubnet, s.Meta, s.CIDR)
	}
	for s, err := range p.FindSubnetPools(ctx, sdn.SubnetPoolQuery{}) {
		must(t, err)
		add(sdn.NounSubnetPool, s.Meta, s.Prefixes)
	}
	for port, err := range p.FindPorts(ctx, sdn.PortQuery{}) {
		must(t, err)
		add(sdn.NounPort, port.Meta, port.DeviceOwner)
	}
	for trunk, err := range p.FindTrunks(ctx, sdn.TrunkQuery{}) {
		must(t, err)
		add(sdn.NounTrunk, trunk.Meta, len(trunk.Subports))
	}
	for g, err := range p.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{}) {
		must(t, err)
		add(sdn.NounSecurityGroup, g.Meta, len(g.Rules))
	}
	for f, err := range p.FindFloatingIPs(ctx, sdn.FloatingIPQuery{}) {
		must(t, err)
		add(sdn.NounFloatingIP, f.Meta, f.Address)
	}
	for f, err := range p.FindForwards(ctx, sdn.ForwardQuery{}) {
		must(t, err)
		add(sdn.NounForward, sdn.Meta{}, f.External)
	}
	diff, err := p.Check(ctx)
	if err != nil || len(diff) > 0 {
		t.Errorf("the store does not add up: %v, %v", diff, err)
	}
	must(t, p.Close())
	slices.Sort(list)
	return list
}

// TestKilledBulk kills a process wherever it can be killed while it answers a request that makes or changes several things: then all is done or nothing.
func TestKilledBulk(t *testing.T) {
	ctx := t.Context()
	base := filepath.Join(t.TempDir(), "base.db")
	p, err := local.Open(ctx, local.Options{Path: base, Host: "h"})
	must(t, err)
	network, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: netip.MustParsePrefix("10.1.0.0/24")}}})
	must(t, err)
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: network.ID}, {Network: network.ID}, {Network: network.ID}})
	must(t, err)
	outside := &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork}
	router, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: outside})
	must(t, err)
	must(t, p.AttachSubnet(ctx, router.ID, network.Subnets[0], netip.Addr{}))
	published := sdn.PublishedPort{Host: netip.IPv4Unspecified(), Forward: sdn.Forward{
		Protocol: sdn.UDP, External: sdn.PortRange{First: 5353}, Target: sdn.Target{Port: ports[0].ID},
		Internal: sdn.PortRange{First: 53},
	}}
	publication := sdn.Key{Owner: p.Installation(), Kind: "test", Name: "p"}
	_, err = p.Publish(ctx, sdn.PublicationSpec{Key: publication, Ports: []sdn.PublishedPort{published}})
	must(t, err)
	group, err := p.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{Base: sdn.Base{Name: "web", Description: "words"}})
	must(t, err)
	must(t, p.Close())
	before := stored(t, base)
	of := `"network_id":"` + string(network.ID) + `"`
	subport := func(i, vlan int) string {
		return fmt.Sprintf(`{"port_id":"%s","segmentation_type":"vlan","segmentation_id":%d}`, ports[i].ID, vlan)
	}
	publish := func(ports string) victim {
		body := fmt.Sprintf(`{"publication":{"description":"%s","ports":[%s]}}`, publication, ports)
		return victim{Method: "PUT", Path: "/v2.0/kuryr-publications", Body: body}
	}
	port := func(host string, external int) string {
		return fmt.Sprintf(`{"host_ip_address":"%s","protocol":"udp","external_port":%d,
			"internal_port":53,"internal_port_id":"%s"}`, host, external, ports[0].ID)
	}
	for name, c := range map[string]struct {
		victim
		kills int // at least: before and after the commit, and between the objects that are made one by one in it
	}{
		"networks":    {victim{Method: "POST", Path: "/v2.0/networks", Body: `{"networks":[{"name":"one"},{"name":"two"},{"name":"three"}]}`}, 4},
		"subnets":     {victim{Method: "POST", Path: "/v2.0/subnets", Body: `{"subnets":[{` + of + `,"ip_version":4,"cidr":"10.2.0.0/24"},{` + of + `,"ip_version":6,"cidr":"fd00::/64"}]}`}, 3},
		"subnetpools": {victim{Method: "POST", Path: "/v2.0/subnetpools", Body: `{"subnetpools":[{"name":"one","prefixes":["10.0.0.0/8"]},{"name":"two","prefixes":["10.0.0.0/8"]}]}`}, 3},
		"ports":       {victim{Method: "POST", Path: "/v2.0/ports", Body: `{"ports":[{` + of + `},{` + of + `}]}`}, 2},
		"trunk":       {victim{Method: "POST", Path: "/v2.0/trunks", Body: `{"trunk":{"port_id":"` + string(ports[0].ID) + `","sub_ports":[` + subport(1, 5) + `,` + subport(2, 6) + `]}}`}, 2},
		"publication": {publish(port("127.0.0.1", 5353) + "," + port("203.0.113.9", 54)), 2},
		"unpublished": {publish(""), 2},
		"group":       {victim{Method: "PUT", Path: "/v2.0/security-groups/" + string(group.ID), Body: `{"security_group":{"name":"www","description":""}}`}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			v := c.victim
			fresh := func() string {
				v.Store = filepath.Join(t.TempDir(), "sdn.db")
				b, err := os.ReadFile(base)
				must(t, err)
				must(t, os.WriteFile(v.Store, b, 0o600))
				return v.Store
			}
			fresh()
			v.run(t, "")
			after := stored(t, v.Store)
			if slices.Equal(before, after) {
				t.Fatal("the request changes nothing")
			}
			kills := 0
			for _, point := range []string{"engine.commit.before", "engine.ensure.next", "engine.commit.after"} {
				for visit := 1; ; visit++ {
					fresh()
					at := fmt.Sprintf("%s:%d", point, visit)
					if !v.run(t, at) {
						break
					}
					kills++
					if now := stored(t, v.Store); !slices.Equal(now, before) && !slices.Equal(now, after) {
						t.Errorf("killed at %s it left\n%s\nwant\n%s\nor\n%s", at, strings.Join(now, "\n"), strings.Join(before, "\n"), strings.Join(after, "\n"))
					}
				}
			}
			if kills < c.kills {
				t.Errorf("killed %d times, want at least %d", kills, c.kills)
			}
		})
	}
}
