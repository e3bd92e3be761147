//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sync/errgroup"
)

// What a real Neutron with OVN did on a machine like this one, a second: the better end of what was seen.
const (
	neutronCreates = 3
	neutronGets    = 35
)

// goalCommit is what a port's creation over REST may take of a bare transaction of the store's library.
const goalCommit = 3

// portsPerNetwork and manyNetworks make the many ports that others are measured among.
const (
	portsPerNetwork = 1000
	manyNetworks    = 100
)

// spread is over how many networks ports are made that are counted, so that none of them gets full.
const spread = 32

// sdnAPI measures the embedded SDN as a Neutron API: a kuryr of its own, without a kernel, over its Unix socket.
func sdnAPI(ctx context.Context, b *bench) (err error) {
	dir, err := os.MkdirTemp("", "kuryr-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := startAPI(ctx, b.kuryr, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.fill(ctx, 1, 100); err != nil {
		return err
	}
	if err := b.requests(ctx, s, "100 ports"); err != nil {
		return err
	}
	if err := b.commit(ctx, s, dir); err != nil {
		return err
	}
	if err := s.fill(ctx, manyNetworks, portsPerNetwork); err != nil {
		return err
	}
	return b.requests(ctx, s, "100,000 ports")
}

// requests adds how many ports are made, shown and listed (by device, one page of a hundred) a second, by one client and by many.
func (b *bench) requests(ctx context.Context, s *api, note string) error {
	networks := make([]string, spread)
	for i := range networks {
		var err error
		if networks[i], err = s.network(ctx); err != nil {
			return err
		}
	}
	var next atomic.Uint32
	var made atomic.Pointer[string]
	for _, clients := range []int{1, 8, 64} {
		for _, kind := range []struct {
			name      string
			reference float64
			do        func(context.Context) error
		}{
			{"created", neutronCreates, func(ctx context.Context) error {
				id, err := s.create(ctx, "port", map[string]any{"network_id": networks[next.Add(1)%spread]})
				made.Store(&id)
				return err
			}},
			{"shown", neutronGets, func(ctx context.Context) error {
				return s.do(ctx, http.MethodGet, "ports/"+*made.Load(), nil, nil)
			}},
			{"listed by pages of a hundred", neutronGets, func(ctx context.Context) error {
				return s.do(ctx, http.MethodGet, "ports?limit=100&marker="+*made.Load(), nil, nil)
			}},
		} {
			count, took, err := rate(ctx, clients, kind.do)
			if err != nil {
				return err
			}
			each := float64(count) / took.Seconds()
			b.rows = append(b.rows, row{name: fmt.Sprintf("REST, %s: ports %s a second, %d clients", note, kind.name, clients), ours: fmt.Sprintf("%.0f", each),
				reference: fmt.Sprintf("Neutron %g", kind.reference), ratio: each / kind.reference})
		}
	}
	return nil
}

// eachFor is what a rate is measured over: long enough for a hundred commits of a slow disk, short enough that the ports made in it do not fill a network.
const eachFor = time.Second

// rate has clients do something again and again.
func rate(ctx context.Context, clients int, do func(context.Context) error) (count int64, took time.Duration, err error) {
	start := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	var done atomic.Int64
	for range clients {
		g.Go(func() error {
			for time.Since(start) < eachFor {
				if err := do(ctx); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	err = g.Wait()
	return done.Load(), time.Since(start), err
}

// commit compares the creation of a port with the least that its durability costs, taken in turn: one transaction that puts a port's worth of bytes,
// on the same disk.
func (b *bench) commit(ctx context.Context, s *api, dir string) error {
	network, err := s.network(ctx)
	if err != nil {
		return err
	}
	db, err := bbolt.Open(filepath.Join(dir, "reference.db"), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, NoFreelistSync: true})
	if err != nil {
		return err
	}
	defer db.Close()
	value := bytes.Repeat([]byte("k"), 700)
	var ours, bare []time.Duration
	for i := range 20 * b.rounds {
		start := time.Now()
		if _, err := s.create(ctx, "port", map[string]any{"network_id": network}); err != nil {
			return err
		}
		ours = append(ours, time.Since(start))
		start = time.Now()
		err := db.Update(func(tx *bbolt.Tx) error {
			bucket, err := tx.CreateBucketIfNotExists([]byte("ports"))
			if err != nil {
				return err
			}
			return bucket.Put(fmt.Appendf(nil, "%d", i), value)
		})
		if err != nil {
			return err
		}
		bare = append(bare, time.Since(start))
	}
	b.add("REST: a port created, to a commit of bbolt's", ours, bare, goalCommit)
	return nil
}

// startsWithin is for how long its start is waited for.
const startsWithin = 20 * time.Second

// api is a kuryr that serves its API, and a client of it.
type api struct {
	cmd    *exec.Cmd
	client *http.Client
}

// startAPI starts it and returns when it says that it is ready.
func startAPI(ctx context.Context, kuryr, dir string) (*api, error) {
	socket := filepath.Join(dir, "sdn.sock")
	notify := filepath.Join(dir, "notify.sock")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	defer manager.Close()
	s := &api{cmd: exec.Command(kuryr, "sdn", "--store-only", "--log-level", "warn", "--state-dir", filepath.Join(dir, "state"), "--run-dir", filepath.Join(dir, "run"),
		"--sdn-socket", socket, "--admin-socket", filepath.Join(dir, "admin.sock"))}
	s.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+notify)
	s.cmd.Stderr = os.Stderr
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if err := readyBy(ctx, manager); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// readyBy waits for a service to say that it is ready.
func readyBy(ctx context.Context, manager *net.UnixConn) error {
	if err := manager.SetReadDeadline(time.Now().Add(startsWithin)); err != nil {
		return err
	}
	said := make([]byte, 256)
	for ctx.Err() == nil {
		n, err := manager.Read(said)
		if err != nil {
			return fmt.Errorf("kuryr is not ready: %w", err)
		}
		if string(said[:n]) == "READY=1" {
			return nil
		}
	}
	return ctx.Err()
}

func (s *api) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return s.cmd.Wait()
}

// fill makes networks with ports.
func (s *api) fill(ctx context.Context, networks, ports int) error {
	for range networks {
		network, err := s.network(ctx)
		if err != nil {
			return err
		}
		bulk := make([]any, ports)
		for i := range bulk {
			bulk[i] = map[string]any{"network_id": network}
		}
		if err := s.do(ctx, http.MethodPost, "ports", map[string]any{"ports": bulk}, nil); err != nil {
			return err
		}
	}
	return nil
}

// network makes a network with a subnet that its ports do not fill.
func (s *api) network(ctx context.Context) (id string, err error) {
	if id, err = s.create(ctx, "network", map[string]any{"name": "bench"}); err != nil {
		return "", err
	}
	_, err = s.create(ctx, "subnet", map[string]any{"network_id": id, "ip_version": 4, "cidr": "10.0.0.0/16"})
	return id, err
}

func (s *api) create(ctx context.Context, noun string, attributes map[string]any) (id string, err error) {
	var answer map[string]struct{ ID string }
	err = s.do(ctx, http.MethodPost, noun+"s", map[string]any{noun: attributes}, &answer)
	return answer[noun].ID, err
}

func (s *api) do(ctx context.Context, method, path string, body, into any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://kuryr/v2.0/"+path, bytes.NewReader(encoded))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}
