//go:build linux

package pod

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/kuryr/kuryr/internal/failpoint"
)

// Del detaches a pod from its networks, in reverse order, and lets its namespace go. Each network is called whatever the others say; the error has what each
// of those that failed said, and these are kept and called again, by Run and by the next Del. A pod that is not there is no error. With force what fails is forgotten.
func (m *Manager) Del(ctx context.Context, uuid string, force bool) error {
	end, err := m.begin()
	if err != nil {
		return err
	}
	defer end()
	if uuid, err = ParseUUID(uuid); err != nil {
		return err
	}
	unlock, err := m.locks.Lock(ctx, uuid)
	if err != nil {
		return failed("pod %s: another call for it has not ended: %w", uuid, err)
	}
	defer unlock()
	has := m.record(uuid)
	if has == nil {
		return nil
	}
	return m.remove(ctx, has, force)
}

// DelContainer is Del for the pods of a container that its runtime has removed.
func (m *Manager) DelContainer(ctx context.Context, container string) error {
	if container == "" || len(container) > maxContainer {
		return invalid("container: %q is no container's id", clip(container))
	}
	var errs []error
	for _, p := range m.List() {
		if p.Container == container {
			errs = append(errs, m.Del(ctx, p.UUID, false))
		}
	}
	// One that is just being added is not in the list, but its UUID may be known.
	return errors.Join(append(errs, m.Del(ctx, UUIDOf(container), false))...)
}

// remove takes away all there is of a pod, as far as that goes. It does not end with ctx: what is begun is better finished. The pod's lock is held.
func (m *Manager) remove(ctx context.Context, r *record, force bool) error {
	ctx = context.WithoutCancel(ctx)
	if r.State != Removing && len(r.Attachments) > 0 {
		r = r.with(func(r *record) { r.State = Removing })
		if err := m.store(r); err != nil {
			return err
		}
		failpoint.Here("kurma.del.noted")
	}
	m.tidy(r.UUID)
	var errs []error
	left := make([]Attachment, 0, len(r.Attachments))
	for _, a := range slices.Backward(r.Attachments) {
		c := Call{Pod: r.UUID, Namespace: r.Namespace, Interface: a.Interface}
		_, err := m.call(ctx, "del", a.Network, func(ctx context.Context) (*current.Result, error) { return nil, m.plugins.Del(ctx, a.Network, c) })
		failpoint.Here("kurma.del.called")
		if err != nil && force {
			m.log.WarnContext(ctx, "a network failed to let a pod go, and is not asked again", "pod", r.UUID, "network", a.Network.Name, "error", err)
			err = nil
		}
		if err != nil {
			a.Error = err.Error()
			left = append(left, a)
			errs = append(errs, &Error{Failed, err})
		}
	}
	slices.Reverse(left)
	if len(left) == 0 {
		if err := m.spaces.Delete(r.UUID); err != nil {
			errs = append(errs, &Error{Internal, err})
		}
		failpoint.Here("kurma.del.unpinned")
	}
	if len(errs) == 0 {
		return m.forget(ctx, r)
	}
	rest := r.with(func(r *record) { r.State, r.Attachments, r.Error = Removing, left, "" })
	if len(left) == 0 {
		rest.Error = errs[0].Error()
	}
	if err := m.store(rest); err != nil {
		errs = append(errs, err)
	}
	signal(m.owes)
	return errors.Join(errs...)
}

// tidy removes the file of a namespace that is gone, as a reboot leaves it, so that plugins find that it is.
func (m *Manager) tidy(uuid string) {
	h, err := m.spaces.Handle(uuid)
	if err == nil {
		_ = h.Close()
		return
	}
	if err := m.spaces.Delete(uuid); err != nil {
		m.log.Warn("the file of a namespace that is gone stays", "pod", uuid, "error", err)
	}
}

// forget drops the record of a pod of which nothing is left.
func (m *Manager) forget(ctx context.Context, r *record) error {
	known := m.record(r.UUID)
	if known != nil {
		if err := m.journal.drop(r.UUID); err != nil {
			return err
		}
	}
	failpoint.Here("kurma.del.dropped")
	m.mu.Lock()
	delete(m.pods, r.UUID)
	if m.spaced[r.Space] == r.UUID {
		delete(m.spaced, r.Space)
	}
	m.mu.Unlock()
	if known != nil {
		for _, a := range known.Attachments {
			m.leave(a.Network)
		}
		m.log.InfoContext(ctx, "pod removed", "pod", r.UUID, "container", r.Container)
	}
	return nil
}

// record is what is known of a pod, nil if nothing is.
func (m *Manager) record(uuid string) *record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[uuid]
}

// pod is what others are shown.
func (r *record) pod() Pod {
	if r == nil {
		return Pod{}
	}
	return r.Pod
}

// store writes a record, and counts who is on which network.
func (m *Manager) store(r *record) error {
	m.mu.Lock()
	was := m.pods[r.UUID]
	m.mu.Unlock()
	if err := m.journal.put(r); err != nil {
		return err
	}
	m.mu.Lock()
	m.pods[r.UUID] = r
	for _, a := range r.Attachments {
		m.used[a.Network]++
	}
	m.mu.Unlock()
	if was != nil {
		for _, a := range was.Attachments {
			m.leave(a.Network)
		}
	}
	return nil
}

// Get gives a pod. The error's reason is NotFound if there is none.
func (m *Manager) Get(uuid string) (Pod, error) {
	uuid, err := ParseUUID(uuid)
	if err != nil {
		return Pod{}, err
	}
	if r := m.record(uuid); r != nil {
		return r.Pod, nil
	}
	return Pod{}, notFound("pod %s: there is none", uuid)
}

// List gives all pods, the oldest first.
func (m *Manager) List() []Pod {
	m.mu.Lock()
	list := make([]Pod, 0, len(m.pods))
	for _, r := range m.pods {
		list = append(list, r.Pod)
	}
	m.mu.Unlock()
	slices.SortFunc(list, func(a, b Pod) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.UUID, b.UUID)
	})
	return list
}

// call counts and times a call of a plugin.
func (m *Manager) call(ctx context.Context, verb string, on Ref, do func(context.Context) (*current.Result, error)) (*current.Result, error) {
	begun := time.Now()
	result, err := do(ctx)
	m.metrics.done(on.Name, verb, err, time.Since(begun))
	return result, err
}
