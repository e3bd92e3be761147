//go:build e2e

package neutron_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// Pods of Kurma's on two hosts are ports of one network of Neutron's, by the image
// kuryr-netplugin: with a fixed address and a security group, bound to their hosts,
// reached over Geneve; and gone with their pods.
func TestKurma(t *testing.T) {
	r := shared(t)
	network, _ := r.ownNetwork("kurma", "10.43.0.0/24")
	group := r.group("kurma", everything...)
	pods := map[string]string{
		r.h1.Name: "146d7cef-fbf6-41da-a2f8-eba218597f01",
		r.h2.Name: "146d7cef-fbf6-41da-a2f8-eba218597f02",
	}
	addresses := map[string]string{}
	for i, h := range []host{r.h1, r.h2} {
		addresses[h.Name] = fmt.Sprintf("10.43.0.%d", 100+i)
		r.kurma(h, fmt.Sprintf(
			`{"name": "front", "aci": "file://%s", "default": true, "containerInterface": "eth0",`+
				` "network": %q, "addresses": [%q], "securityGroups": ["kurma"]}`,
			filepath.Join(filepath.Dir(kuryr), "images/kuryr-netplugin.aci"), network.ID(), addresses[h.Name]))
		r.must(h, kuryr, "kurma", "add", pods[h.Name])
		// which can be repeated
		r.fresh(func(ctx context.Context) error { return h.Exec(ctx, kuryr, "kurma", "del", pods[h.Name]).Err() })
	}
	ping := func(h host, to string) {
		t.Helper()
		r.until("ping "+to, func(ctx context.Context) error { // the first packets may come before the way is there
			return h.Exec(ctx, "nsenter", "--net=/run/kuryr/kurma/netns/"+pods[h.Name], "ping", "-c", "1", "-W", "1", to).Err()
		})
	}
	ping(r.h1, addresses[r.h2.Name])
	ping(r.h2, addresses[r.h1.Name])
	for _, h := range []host{r.h1, r.h2} {
		var p object
		// which Neutron tells some moments after packets pass
		r.until("the port of "+addresses[h.Name]+" to be ACTIVE", func(context.Context) error {
			if p = r.one("ports", "fixed_ips=ip_address%3D"+addresses[h.Name]); p.Text("status") != "ACTIVE" {
				return fmt.Errorf("it is %s", p.Text("status"))
			}
			return nil
		})
		for field, want := range map[string]string{
			"network_id": network.ID(), "binding:host_id": h.Name, "device_owner": "compute:kuryr",
			"device_id": "kurma/" + pods[h.Name] + "/eth0",
		} {
			if got := p.Text(field); got != want {
				t.Errorf("the pod's port has %s %q, not %q", field, got, want)
			}
		}
		if groups := fmt.Sprint(p["security_groups"]); !strings.Contains(groups, group.ID()) {
			t.Errorf("the pod's port has the groups %s", groups)
		}
	}
	for _, h := range []host{r.h1, r.h2} {
		r.must(h, kuryr, "kurma", "del", pods[h.Name])
	}
	if left := r.find("ports", "network_id="+network.ID()+"&device_owner=compute:kuryr"); len(left) > 0 {
		t.Errorf("ports left: %v", left)
	}
}

func (r *rig) must(h host, argv ...string) string {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, limit)
	defer cancel()
	result := h.Exec(ctx, argv...)
	if !result.OK() {
		r.Fatal(result)
	}
	return result.Out()
}

// kurma runs `kuryr kurma` with one network on a host, whose configuration says where Neutron is, until the test ends.
func (r *rig) kurma(h host, entry string) {
	r.Helper()
	files := map[string]string{
		"/etc/kuryr/kuryr.yaml": fmt.Sprintf(
			"provider: neutron\nneutron:\n  auth_type: none\n  endpoint: %s\n  project: %s\n",
			neutronlab.Endpoint, r.lab.Project(),
		) +
			"kurma:\n  volumes:\n  - front:/run/kuryr=/run/kuryr\n  - front:/etc/kuryr=/etc/kuryr:ro\n" +
			"  - front:/run/openvswitch=/run/openvswitch\n",
		"/etc/kuryr/kurma.json": `{"pod_networks": [` + entry + `]}`,
	}
	for path, text := range files {
		if err := os.WriteFile(h.Path(path), []byte(text), 0o600); err != nil {
			r.Fatal(err)
		}
	}
	client := h.UnixClient("/run/kuryr/kurma.sock")
	networks := func(ctx context.Context) (all []struct{ State, Reason string }, err error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kurma/v1/networks", nil)
		if err != nil {
			return nil, err
		}
		response, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		return all, json.NewDecoder(response.Body).Decode(&all)
	}
	daemon, err := h.StartService(r.ctx, "kuryr-kurma", nil, []string{
		kuryr, "kurma", "--kurma-config", "/etc/kuryr/kurma.json", "--kurma-runtime", "crun",
	}, func(ctx context.Context) bool {
		_, err := networks(ctx)
		return err == nil
	})
	if err != nil {
		r.Fatal(err)
	}
	r.until("the network runs", func(ctx context.Context) error {
		all, err := networks(ctx)
		if err == nil && (len(all) != 1 || all[0].State != "running") {
			err = fmt.Errorf("%+v", all)
		}
		return err
	})
	r.fresh(func(ctx context.Context) error {
		err := os.WriteFile(h.Path("/etc/kuryr/kurma.json"), []byte(`{"pod_networks": []}`), 0o600)
		if err == nil {
			err = syscall.Kill(daemon.Pid(), syscall.SIGHUP)
		}
		return errors.Join(err, neutronlab.Until(ctx, func(ctx context.Context) error {
			all, err := networks(ctx)
			if err == nil && len(all) > 0 {
				err = errors.New("the network is still there")
			}
			return err
		}), daemon.Stop(
			syscall.SIGTERM, limit,
		), os.Remove(h.Path("/etc/kuryr/kuryr.yaml")), os.Remove(h.Path("/etc/kuryr/kurma.json")))
	})
}
