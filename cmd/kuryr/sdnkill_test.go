//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
)

// childEnv makes the test program a kuryr of the arguments given.
const childEnv = "KURYR_TEST_CHILD"

func init() {
	if os.Getenv(childEnv) != "" {
		a := &app{out: os.Stdout, err: os.Stderr, environ: os.Environ()}
		os.Exit(a.run(context.Background(), os.Args[1:]))
	}
}

// killable starts a daemon as a process of its own, and waits until it is ready.
func (m *machine) killable(t *testing.T, args ...string) (kill func()) {
	t.Helper()
	return m.killableBy(t, (*exec.Cmd).Start, args...)
}

// killableBy is killable with another way to start the process.
func (m *machine) killableBy(t *testing.T, start func(*exec.Cmd) error, args ...string) (kill func()) {
	t.Helper()
	notify := m.path("notify")
	_ = os.Remove(notify)
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	var said buffer
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(append(os.Environ(), m.env...), childEnv+"=1", "NOTIFY_SOCKET="+notify)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := start(cmd); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		_ = manager.Close() // wakes the one who waits for what does not come
		close(ended)
	}()
	kill = func() { _ = cmd.Process.Kill(); <-ended }
	t.Cleanup(kill)
	buf := make([]byte, 64)
	if n, err := manager.Read(buf); err != nil || string(buf[:n]) != "READY=1" {
		t.Fatalf("not ready: %q, %v\n%s", buf[:n], err, said.String())
	}
	return kill
}

// account is what a client of the API was answered, and what it asked for without an answer.
type account struct {
	api     *api.Client
	name    string
	serial  int
	held    map[string]string // addresses of ports that were made, by id
	deleted []string          // ids
	making  []string          // names of ports whose making was not answered
	leaving []string          // ids of ports whose deletion was not answered
}

// ask sends a request. Without an answer, or a part of one only, it reports false.
func (a *account) ask(method, path string, body, into any) (status int, answered bool) {
	data, err := json.Marshal(body)
	if err != nil {
		return 0, false
	}
	if body == nil {
		data = nil
	}
	request, err := http.NewRequest(method, a.api.Base+path, bytes.NewReader(data))
	if err != nil {
		return 0, false
	}
	response, err := a.api.HTTP.Do(request)
	if err != nil {
		return 0, false
	}
	defer response.Body.Close()
	if into != nil && response.StatusCode < 300 && json.NewDecoder(response.Body).Decode(into) != nil {
		return 0, false
	}
	return response.StatusCode, true
}

// work makes ports of a network and deletes every third, until an answer does not come.
func (a *account) work(network string, answered func()) error {
	for ; ; answered() {
		a.serial++
		if a.serial%3 == 0 {
			var id string
			for id = range a.held {
				break
			}
			delete(a.held, id)
			status, ok := a.ask(http.MethodDelete, "/v2.0/ports/"+id, nil, nil)
			switch {
			case !ok:
				a.leaving = append(a.leaving, id)
				return nil
			case status != http.StatusNoContent:
				return fmt.Errorf("DELETE of port %s: %d", id, status)
			}
			a.deleted = append(a.deleted, id)
			continue
		}
		name := fmt.Sprintf("%s-%d", a.name, a.serial)
		var made struct{ Port api.Port }
		status, ok := a.ask(http.MethodPost, "/v2.0/ports", map[string]any{"port": map[string]any{"network_id": network, "project_id": "demo", "name": name}}, &made)
		switch {
		case !ok:
			a.making = append(a.making, name)
			return nil
		case status != http.StatusCreated:
			return fmt.Errorf("POST of port %s: %d", name, status)
		}
		a.held[made.Port.ID] = made.Port.FixedIPs[0].IPAddress
	}
}

// agree holds the account against the ports that there are, takes from these what is its own, and learns how what was not answered ended.
func (a *account) agree(t *testing.T, ports map[string]api.Port) {
	t.Helper()
	for id, address := range a.held {
		if p, there := ports[id]; !there || p.FixedIPs[0].IPAddress != address {
			t.Errorf("port %s, answered with %s, is now %+v", id, address, p)
		}
		delete(ports, id)
	}
	for _, id := range a.deleted {
		if _, there := ports[id]; there {
			t.Errorf("port %s is there, and its deletion was answered", id)
			delete(ports, id)
		}
	}
	for id, p := range ports {
		asked := slices.Index(a.making, p.Name)
		if asked < 0 && !slices.Contains(a.leaving, id) {
			continue
		}
		if asked >= 0 {
			a.making = slices.Delete(a.making, asked, asked+1) // one call makes one port
		}
		a.held[id] = p.FixedIPs[0].IPAddress
		delete(ports, id)
	}
	a.making, a.leaving = nil, nil
}

// However often the SDN is killed under its clients, what was answered holds, no address is twice, and what is counted is what there is.
func TestSDNKilled(t *testing.T) {
	const clients, kills, answers = 8, 3, 120 // answers: between two kills
	m := newMachine(t)
	client := func() *api.Client {
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", m.path("run/sdn.sock"))
		}}
		t.Cleanup(transport.CloseIdleConnections)
		return &api.Client{HTTP: &http.Client{Transport: transport}, Base: "http://kuryr"}
	}
	var accounts []*account
	for i := range clients {
		accounts = append(accounts, &account{api: client(), name: fmt.Sprint("c", i), held: map[string]string{}})
	}
	kill := m.killable(t, "sdn", "--store-only")
	root := &account{api: client()}
	var network struct{ Network api.Network }
	if status, _ := root.ask(http.MethodPost, "/v2.0/networks", map[string]any{"network": map[string]any{"project_id": "demo"}}, &network); status != http.StatusCreated {
		t.Fatal(status)
	}
	id := network.Network.ID
	if status, _ := root.ask(http.MethodPost, "/v2.0/subnets", map[string]any{"subnet": map[string]any{"network_id": id, "ip_version": 4, "cidr": "10.0.0.0/20"}}, nil); status != http.StatusCreated {
		t.Fatal(status)
	}
	for range kills {
		var seen atomic.Int64
		var work sync.WaitGroup
		enough, done := make(chan struct{}), make(chan struct{})
		for _, a := range accounts {
			work.Go(func() {
				if err := a.work(id, func() {
					if seen.Add(1) == answers {
						close(enough)
					}
				}); err != nil {
					t.Error(err)
				}
			})
		}
		go func() { work.Wait(); close(done) }()
		select {
		case <-enough:
		case <-done:
		}
		kill()
		<-done
		kill = m.killable(t, "sdn", "--store-only")
		agree(t, root, accounts, id)
		if t.Failed() {
			return
		}
	}
}

// agree holds all that was answered against what there is, and that against what the SDN counts.
func agree(t *testing.T, root *account, accounts []*account, network string) {
	t.Helper()
	list, err := api.List(t.Context(), root.api, api.Ports, url.Values{"network_id": {network}})
	if err != nil {
		t.Fatal(err)
	}
	ports, addresses := map[string]api.Port{}, map[string]string{}
	for _, p := range list {
		if len(p.FixedIPs) != 1 {
			t.Fatalf("a port with %d addresses: %+v", len(p.FixedIPs), p)
		}
		ports[p.ID] = p
		if other, twice := addresses[p.FixedIPs[0].IPAddress]; twice {
			t.Errorf("%s and %s both have %s", p.ID, other, p.FixedIPs[0].IPAddress)
		}
		addresses[p.FixedIPs[0].IPAddress] = p.ID
	}
	for _, a := range accounts {
		a.agree(t, ports)
	}
	for _, p := range ports {
		t.Errorf("nobody asked for %+v", p)
	}
	type availability struct {
		UsedIPs int64 `json:"used_ips"`
	}
	full, err := api.Get(t.Context(), root.api, api.Resource[availability]{
		Member: "network_ip_availability", Collection: "network_ip_availabilities",
	}, network)
	if err != nil || full.UsedIPs != int64(len(list)) {
		t.Errorf("%d addresses are counted, %d there: %v", full.UsedIPs, len(list), err)
	}
	var quota struct {
		Quota map[string]struct{ Used int }
	}
	if status, _ := root.ask(http.MethodGet, "/v2.0/quotas/demo/details", nil, &quota); status != http.StatusOK || quota.Quota["port"].Used != len(list) {
		t.Errorf("%d ports are counted, %d there (%d)", quota.Quota["port"].Used, len(list), status)
	}
}
