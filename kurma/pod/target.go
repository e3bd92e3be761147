//go:build linux

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netns"

	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kurma/process"
)

// spec is what was asked, and what was chosen for it before anything was changed.
type spec struct {
	Container   string       `json:"container,omitempty"`
	Process     *process.ID  `json:"process,omitempty"` // the first one of the container
	Asked       []string     `json:"asked"`             // networks; null: the defaults
	Attachments []Attachment `json:"attachments"`       // in this order, without results
	Space       space        `json:"space"`
	Created     time.Time    `json:"created"`
}

// last is what became of it.
type last struct {
	// Known says that Attachments has every network that must be called to remove the pod. It
	// is not set after a kill during the add: then any network of the spec may have been called.
	Known       bool         `json:"known"`
	Attachments []Attachment `json:"attachments"`
	Error       string       `json:"error,omitempty"` // why the namespace is not removed yet
}

func attachments(s spec, l last) []Attachment {
	if l.Known {
		return l.Attachments
	}
	return s.Attachments
}

// target attaches and detaches pods for the store. A spec never changes, and a pod whose Ensure
// was cut off is deleted, so Ensure runs once for each row.
type target struct{ *Manager }

// Ensure implements reconcile.Target.
func (t target) Ensure(ctx context.Context, o reconcile.Object, s spec, _ last) (last, error) {
	l := last{Known: true, Attachments: []Attachment{}}
	h, err := t.pin(o.Key)
	if err != nil {
		return l, err
	}
	defer h.Close()
	if err := loopback(h); err != nil {
		return l, err
	}
	for _, a := range s.Attachments {
		if err := ctx.Err(); err != nil {
			return l, failed("caller is gone: %w", context.Cause(ctx))
		}
		if len(l.Attachments) > 0 {
			if err := checkFree(h, a); err != nil {
				return l, err
			}
		}
		a.Result, err = t.call(ctx, "add", a.Network, func(ctx context.Context) (*current.Result, error) {
			return t.plugins.Add(ctx, a.Network, t.callOf(o.Key, a))
		})
		if err == nil && a.Result == nil {
			a.Result = &current.Result{CNIVersion: current.ImplementedSpecVersion}
		}
		// A network that was not called has nothing to undo, and could refuse to undo it.
		if err == nil || !notCalled(err) {
			l.Attachments = append(l.Attachments, a)
		}
		if err != nil {
			return l, &Error{Failed, err}
		}
	}
	return l, nil
}

// Delete implements reconcile.Target. It calls each network, in reverse order and whatever the
// others answer. It does not end with ctx: each call is bounded by the plugin's own limit.
func (t target) Delete(ctx context.Context, o reconcile.Object, s spec, l last) error {
	ctx = context.WithoutCancel(ctx)
	t.tidy(o.Key)
	var errs []error
	left := last{Known: true, Attachments: []Attachment{}}
	for _, a := range slices.Backward(attachments(s, l)) {
		_, err := t.call(ctx, "del", a.Network, func(ctx context.Context) (*current.Result, error) {
			return nil, t.plugins.Del(ctx, a.Network, t.callOf(o.Key, a))
		})
		if err != nil {
			a.Error = err.Error()
			left.Attachments = append(left.Attachments, a)
			errs = append(errs, &Error{Failed, err})
		}
	}
	slices.Reverse(left.Attachments)
	if len(errs) == 0 {
		err := t.spaces.Delete(o.Key)
		if err == nil {
			return nil
		}
		left.Error = err.Error()
		errs = append(errs, &Error{Internal, err})
	}
	return reconcile.Remaining(left, errors.Join(errs...))
}

// pin pins the namespace of a pod that is being added, and returns a handle of its own.
func (m *Manager) pin(uuid string) (netns.NsHandle, error) {
	m.mu.Lock()
	h, ok := m.opened[uuid]
	m.mu.Unlock()
	err := os.ErrNotExist
	if ok {
		err = m.spaces.Pin(uuid, h)
	}
	if err == nil {
		h, err = m.spaces.Handle(uuid)
	}
	if err != nil {
		return netns.None(), &Error{Internal, err}
	}
	return h, nil
}

// checkFree returns an error if an earlier network has made a link with the attachment's name.
func checkFree(h netns.NsHandle, a Attachment) error {
	taken, err := linkNames(h)
	if err == nil && slices.Contains(taken, a.Interface) {
		err = failed("network %s: interface %s is there already", a.Network.Name, a.Interface)
	}
	return err
}

// tidy removes the file of a namespace that is gone, as a reboot leaves it, so that plugins see
// that it is gone.
func (m *Manager) tidy(uuid string) {
	if m.pinned(uuid) {
		return
	}
	if err := m.spaces.Delete(uuid); err != nil {
		m.log.Warn("cannot remove the file of a namespace", "pod", uuid, "err", err)
	}
}

// pinned reports whether a pod's namespace is still there.
func (m *Manager) pinned(uuid string) bool {
	h, err := m.spaces.Handle(uuid)
	if err == nil {
		_ = h.Close()
	}
	return !errors.Is(err, os.ErrNotExist)
}

func (m *Manager) callOf(uuid string, a Attachment) Call {
	return Call{Pod: uuid, Namespace: m.spaces.Path(uuid), Interface: a.Interface}
}

// call counts and times a call of a plugin.
func (m *Manager) call(
	ctx context.Context, verb string, on Ref, do func(context.Context) (*current.Result, error),
) (*current.Result, error) {
	begun := time.Now()
	result, err := do(ctx)
	m.metrics.done(on.Name, verb, err, time.Since(begun))
	return result, err
}

// notCalled reports whether a network refused before its plugin was called.
func notCalled(err error) bool {
	var refusal interface{ NotCalled() bool }
	return errors.As(err, &refusal) && refusal.NotCalled()
}

// start deletes pods whose add was cut off, and those that ended while no daemon ran.
func (m *Manager) start(r row, rebooted bool) reconcile.Action {
	why := ""
	switch {
	case !r.Done:
		why = "add was cut off"
	case rebooted || !m.pinned(r.Key):
		why = "namespace is gone"
	case r.Spec.Process != nil && r.Spec.Process.Ended():
		why = "first process has ended"
	default:
		return reconcile.Keep
	}
	if r.Phase == reconcile.Wanted {
		m.log.Info("removing pod", "pod", r.Key, "container", r.Spec.Container, "why", why)
	}
	return reconcile.Delete
}

// claim is the namespace as a resource that one pod has at a time. Its numbers are of one boot.
func (s space) claim() (string, error) {
	boot, err := process.Boot()
	return fmt.Sprintf("netns/%s/%d/%d", boot, s.Dev, s.Ino), err
}
