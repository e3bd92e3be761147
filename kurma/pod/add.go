//go:build linux

package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/vishvananda/netns"

	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kurma/process"
)

// Add attaches a pod to its networks, in order, and answers when it is whole. If a network is
// unknown or fails, or ctx ends first, what was done is undone in reverse order, and the error
// says why. Asked again for the same it answers what there is. With another namespace or other
// networks the error's reason is Conflict.
func (m *Manager) Add(ctx context.Context, r Request) (Pod, error) {
	m.work.Add(1)
	defer m.work.Done()
	r, err := checked(r)
	if err != nil {
		return Pod{}, err
	}
	unlock, err := m.lock(ctx, r.UUID)
	if err != nil {
		return Pod{}, err
	}
	defer unlock()
	var first *process.ID
	if r.Container != "" {
		id, err := process.Of(r.PID)
		if err != nil {
			return Pod{}, invalid("pid: process %d of container %s: %w", r.PID, clip(r.Container), err)
		}
		first = &id
	}
	h, err := find(r)
	if err != nil {
		return Pod{}, err
	}
	defer func() { _ = h.Close() }()
	by, err := requesterOf(r, first)
	if err != nil {
		return Pod{}, err
	}
	if r.Container != "" && r.UUID != UUIDOf(r.Container) {
		if err := m.grants.Load().checkUUID(by, r.UUID); err != nil {
			return Pod{}, err
		}
	}
	has, exists := m.pods.Get(r.UUID)
	replace := false
	if exists {
		if replace, err = judge(has, r, h); err != nil {
			return Pod{}, err
		}
		if !replace {
			return m.pod(has), nil
		}
	}
	networks, release, err := m.choose(r, by)
	if err != nil {
		return Pod{}, err
	}
	defer release()
	if replace { // only now: a request that is refused removes nothing
		if err := m.remove(ctx, r.UUID); err != nil {
			return Pod{}, conflict("pod %s: an earlier one is not removed yet: %w", r.UUID, err)
		}
	}
	if !h.IsOpen() {
		if h, err = newNamespace(); err != nil {
			return Pod{}, err
		}
	}
	return m.attach(ctx, r, first, h, networks)
}

// lock waits for earlier calls for the pod.
func (m *Manager) lock(ctx context.Context, uuid string) (unlock func(), err error) {
	if unlock, err = m.locks.Lock(ctx, uuid); err != nil {
		return nil, failed("pod %s: another call for it has not ended: %w", uuid, err)
	}
	return unlock, nil
}

// checked brings a request into the form that is stored.
func checked(r Request) (Request, error) {
	if r.Container != "" && r.PID == 0 {
		return r, invalid("pid: a container's first process must be named")
	}
	if len(r.Container) > maxContainer {
		return r, invalid("container: its id has %d bytes, more than %d", len(r.Container), maxContainer)
	}
	switch {
	case r.UUID == "" && r.Container != "":
		r.UUID = UUIDOf(r.Container)
	case r.UUID == "":
		r.UUID = uuid.NewString()
	}
	var err error
	if r.UUID, err = ParseUUID(r.UUID); err != nil {
		return r, err
	}
	for i, name := range r.Networks {
		if slices.Contains(r.Networks[:i], name) {
			return r, invalid("networks: %q is there twice, and a pod is on a network once", clip(name))
		}
	}
	return r, nil
}

// maxContainer bounds the ids of containers.
const maxContainer = 1024

// judge compares a request with the pod of its UUID. The pod answers it, must be replaced, or is
// in conflict with it.
func judge(has row, r Request, h netns.NsHandle) (replace bool, err error) {
	same := true // a request without a namespace is for any
	if h.IsOpen() {
		s, err := spaceOf(h)
		if err != nil {
			return false, err
		}
		same = s == has.Spec.Space
	}
	asked := has.Spec.Asked
	switch {
	case has.Spec.Container != r.Container && same && r.Container != "":
		return false, &Error{Conflict, fmt.Errorf("pod %s: %w", r.UUID, errShared)}
	case has.Spec.Container != r.Container:
		return false, conflict("pod %s: it belongs to container %q, not %q: delete it first",
			r.UUID, clip(has.Spec.Container), clip(r.Container))
	case stateOf(has) != Ready:
		return true, nil
	case r.Container != "" && !same && has.Spec.Process != nil && has.Spec.Process.Ended():
		return true, nil // recreated by its runtime
	case !same:
		return false, conflict("pod %s: it has another network namespace: delete it first", r.UUID)
	case asked == nil && r.Networks != nil:
		return false, conflict("pod %s: it is there with networks by default: delete it first", r.UUID)
	case (asked == nil) != (r.Networks == nil) || !slices.Equal(asked, r.Networks):
		return false, conflict("pod %s: it is there with networks %s: delete it first", r.UUID, asked)
	}
	return false, nil
}

// choose finds the networks of a request, and keeps their generations in use until release is
// called.
func (m *Manager) choose(r Request, by requester) (chosen []Network, release func(), err error) {
	for {
		if chosen, err = pick(m.plugins.Networks(), r.Networks); err != nil {
			return nil, nil, err
		}
		for _, n := range chosen {
			if err := m.grants.Load().check(by, n.Name); err != nil {
				return nil, nil, err
			}
		}
		release = m.hold(chosen)
		// The configuration may have changed before they were held. Later changes see them in use.
		again, err := pick(m.plugins.Networks(), r.Networks)
		same := func(a, b Network) bool { return a.Ref == b.Ref }
		if err == nil && slices.EqualFunc(chosen, again, same) {
			return chosen, release, nil
		}
		release()
	}
}

// pick finds networks by name, or the defaults if no names are given.
func pick(all []Network, wanted []string) (chosen []Network, err error) {
	if wanted == nil {
		for _, n := range all {
			if n.Default {
				chosen = append(chosen, n)
			}
		}
		return chosen, nil
	}
	for _, name := range wanted {
		i := slices.IndexFunc(all, func(n Network) bool { return n.Name == name })
		if i < 0 {
			return nil, notFound("network %q is not in the configuration", clip(name))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// hold keeps generations of networks in use.
func (m *Manager) hold(networks []Network) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range networks {
		m.held[n.Ref]++
	}
	return func() {
		for _, n := range networks {
			m.mu.Lock()
			if m.held[n.Ref]--; m.held[n.Ref] == 0 {
				delete(m.held, n.Ref)
			}
			m.mu.Unlock()
			m.release(n.Ref)
		}
	}
}

// attach stores the pod and has it attached. The pod's lock is held.
func (m *Manager) attach(
	ctx context.Context, r Request, first *process.ID, h netns.NsHandle, networks []Network,
) (Pod, error) {
	s := spec{
		Container: r.Container, Process: first, Asked: r.Networks,
		Created: time.Now().UTC().Round(time.Millisecond),
	}
	var err error
	if s.Space, err = spaceOf(h); err != nil {
		return Pod{}, err
	}
	claim, err := s.Space.claim()
	if err != nil {
		return Pod{}, err
	}
	if err := m.freeClaim(ctx, claim); err != nil {
		return Pod{}, err
	}
	if s.Attachments, err = nameInterfaces(r.UUID, h, networks); err != nil {
		return Pod{}, err
	}
	m.mu.Lock()
	m.opened[r.UUID] = h
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.opened, r.UUID)
		m.mu.Unlock()
	}()
	_, err = m.pods.Set(ctx, reconcile.Request[spec]{Key: r.UUID, Spec: s, Claims: []string{claim}})
	if c, ok := errors.AsType[*reconcile.ConflictError](err); ok {
		return Pod{}, m.shared(strings.TrimPrefix(c.Holder, m.pods.Ref("")))
	}
	if err != nil {
		return Pod{}, err
	}
	if first != nil && !m.watch(r.UUID, *first) {
		err := failed("pod %s: process %d of its container has ended", r.UUID, first.PID)
		return Pod{}, errors.Join(err, m.remove(ctx, r.UUID))
	}
	m.log.InfoContext(ctx, "pod attached", "pod", r.UUID, "container", r.Container, "networks", len(networks))
	made, _ := m.pods.Get(r.UUID)
	return m.pod(made), nil
}

// freeClaim returns an error if another pod has the namespace. A pod that is not removed yet is
// removed first. So is one whose namespace is gone: its number is another's now.
func (m *Manager) freeClaim(ctx context.Context, claim string) error {
	o, ok := m.pods.Holder(claim)
	if !ok {
		return nil
	}
	if s := stateOf(o); s == Adding || s == Ready && m.pinned(o.Key) {
		return m.shared(o.Key)
	}
	if err := m.pods.Remove(ctx, o.Key); err != nil {
		return errors.Join(m.shared(o.Key), err)
	}
	return nil
}

// shared is the error of a request for another pod's namespace.
func (m *Manager) shared(other string) error {
	return &Error{Conflict, fmt.Errorf("namespace: it is pod %s's: %w", other, errShared)}
}

// nameInterfaces chooses the names of the interfaces, before any network is called.
func nameInterfaces(uuid string, h netns.NsHandle, networks []Network) ([]Attachment, error) {
	taken, err := linkNames(h)
	if err != nil {
		return nil, err
	}
	list := make([]Attachment, 0, len(networks))
	for i, n := range networks {
		a := Attachment{Network: n.Ref}
		if n.InterfaceName != nil {
			slices.Sort(taken)
			a.Interface, err = n.InterfaceName(Vars{Pod: uuid, Num: i, Taken: slices.Clone(taken)})
			if err != nil {
				return nil, failed("network %s: %w", n.Name, err)
			}
		}
		if a.Interface != "" {
			taken = append(taken, a.Interface)
		}
		list = append(list, a)
	}
	return list, nil
}

// errShared says that another pod has the namespace.
var errShared = errors.New("another pod has it already")

// LookedAfter reports whether Add failed because the namespace is the host's or another pod's: a
// container that asks for no networks of its own may be in it.
func LookedAfter(err error) bool { return errors.Is(err, errHost) || errors.Is(err, errShared) }
