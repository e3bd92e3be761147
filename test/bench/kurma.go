//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
	"golang.org/x/sync/errgroup"
)

// mostAdded is what Kurma may add to a plugin's own time for a network, and kurmaAtOnce how many pods are added at once.
const (
	mostAdded   = 25 * time.Millisecond
	kurmaAtOnce = 40
)

// kurmaHost is a host with `kuryr kurma`, which has one network: Debian's bridge and host-local by the image cni-netplugin.
type kurmaHost struct {
	*privatehost.Host
	client *http.Client
}

// kurma measures what a pod waits for, from asking the daemon until it is answered, against executing the same CNI plugin directly: one by one, and forty at once.
func kurma(ctx context.Context, b *bench) error {
	for _, runtime := range []string{"crun", "runc"} {
		if err := kurmaOn(ctx, b, runtime); err != nil {
			return fmt.Errorf("%s: %w", runtime, err)
		}
	}
	return nil
}

func kurmaOn(ctx context.Context, b *bench, runtime string) error {
	host, err := privatehost.New(ctx, privatehost.Options{})
	if err != nil {
		return err
	}
	defer host.Close()
	h := &kurmaHost{host, host.UnixClient("/run/kuryr/kurma.sock")}
	bridge := bridgePlugin()
	if err := h.start(ctx, b.kuryr, runtime, bridge); err != nil {
		return err
	}
	var mine, theirs, mineAtOnce, theirsAtOnce []time.Duration
	for range b.rounds {
		took, err := h.many(ctx, 1)
		if err != nil {
			return err
		}
		direct, _, err := bridge.once(ctx, host, "one")
		if err != nil {
			return err
		}
		mine, theirs = append(mine, took...), append(theirs, direct)
	}
	for range max(3, b.rounds/3) {
		took, err := h.many(ctx, kurmaAtOnce)
		if err != nil {
			return err
		}
		direct, _, err := bridge.many(ctx, host, kurmaAtOnce)
		if err != nil {
			return err
		}
		mineAtOnce, theirsAtOnce = append(mineAtOnce, took...), append(theirsAtOnce, direct...)
	}
	added := median(mine) - median(theirs)
	b.add(runtime+": a pod on a network, asked until answered: against executing its plugin", mine, theirs, 0)
	b.rows = append(b.rows, row{
		name: runtime + ": the same, what is added to the plugin's own time", ours: added.Round(10 * time.Microsecond).String(), reference: mostAdded.String(),
		ratio: float64(added) / float64(mostAdded), goal: 1,
	})
	b.add(fmt.Sprintf("%s: %d pods at once, p99: against executing the plugin %d times at once", runtime, kurmaAtOnce, kurmaAtOnce),
		[]time.Duration{percentile99(mineAtOnce)}, []time.Duration{percentile99(theirsAtOnce)}, 0)
	return nil
}

// start runs the daemon and returns when its network runs. The network is the plugin's, but for its bridge and its addresses.
func (h *kurmaHost) start(ctx context.Context, kuryr, runtime string, p cniPlugin) error {
	image := filepath.Join(filepath.Dir(kuryr), "images/cni-netplugin.aci")
	if _, err := os.Stat(image); err != nil {
		return fmt.Errorf("%w: make kurma-images", err)
	}
	var entry map[string]any
	if err := json.Unmarshal([]byte(strings.ReplaceAll(strings.ReplaceAll(p.config, "cni0", "kurma0"), "10.2.", "10.3.")), &entry); err != nil {
		return err
	}
	entry["aci"], entry["containerInterface"], entry["default"] = "file://"+image, "eth0", true
	config, err := json.Marshal(map[string]any{"pod_networks": []any{entry}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(h.Path("/etc/kuryr/kurma.json"), config, 0o600); err != nil {
		return err
	}
	_, err = h.StartService(ctx, "kuryr-kurma", nil, []string{kuryr, "kurma", "--kurma-config", "/etc/kuryr/kurma.json", "--kurma-runtime", runtime}, func(ctx context.Context) bool {
		text, err := h.ask(ctx, http.MethodGet, "/v1/networks", nil)
		return err == nil && bytes.Contains(text, []byte(`"running"`))
	})
	return err
}

func (h *kurmaHost) ask(ctx context.Context, method, path string, body any) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://kurma"+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	response, err := h.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	return answer, err
}

// many adds pods at once, each in a namespace that is there, as an OCI runtime's is, and takes them away again.
func (h *kurmaHost) many(ctx context.Context, n int) ([]time.Duration, error) {
	took, ids := make([]time.Duration, n), make([]string, n)
	name := func(i int) string { return fmt.Sprintf("kurma%d", i) }
	for i := range n {
		ids[i] = uuid.NewString()
		if r := h.Exec(ctx, "ip", "netns", "add", name(i)); !r.OK() {
			return nil, r.Err()
		}
	}
	if err := settle(ctx, h.Host); err != nil {
		return nil, err
	}
	var adds, dels errgroup.Group
	for i := range n {
		adds.Go(func() error {
			begin := time.Now()
			_, err := h.ask(ctx, http.MethodPost, "/v1/pods", map[string]string{"uuid": ids[i], "namespace": "/run/netns/" + name(i)})
			took[i] = time.Since(begin)
			return err
		})
	}
	if err := adds.Wait(); err != nil {
		return nil, err
	}
	for i := range n {
		dels.Go(func() error { _, err := h.ask(ctx, http.MethodDelete, "/v1/pods/"+ids[i], nil); return err })
	}
	if err := dels.Wait(); err != nil {
		return nil, err
	}
	for i := range n {
		if r := h.Exec(ctx, "ip", "netns", "del", name(i)); !r.OK() {
			return nil, r.Err()
		}
	}
	return took, nil
}
