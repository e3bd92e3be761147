//go:build linux

package pod

import (
	"context"
	"errors"
	"os"

	"github.com/kuryr/kuryr/kurma/process"
)

// watch removes the pod when the first process of its container ends, if the container's
// poststop hook does not. It reports false if the process has ended already.
func (m *Manager) watch(uuid string, id process.ID) bool {
	p, err := id.Open()
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	if err != nil {
		m.log.Warn("cannot watch the process of a pod", "pod", uuid, "err", err)
		return true
	}
	m.mu.Lock()
	m.watched[uuid] = p
	m.mu.Unlock()
	m.work.Go(func() {
		if p.Wait() == nil {
			m.removeEnded(uuid)
		}
	})
	return true
}

// unwatch ends the watch of a pod's process.
func (m *Manager) unwatch(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, ok := m.watched[uuid]; ok {
		p.Close()
		delete(m.watched, uuid)
	}
}

func (m *Manager) removeEnded(uuid string) {
	ctx := context.Background()
	unlock, err := m.locks.Lock(ctx, uuid)
	if err != nil {
		return
	}
	defer unlock()
	r, ok := m.pods.Get(uuid)
	if !ok || stateOf(r) != Ready || r.Spec.Process == nil || !r.Spec.Process.Ended() {
		return // removed, or recreated with another process
	}
	m.log.Info("first process has ended", "pod", uuid, "container", r.Spec.Container)
	if err := m.remove(ctx, uuid); err != nil {
		m.log.Warn("pod not removed yet", "pod", uuid, "err", err)
	}
}
