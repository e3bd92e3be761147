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

// memory measures the proportional set size of "kuryr up" at rest and with a thousand plugged ports.
func memory(ctx context.Context, b *bench) error {
	h, err := privatehost.New(ctx, privatehost.Options{Kuryr: b.kuryr})
	if err != nil {
		return err
	}
	defer h.Close()
	if err := b.addMemory("memory at rest", h.KuryrPid(), 30); err != nil {
		return err
	}
	if err := thousandPorts(ctx, h); err != nil {
		return err
	}
	return b.addMemory("memory with 1,000 ports", h.KuryrPid(), 40)
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
	plugin := &plugin{client: h.UnixClient(privatehost.PluginSocket)}
	var pool struct{ PoolID string }
	if err := plugin.call(ctx, "IpamDriver.RequestPool", map[string]any{"AddressSpace": "local_scope", "Pool": "10.92.0.0/16"}, &pool); err != nil {
		return err
	}
	network := fmt.Sprintf("%064x", 1)
	if err := plugin.call(ctx, "NetworkDriver.CreateNetwork", map[string]any{
		"NetworkID": network,
		"IPv4Data":  []any{map[string]any{"AddressSpace": "local_scope", "Pool": "10.92.0.0/16", "Gateway": "10.92.0.1/16"}},
		"Options":   map[string]any{},
	}, nil); err != nil {
		return err
	}
	for i := range 1000 {
		mac := fmt.Sprintf("02:42:00:00:%02x:%02x", i/256, i%256)
		endpoint := fmt.Sprintf("%064x", i+1)
		var address struct{ Address string }
		if err := plugin.call(ctx, "IpamDriver.RequestAddress", map[string]any{"PoolID": pool.PoolID,
			"Options": map[string]string{"com.docker.network.endpoint.macaddress": mac}}, &address); err != nil {
			return err
		}
		ids := map[string]any{"NetworkID": network, "EndpointID": endpoint}
		if err := plugin.call(ctx, "NetworkDriver.CreateEndpoint", map[string]any{"NetworkID": network, "EndpointID": endpoint,
			"Interface": map[string]any{"Address": address.Address, "MacAddress": mac}, "Options": map[string]any{}}, nil); err != nil {
			return err
		}
		ids["SandboxKey"] = "/run/docker/netns/000000000000"
		if err := plugin.call(ctx, "NetworkDriver.Join", ids, nil); err != nil {
			return err
		}
	}
	return nil
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
