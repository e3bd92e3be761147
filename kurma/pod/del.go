//go:build linux

package pod

import (
	"context"
	"errors"

	"github.com/kuryr/kuryr/internal/reconcile"
)

// Del detaches a pod from its networks, in reverse order, and unpins its namespace. Each network
// is called whatever the others answer. The error has what each of those that failed said; they
// are called again by the store and by the next Del. With force they are forgotten instead. A
// pod that is not there is no error.
func (m *Manager) Del(ctx context.Context, uuid string, force bool) error {
	m.work.Add(1)
	defer m.work.Done()
	uuid, err := ParseUUID(uuid)
	if err != nil {
		return err
	}
	unlock, err := m.lock(ctx, uuid)
	if err != nil {
		return err
	}
	defer unlock()
	err = m.remove(ctx, uuid)
	if r, ok := m.pods.Get(uuid); !force || !ok || stateOf(r) != Removing {
		return err
	}
	m.log.WarnContext(ctx, "forgetting what failed", "pod", uuid, "err", err)
	if err := m.spaces.Delete(uuid); err != nil {
		return &Error{Internal, err}
	}
	return m.pods.Forget(ctx, uuid)
}

// remove removes a pod, or answers what each network has said.
func (m *Manager) remove(ctx context.Context, uuid string) error {
	err := m.pods.Remove(ctx, uuid)
	if p, ok := errors.AsType[*reconcile.PendingError](err); ok {
		return p.Err
	}
	return err
}

// DelContainer is Del for the pods of a container that its runtime has removed.
func (m *Manager) DelContainer(ctx context.Context, container string) error {
	if container == "" || len(container) > maxContainer {
		return invalid("container: %q is no container's id", clip(container))
	}
	var errs []error
	for r := range m.pods.Rows() {
		if r.Spec.Container == container {
			errs = append(errs, m.Del(ctx, r.Key, false))
		}
	}
	// One that is just being added may have no row, but its UUID may be known.
	return errors.Join(append(errs, m.Del(ctx, UUIDOf(container), false))...)
}
