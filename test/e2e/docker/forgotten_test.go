//go:build e2e

package docker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// grace is so short that a test can wait for it, and so long that Docker is done with what it has begun.
const grace = "3s"

// forgetful are the arguments of a Kuryr that removes what Docker does not know after the grace time.
var forgetful = []string{"up", "--docker-forget-after", grace}

func (r rig) startKuryr(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := r.StartKuryr(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
}

// noted waits until Kuryr knows that the engine has the network: only then can the engine forget it.
func (r rig) noted(t *testing.T, name string) {
	t.Helper()
	id := strings.TrimSpace(r.docker(t, "network", "inspect", "-f", "{{.Id}}", name))
	eventually(t, 20*time.Second, func() string {
		var rows map[string]struct{ Engine string }
		text := r.must(t, "curl", "-s", "--unix-socket", "/run/kuryr/kuryr.sock", "http://kuryr/admin/intents")
		if err := json.Unmarshal([]byte(text), &rows); err != nil {
			return err.Error()
		}
		if rows["network/"+id].Engine == "" {
			return "network " + name + " is not noted"
		}
		return ""
	})
}

// left waits until kuryr has as many objects of each noun as wanted, and none more.
func (r rig) left(t *testing.T, within time.Duration, want map[string]int) {
	t.Helper()
	eventually(t, within, func() string {
		for noun, n := range want {
			if all := r.list(t, noun); len(all) != n {
				return fmt.Sprintf("%d of %s, want %d: %v\n%s", len(all), noun, n, all, r.Logs(20))
			}
		}
		return ""
	})
}

// counts are how many objects there are of each noun.
func (r rig) counts(t *testing.T) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, noun := range []string{"network", "subnet", "subnetpool", "port", "router", "floatingip"} {
		n[noun] = len(r.list(t, noun))
	}
	return n
}

// What Docker removes while Kuryr is away, Docker forgets. It is gone from Kuryr too a
// little later, and what runs is not disturbed.
func TestForgottenWhileAway(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t).kuryrWith(t, forgetful, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r.network(t, "stays", "--subnet", "10.90.0.0/24")
	a, b := r.run(t, "stays-a", "stays"), r.run(t, "stays-b", "stays")
	r.noted(t, "stays")
	before, kernel := r.counts(t), r.must(t, "ip", "-br", "link")
	r.docker(t, createArgs("goes", "--ipv6", "--subnet", "10.91.0.0/24", "--subnet", "fd91::/64")...)
	r.run(t, "goes-a", "stays", "-p", "8091:7000")
	r.docker(t, "network", "create", "-d", "bridge", "--ipam-driver", "kuryr", "--subnet", "10.92.0.0/24", "hidden")
	r.noted(t, "goes")
	s := a.pingOn(t, b.ip4)
	if err := r.KillKuryr(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, argv := range [][]string{{"rm", "-f", "goes-a"}, {"network", "rm", "goes"}, {"network", "rm", "hidden"}} {
		wg.Go(func() {
			long, cancel := context.WithTimeout(ctx, 3*time.Minute)
			defer cancel()
			if res := r.Docker(long, argv...); !res.OK() {
				t.Error(res)
			}
		})
	}
	wg.Wait()
	if err := r.StartKuryr(ctx, []string{"up", "--docker-forget-after", "0"}, nil); err != nil {
		t.Fatal(err)
	}
	if now := r.counts(t); now["port"] <= before["port"] || now["network"] <= before["network"] ||
		has(translation) && now["floatingip"] != 1 {
		t.Fatalf("nothing was forgotten: %v, before %v", now, before)
	}
	if err := r.KillKuryr(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.startKuryr(ctx, t)
	r.left(t, 30*time.Second, before)
	if now := r.must(t, "ip", "-br", "link"); countKuryr(now) != countKuryr(kernel) {
		t.Errorf("links:\n%s\nbefore:\n%s", now, kernel)
	}
	if sent, lost := s.lost(t); lost > 1 || sent < 5 {
		t.Errorf("%d of %d packets between running containers lost", lost, sent)
	}
	c := r.run(t, "stays-c", "stays")
	reaches(t, c.in, a.ip4, c.ip4)
	r.consistent(t)
	// What Docker is just making may be a candidate for a moment.
	eventually(t, 30*time.Second, func() string {
		text := r.must(
			t, "sh", "-c",
			"curl -s --unix-socket /run/kuryr/kuryr.sock http://kuryr/metrics | grep "+
				"'^kuryr_intent_orphan'",
		)
		for _, line := range []string{
			`kuryr_intent_orphans_total{kind="network",store="docker"} 1`,
			`kuryr_intent_orphans_total{kind="endpoint",store="docker"} 1`,
			`kuryr_intent_orphan_candidates{store="docker"} 0`,
		} {
			if !strings.Contains(text, line) {
				return text
			}
		}
		return ""
	})
}

func countKuryr(links string) int { return strings.Count(links, "\nkr") }

// The engine is killed with its containers running, once with live restore and once
// without; it finds them again or does not, and afterwards Kuryr has what the engine has.
func TestEngineKilled(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	for _, flags := range [][]string{nil, {"--live-restore"}} {
		t.Run(strings.Join(append([]string{"with"}, flags...), " "), func(t *testing.T) {
			t.Parallel()
			var r rig
			if flags == nil {
				r = newRig(t).kuryrWith(t, forgetful, nil)
			} else {
				r = ownHost(t, "engine flags", privatehost.Options{KuryrArgs: forgetful, DockerFlags: flags})
			}
			ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
			defer cancel()
			r.network(t, "killed", "--subnet", "10.93.0.0/24")
			a, b := r.run(t, "killed-a", "killed"), r.run(t, "killed-b", "killed")
			want := r.counts(t)
			s := a.pingOn(t, b.ip4)
			if err := r.StopDocker(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := r.StartDocker(ctx); err != nil {
				t.Fatal(err)
			}
			if flags == nil {
				_ = s.cmd.Process.Kill()
				_ = s.cmd.Wait()
				r.sh("docker", "rm", "-f", "killed-a", "killed-b")
				want["port"] -= 2
			} else if sent, lost := s.lost(t); lost > 1 || sent < 5 {
				t.Errorf("%d of %d packets lost", lost, sent)
			}
			r.left(t, 40*time.Second, want)
			c := r.run(t, "killed-c", "killed")
			if flags != nil {
				reaches(t, c.in, a.ip4, c.ip4)
			}
			getsOut(t, c)
		})
	}
}

// An engine that was killed may have a container run whose endpoint it has forgotten. The
// container keeps what it has, its network and its port, as long as it runs.
func TestEngineForgetsWhatRuns(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := ownHost(t, "engine flags, and the engine's data is changed",
		privatehost.Options{KuryrArgs: forgetful, DockerFlags: []string{"--live-restore"}})
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	r.network(t, "loses", "--subnet", "10.101.0.0/24")
	r.noted(t, "loses")
	empty := r.counts(t)
	a, b := r.run(t, "loses-a", "loses", "-p", "8101:7000"), r.run(t, "loses-b", "loses")
	endpoint := strings.TrimSpace(
		r.docker(t, "inspect", "-f", "{{.NetworkSettings.Networks.loses.EndpointID}}", "loses-a"),
	)
	full := r.counts(t)
	if err := r.StopDocker(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	dropFromEngine(t, r.Path(filepath.Join(r.Dir(), "docker/network/files/local-kv.db")), endpoint)
	if err := r.StartDocker(ctx); err != nil {
		t.Fatal(err)
	}
	if text := r.docker(t, "network", "inspect", "loses"); strings.Contains(text, endpoint) ||
		!strings.Contains(text, "loses-b") {
		t.Fatalf("the engine has not forgotten endpoint %s alone: %s", endpoint, text)
	}
	// An address that was given to nobody goes: that is how long it takes.
	r.plugin(t, "IpamDriver.RequestPool", map[string]any{"AddressSpace": "local_scope", "Pool": "10.102.0.0/24"})
	if err := r.KillKuryr(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.startKuryr(ctx, t)
	r.left(t, 30*time.Second, full)
	reaches(t, a.in, b.ip4, a.ip4)
	reaches(t, b.in, a.ip4, b.ip4)
	r.docker(t, "rm", "-f", "loses-a", "loses-b")
	r.left(t, 40*time.Second, empty)
}

// dropFromEngine takes what has a name from the data of an engine that does not run.
func dropFromEngine(t *testing.T, file, name string) {
	t.Helper()
	db, err := bbolt.Open(file, 0o600, &bbolt.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	dropped := 0
	err = db.Update(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, all *bbolt.Bucket) error {
			var found [][]byte
			_ = all.ForEach(func(k, _ []byte) error {
				if strings.HasSuffix(string(k), "/"+name+"/") {
					found = append(found, slices.Clone(k))
				}
				return nil
			})
			for _, k := range found {
				dropped++
				if err := all.Delete(k); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil || dropped != 1 {
		t.Fatalf("took %d of %s from the engine's data: %v", dropped, name, err)
	}
}

// An engine with other data knows nothing of the networks, which is no reason to take them from the one that does.
func TestSecondEngine(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := ownHost(t, "a second engine with data of its own", privatehost.Options{KuryrArgs: forgetful})
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	r.network(t, "mine", "--subnet", "10.94.0.0/24")
	a, b := r.run(t, "mine-a", "mine"), r.run(t, "mine-b", "mine")
	r.noted(t, "mine")
	reaches(t, a.in, b.ip4, a.ip4)
	if err := r.StopDocker(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	full := r.counts(t)
	root := r.Dir()
	other := r.Command(
		ctx, "dockerd", "--data-root", filepath.Join(root, "other"), "--exec-root", "/run/docker",
		"--pidfile", "/run/other.pid",
		"-H", "unix://"+privatehost.DockerSocket, "--exec-opt", "native.cgroupdriver=cgroupfs")
	if err := r.StartCommand(other); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = other.Wait(); close(ended) }()
	t.Cleanup(func() { _ = other.Process.Kill(); <-ended })
	eventually(t, 30*time.Second, func() string {
		if res := r.sh("docker", "info"); !res.OK() {
			return res.String()
		}
		return ""
	})
	// Long after the grace time doctor tells whose they are, and they are there.
	eventually(t, 60*time.Second, func() string {
		if res := r.sh(kuryr, "doctor"); !strings.Contains(res.Stdout, "another engine") {
			return "doctor does not tell: " + res.String()
		}
		return ""
	})
	time.Sleep(8 * time.Second)
	if now := r.counts(t); fmt.Sprint(now) != fmt.Sprint(full) {
		t.Errorf("the second engine cost something: %v, before %v", now, full)
	}
	_ = other.Process.Signal(syscall.SIGTERM)
	<-ended
	if err := r.StartDocker(ctx); err != nil {
		t.Fatal(err)
	}
	r.docker(t, "start", "mine-a", "mine-b")
	a, b = r.look(t, "mine-a", "mine"), r.look(t, "mine-b", "mine")
	reaches(t, a.in, b.ip4, a.ip4)
}

// plugin makes a call of the plugin's as an engine does.
func (r rig) plugin(t *testing.T, method string, body map[string]any) map[string]any {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := r.UnixClient(privatehost.PluginSocket).Post(
		"http://kuryr/"+method, "application/json", bytes.NewReader(data),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer := map[string]any{}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil ||
		response.StatusCode != http.StatusOK || answer["Err"] != nil {
		t.Fatalf("%s: %v %v", method, answer, err)
	}
	return answer
}

// An engine that is killed in CreateNetwork never has the network. It goes, while the engine's own stay.
func TestEngineKilledInCreateNetwork(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t).kuryrWith(t, forgetful, nil)
	r.network(t, "stays", "--subnet", "10.99.0.0/24")
	r.noted(t, "stays")
	want := r.counts(t)
	pool := r.plugin(t, "IpamDriver.RequestPool", map[string]any{
		"AddressSpace": "local_scope", "Pool": "10.100.0.0/24",
	})["PoolID"]
	gateway := r.plugin(t, "IpamDriver.RequestAddress", map[string]any{
		"PoolID":  pool,
		"Options": map[string]any{"RequestAddressType": "com.docker.network.gateway"},
	})["Address"]
	options := map[string]any{}
	if onNeutron {
		option, value, _ := strings.Cut(outsideNetwork, "=")
		options["com.docker.network.generic"] = map[string]string{option: value}
	}
	r.plugin(t, "NetworkDriver.CreateNetwork", map[string]any{"NetworkID": strings.Repeat("5e", 32), "Options": options,
		"IPv4Data": []map[string]any{
			{"AddressSpace": "local_scope", "Pool": "10.100.0.0/24", "Gateway": gateway},
		}, "IPv6Data": []any{}})
	if now := r.counts(t); now["network"] != want["network"]+1 || now["router"] != want["router"]+1 {
		t.Fatalf("nothing to forget: %v, before %v", now, want)
	}
	// Docker tells of it with its next event, as any other network that it does not have.
	a := r.run(t, "stays-a", "stays")
	getsOut(t, a)
	r.docker(t, "rm", "-f", "stays-a")
	r.left(t, 2*time.Minute, want)
}

// A pool and an address that were answered to nobody, because Kuryr was killed right then.
func TestAnsweredToNobody(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t).kuryrWith(t, forgetful, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r.network(t, "used", "--subnet", "10.95.0.0/24")
	used := r.run(t, "used-a", "used")
	r.noted(t, "used")
	want := r.counts(t)
	r.plugin(t, "IpamDriver.RequestPool", map[string]any{"AddressSpace": "local_scope", "Pool": "10.96.0.0/24"})
	var pool any
	for _, s := range r.list(t, "subnet") {
		pool = s["subnetpool_id"]
	}
	r.plugin(t, "IpamDriver.RequestAddress", map[string]any{
		"PoolID":  pool,
		"Options": map[string]any{"com.docker.network.endpoint.macaddress": "02:00:00:00:00:77"},
	})
	if now := r.counts(t); now["subnetpool"] != want["subnetpool"]+1 || now["port"] != want["port"]+1 {
		t.Fatalf("nothing to forget: %v, before %v", now, want)
	}
	if err := r.KillKuryr(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.startKuryr(ctx, t)
	r.left(t, 30*time.Second, want)
	getsOut(t, used)
}

// After a reboot the engine may come up long before Kuryr, and has given up on what it had by then.
func TestRebootWithoutKuryr(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := ownHost(t, "reboots the host", privatehost.Options{KuryrArgs: forgetful})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r.network(t, "late", wayOut, "--subnet", "10.97.0.0/24")
	r.run(t, "late-a", "late", "-p", "8097:7000", "--restart", "always")
	r.noted(t, "late")
	if err := r.RebootBare(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.StartDocker(ctx); err != nil { // waits for the plugin in vain
		t.Fatal(err)
	}
	r.startKuryr(ctx, t)
	r.left(t, 40*time.Second, map[string]int{"network": 1, "router": 1, "floatingip": 0, "subnetpool": 1})
	if d := r.doctor(t); !d.of("docker", "container late-a should run (restart policy always)") || d.exit {
		t.Errorf("the doctor does not see that a container is down: %+v", d)
	}
	r.docker(t, "rm", "-f", "late-a")
	c := r.run(t, "late-b", "late", "-p", "8097:7000")
	getsOut(t, c)
}
