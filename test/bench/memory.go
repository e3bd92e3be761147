//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// memory measures the proportional set size of "kuryr docker" at rest, and of "kuryr up" at
// rest and with a thousand plugged ports.
func memory(ctx context.Context, b *bench) error {
	if err := dockerMemory(ctx, b); err != nil {
		return err
	}
	h, err := privatehost.New(ctx, privatehost.Options{Kuryr: b.kuryr})
	if err != nil {
		return err
	}
	defer h.Close()
	if err := b.addMemory("memory of kuryr up at rest", h.KuryrPid(), 30); err != nil {
		return err
	}
	if err := thousandPorts(ctx, h); err != nil {
		return err
	}
	return b.addMemory("memory of kuryr up with 1,000 ports", h.KuryrPid(), 40)
}

// dockerMemory measures Docker's driver beside an SDN in another process.
func dockerMemory(ctx context.Context, b *bench) error {
	h, err := privatehost.New(ctx, privatehost.Options{
		Kuryr: b.kuryr, KuryrArgs: []string{"docker"}, KuryrEnv: []string{"KURYR_PROVIDER=sdn"},
		Booted: func(ctx context.Context, h *privatehost.Host) error {
			_, err := h.StartService(ctx, "kuryr-sdn", nil, []string{b.kuryr, "sdn"}, func(context.Context) bool {
				_, err := os.Stat(h.Path("/run/kuryr/sdn.sock"))
				return err == nil
			})
			return err
		},
	})
	if err != nil {
		return err
	}
	defer h.Close()
	return b.addMemory("memory of kuryr docker at rest", h.KuryrPid(), 25)
}

func (b *bench) addMemory(name string, pid int, goal float64) error {
	kib, err := pss(pid)
	if err != nil {
		return err
	}
	b.rows = append(b.rows, row{name: name, ours: fmt.Sprintf("%.1f MiB", kib/1024),
		reference: fmt.Sprintf("%.0f MiB", goal), ratio: kib / 1024 / goal, goal: 1})
	return nil
}

// pss is a process's proportional set size in KiB.
func pss(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(`(?m)^Pss: +(\d+) kB`).FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("no Pss in smaps_rollup of process %d", pid)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}

// thousandPorts does what an engine does for a network and a thousand containers, up to Join.
func thousandPorts(ctx context.Context, h *privatehost.Host) error {
	n, err := newNetwork(ctx, h, 0)
	if err != nil {
		return err
	}
	for i := range networkSize {
		if err := n.createEndpoint(ctx, i); err != nil {
			return err
		}
		if err := n.join(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// networkSize is the number of endpoints of a network. A bridge has at most 1,023 ports.
const networkSize = 1000

// network calls Kuryr as Docker does for one network.
type network struct {
	*plugin
	number   int
	id, pool string
}

// newNetwork creates the network with a number below 128.
func newNetwork(ctx context.Context, h *privatehost.Host, number int) (*network, error) {
	n := &network{plugin: &plugin{client: h.UnixClient(privatehost.PluginSocket)}, number: number, id: fmt.Sprintf("%064x", number+1)}
	cidr, gateway := fmt.Sprintf("10.%d.0.0/16", 64+number), fmt.Sprintf("10.%d.0.1/16", 64+number)
	var pool struct{ PoolID string }
	if err := n.call(ctx, "IpamDriver.RequestPool", map[string]any{"AddressSpace": "local_scope", "Pool": cidr}, &pool); err != nil {
		return nil, err
	}
	n.pool = pool.PoolID
	return n, n.call(ctx, "NetworkDriver.CreateNetwork", map[string]any{
		"NetworkID": n.id,
		"IPv4Data":  []any{map[string]any{"AddressSpace": "local_scope", "Pool": cidr, "Gateway": gateway}},
		"Options":   map[string]any{},
	}, nil)
}

// ids names the endpoint with number i.
func (n *network) ids(i int) map[string]any {
	return map[string]any{"NetworkID": n.id, "EndpointID": fmt.Sprintf("%032x%032x", n.number+1, i+1)}
}

func (n *network) createEndpoint(ctx context.Context, i int) error {
	mac := fmt.Sprintf("02:42:00:%02x:%02x:%02x", n.number, i/256, i%256)
	var address struct{ Address string }
	if err := n.call(ctx, "IpamDriver.RequestAddress", map[string]any{"PoolID": n.pool,
		"Options": map[string]string{"com.docker.network.endpoint.macaddress": mac}}, &address); err != nil {
		return err
	}
	body := n.ids(i)
	body["Interface"] = map[string]any{"Address": address.Address, "MacAddress": mac}
	body["Options"] = map[string]any{}
	return n.call(ctx, "NetworkDriver.CreateEndpoint", body, nil)
}

func (n *network) join(ctx context.Context, i int) error {
	body := n.ids(i)
	body["SandboxKey"] = "/run/docker/netns/000000000000"
	return n.call(ctx, "NetworkDriver.Join", body, nil)
}

// plugin calls Kuryr as an engine does.
type plugin struct{ client *http.Client }

func (p *plugin) call(ctx context.Context, method string, in map[string]any, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://kuryr/"+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer json.RawMessage
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	var failed struct{ Err, Error string }
	if err := json.Unmarshal(answer, &failed); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	if failed.Err != "" || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s %s", method, resp.Status, failed.Err)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}
