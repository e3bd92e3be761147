//go:build linux

package router

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/backoff"
)

// tapWatch hears of links as they appear in any router, so that legs follow their
// parents' taps. One socket in the host's namespace hears of all: each router's namespace
// has an id there (see introduce). It is open from the first subport on.
type tapWatch struct {
	once    sync.Once
	err     error // why it could not be begun
	socket  *nl.NetlinkSocket
	end     context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	pending map[string]bool // taps that appeared
	news    chan struct{}   // has an element when there are some
}

// watchBuffer is room in bytes for what is told while it is not listened to; what is
// beyond is found by looking for all parents.
const watchBuffer = 1 << 20

// watchTaps begins to listen, once.
func (k *Kernel) watchTaps() error {
	w := &k.watch
	w.once.Do(func() {
		socket, err := nl.SubscribeAt(k.hostNS, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
		if err == nil {
			_ = socket.SetReceiveBufferSize(watchBuffer, true) // what is not heard for lack of room is looked for
			if err = unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1); err != nil {
				socket.Close()
			}
		}
		if err != nil {
			w.err = fmt.Errorf("listen for links: %w", err)
			return
		}
		var ctx context.Context
		ctx, w.end = context.WithCancel(context.Background())
		w.socket = socket
		w.running.Go(func() { k.listen(ctx, socket) })
		w.running.Go(func() { k.follow(ctx) })
	})
	return w.err
}

// close ends the watch, if it was begun. No other method may be called any more.
func (w *tapWatch) close() {
	w.once.Do(func() { w.err = errors.New("the data path is closed") })
	if w.socket == nil {
		return
	}
	w.end()
	w.socket.Close()
	w.running.Wait()
}

// introduce gives the router's namespace an id in the host's, if it has none: only then
// what happens there is told here. The kernel forgets it with the namespace.
func (k *Kernel) introduce(host, s *space) error {
	id, err := host.rt.GetNetNsIdByFd(int(s.ns))
	if err == nil && id < 0 {
		err = ignore(host.rt.SetNetNsIdByFd(int(s.ns), -1), unix.EEXIST)
	}
	if err != nil {
		return fmt.Errorf("id of the namespace: %w", err)
	}
	return nil
}

// listen reads what the kernel tells until the socket is closed.
func (k *Kernel) listen(ctx context.Context, socket *nl.NetlinkSocket) {
	for {
		messages, _, err := socket.Receive()
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // most likely ENOBUFS: something was not heard
			k.log.Debug("link events lost, reading all parents of subports", "err", err)
			k.watch.tell(k.trunks.taps()...)
			if !errors.Is(err, unix.ENOBUFS) {
				k.log.Error("watch of links ended, new parents of subports get no VLANs",
					"err", err,
				)
				return
			}
			continue
		}
		for _, m := range messages {
			if name := appeared(m.Header.Type, m.Data); name != "" && k.trunks.carries(name) {
				k.watch.tell(name)
			}
		}
	}
}

// appeared is the name of the link that a message says is new in its namespace, made
// there or moved to it; "" for all other messages.
func appeared(kind uint16, payload []byte) string {
	if kind != unix.RTM_NEWLINK || len(payload) < unix.SizeofIfInfomsg {
		return ""
	}
	if change := binary.NativeEndian.Uint32(payload[12:]); change != ^uint32(0) {
		return ""
	}
	attrs, err := nl.ParseRouteAttrAsMap(payload[unix.SizeofIfInfomsg:])
	if err != nil {
		return ""
	}
	return strings.TrimRight(string(attrs[unix.IFLA_IFNAME].Value), "\x00")
}

// tell has the taps' legs be seen to.
func (w *tapWatch) tell(taps ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, tap := range taps {
		if w.pending == nil {
			w.pending = map[string]bool{}
		}
		w.pending[tap] = true
	}
	select {
	case w.news <- struct{}{}:
	default:
	}
}

func (w *tapWatch) take() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	taps := w.pending
	w.pending = nil
	return taps
}

// follow makes the legs of taps that appeared. Those that could not be made it tries again.
func (k *Kernel) follow(ctx context.Context) {
	var again <-chan time.Time
	failed := map[string]bool{}
	wait := backoff.Backoff{Min: time.Second, Max: time.Minute}
	pause := wait.Next()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.watch.news:
		case <-again:
		}
		maps.Copy(failed, k.watch.take())
		taps := slices.Collect(maps.Keys(failed))
		clear(failed)
		for _, tap := range taps {
			if err := k.raiseOn(ctx, tap); err != nil && ctx.Err() == nil {
				failed[tap] = true
				k.log.Warn("subports are not reached through their parent yet", "tap", tap, "err", err, "again_in", pause)
			}
		}
		again = nil
		if len(failed) == 0 {
			wait.Reset()
			pause = wait.Next()
			continue
		}
		again = time.After(pause)
		pause = wait.Next()
	}
}

// raiseOn makes the legs of one tap.
func (k *Kernel) raiseOn(ctx context.Context, tap string) error {
	k.gate.RLock()
	defer k.gate.RUnlock()
	var errs []error
	for router := range k.trunks.on(tap) {
		errs = append(errs, k.raiseIn(ctx, router, tap))
	}
	return errors.Join(errs...)
}

// raiseIn makes those of one router.
func (k *Kernel) raiseIn(ctx context.Context, router, tap string) error {
	defer k.lock(router)()
	s, err := k.openRouter(router)
	if err != nil || s == nil {
		return err
	}
	defer s.close()
	r := &run{ctx: ctx, router: router}
	err = k.raiseLegs(r, s, k.trunks.on(tap)[router]) // as they are now that the lock is had
	for _, diff := range r.diffs {
		k.log.Debug("data path changed", "router", diff.Router, "object", diff.Object, "want", diff.Want, "have", diff.Have)
	}
	return err
}
