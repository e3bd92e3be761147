package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The SDN is unavailable for ten minutes, in which 100 containers are stopped and 100 are not
// started. The stopped ones are gone shortly after it is back, without a call of Docker's.
func TestUnavailableForTenMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many = 100
		l := newLeaving(openStore(t, filepath.Join(t.TempDir(), "store"), true))
		b := boxOn(t, l)
		n := b.create(v4Network("10.50.0.0/22"))
		empty := b.dump()
		var run []*endpoint
		for range many {
			run = append(run, b.run(&endpoint{net: n}))
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.driver.Run(ctx) }()
		l.gone.Store(true)
		for _, e := range run {
			b.stop(e)
			b.fails("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Options": m{optMAC: e.mac}})
			time.Sleep(10 * time.Minute / many)
		}
		if b.binder.count() != 0 {
			t.Errorf("%d stopped containers have interfaces", b.binder.count())
		}
		l.gone.Store(false)
		time.Sleep(maxBackoff + time.Second)
		synctest.Wait()
		b.unchanged(empty)
		stop()
		b.must(<-ended)
	})
}

// An endpoint is created again while its deletion waits for the SDN, with the same id.
func TestCreatedAgainDuringCleanup(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(dualNetwork())
	e := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	id := e.id
	l.gone.Store(true)
	b.stop(e)
	b.fails("NetworkDriver.CreateEndpoint", e.createBody())
	l.gone.Store(false)
	again := &endpoint{net: n, id: id, mac: e.mac, ip4: e.ip4, ip6: e.ip6, published: e.published}
	b.run(again)
	b.idle()
	if p := b.portOf(id); p.DeviceID != id || b.binder.count() != 1 {
		t.Errorf("port %+v, %d interfaces", p, b.binder.count())
	}
	b.stop(again)
	b.remove(n)
	b.clean()
}

// A backup of the database is older than the containers, or has some that are gone.
func TestDatabaseRestored(t *testing.T) {
	t.Parallel()
	b, _ := awayBox(t)
	n := b.create(dualNetwork())
	gone := b.run(&endpoint{net: n})
	path := DatabasePath(b.config.StateDir)
	b.driver.closeDatabase()
	backup, err := os.ReadFile(path)
	b.must(err)
	b.restart()
	b.stop(gone)
	later := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	second := b.create(v4Network("10.60.0.0/24"))
	b.driver.closeDatabase()
	b.must(os.WriteFile(path, backup, 0o600))
	b.restart()
	b.reconcile()
	if p := b.portOf(later.id); p.DeviceID != later.id {
		t.Errorf("the container's port is %+v", p)
	}
	b.stop(b.run(&endpoint{net: second}))
	b.stop(later)
	b.remove(second)
	b.remove(n)
	b.clean()
}

// A truncated database is put aside; what it had is found in the SDN.
func TestDatabaseTruncated(t *testing.T) {
	t.Parallel()
	b, _ := awayBox(t)
	n := b.create(dualNetwork())
	e := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	b.driver.closeDatabase()
	b.must(os.Truncate(DatabasePath(b.config.StateDir), 5000))
	b.restart()
	b.reconcile()
	b.stop(e)
	b.remove(n)
	b.clean()
}

// Of 200 containers that are started concurrently, Docker cancels half of the calls
// before they are answered. Docker releases what it knows of the others.
func TestCanceledCalls(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(v4Network("10.50.0.0/22"))
	var work sync.WaitGroup
	for range 200 {
		work.Go(func() { b.impatient(n) })
	}
	work.Wait()
	b.remove(n)
	b.clean()
}

// impatient starts and stops a container, and cancels every other call at any moment.
func (b *box) impatient(n *network) {
	id := newID()
	e := &endpoint{net: n, id: id, mac: "02:42:" + strings.Join([]string{id[56:58], id[58:60], id[60:62], id[62:64]}, ":")}
	call := func(method string, body m) (m, error) {
		ctx, cancel := context.WithCancel(b.t.Context())
		defer cancel()
		if rand.N(2) == 0 {
			time.AfterFunc(rand.N(2*time.Millisecond), cancel)
		}
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/"+method, strings.NewReader(encode(body)))
		w := httptest.NewRecorder()
		b.driver.Handler().ServeHTTP(w, r)
		answer := decode(w.Body.Bytes())
		if text, _ := answer["Err"].(string); text != "" {
			return nil, errors.New(text)
		}
		return answer, ctx.Err()
	}
	answer, err := call("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Options": m{optMAC: e.mac}})
	if err != nil {
		if answer != nil { // Docker closed the connection after the answer
			b.release4(n, answer)
		}
		return
	}
	e.ip4, _, _ = strings.Cut(fmt.Sprint(answer["Address"]), "/")
	defer b.release4(n, answer)
	if _, err := call("NetworkDriver.CreateEndpoint", e.createBody()); err != nil {
		return
	}
	defer func() { _, _ = call("NetworkDriver.DeleteEndpoint", e.body()) }()
	if _, err := call("NetworkDriver.Join", e.joinBody()); err == nil {
		_, _ = call("NetworkDriver.Leave", e.body())
	}
}

// release4 releases the address of an answer.
func (b *box) release4(n *network, answer m) {
	address, _, _ := strings.Cut(fmt.Sprint(answer["Address"]), "/")
	b.post("IpamDriver.ReleaseAddress", encode(m{"PoolID": n.v4[0].id, "Address": address}))
}

func decode(text []byte) (v m) {
	if json.Unmarshal(text, &v) != nil {
		return nil
	}
	return v
}
