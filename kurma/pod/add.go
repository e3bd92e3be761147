//go:build linux

package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/uuid"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/vishvananda/netns"
)

// Add attaches a pod to its networks, one after the other, and answers when it is whole. Where a network is unknown or fails, or ctx ends first, what was done
// is undone in reverse order, and the error says why. Asked again for the same it answers what there is; with another namespace or other
// networks the error's reason is Conflict.
func (m *Manager) Add(ctx context.Context, r Request) (Pod, error) {
	end, err := m.begin()
	if err != nil {
		return Pod{}, err
	}
	defer end()
	if r, err = checked(r); err != nil {
		return Pod{}, err
	}
	unlock, err := m.locks.Lock(ctx, r.UUID)
	if err != nil {
		return Pod{}, failed("pod %s: another call for it has not ended: %w", r.UUID, err)
	}
	defer unlock()
	var first *process
	if r.Container != "" {
		if first, err = processOf(r.PID); err != nil {
			return Pod{}, invalid("pid: process %d of container %s: %w", r.PID, clip(r.Container), err)
		}
	}
	h, err := find(r)
	if err != nil {
		return Pod{}, err
	}
	defer h.Close()
	by, err := requesterOf(r, first)
	if err != nil {
		return Pod{}, err
	}
	if r.Container != "" && r.UUID != UUIDOf(r.Container) {
		if err := m.grants.Load().checkUUID(by, r.UUID); err != nil {
			return Pod{}, err
		}
	}
	has, left, err := m.existing(r, h)
	if has != nil || err != nil {
		return has.pod(), err
	}
	networks, release, err := m.choose(r, by)
	if err != nil {
		return Pod{}, err
	}
	defer release()
	if left != nil { // only now: a request that is refused removes nothing
		if err := m.remove(ctx, left, false); err != nil {
			return Pod{}, conflict("pod %s: what is left of an earlier one is not removed yet: %w", r.UUID, err)
		}
	}
	made := &record{Process: first, Pod: Pod{
		UUID: r.UUID, State: Adding, Namespace: m.spaces.Path(r.UUID), Container: r.Container, Networks: r.Networks,
		Attachments: []Attachment{}, Created: time.Now().UTC().Round(time.Millisecond),
	}}
	made, err = m.attach(ctx, made, h, networks)
	if err == nil {
		m.log.InfoContext(ctx, "pod attached", "pod", r.UUID, "container", r.Container, "networks", names(networks))
		return made.Pod, nil
	}
	if undo := m.remove(ctx, made, false); undo != nil {
		err = fmt.Errorf("%w; what was done is not undone, and is tried again: %w", err, undo)
	}
	return Pod{}, err
}

// checked brings a request into the form that is kept.
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

// existing finds the pod that answers the request, or what is left of an earlier one, which must
// be removed first. Both are nil without one. The pod's lock is held.
func (m *Manager) existing(r Request, h netns.NsHandle) (has, left *record, err error) {
	has = m.record(r.UUID)
	if has == nil {
		return nil, nil, nil
	}
	same, err := has.in(h)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case has.Container != r.Container && same && r.Container != "":
		err = &Error{Conflict, fmt.Errorf("pod %s: %w", r.UUID, errShared)}
	case has.Container != r.Container:
		err = conflict("pod %s: it belongs to container %q, not %q: delete it first",
			r.UUID, clip(has.Container), clip(r.Container))
	case has.State != Ready:
		return nil, has, nil
	case r.Container != "" && !same && has.Process != nil && has.Process.gone(): // recreated by its runtime
		return nil, has, nil
	case !same:
		err = conflict("pod %s: it has another network namespace: delete it first", r.UUID)
	case (r.Networks == nil) != (has.Networks == nil) || !slices.Equal(r.Networks, has.Networks):
		err = conflict("pod %s: it is there with networks %s: delete it first", r.UUID, wished(has.Networks))
	}
	if err != nil {
		return nil, nil, err
	}
	return has, nil, nil
}

// in tells whether the pod has this namespace; no namespace stands for whatever it has.
func (r *record) in(h netns.NsHandle) (bool, error) {
	if !h.IsOpen() {
		return true, nil
	}
	s, err := spaceOf(h)
	return s == r.Space, err
}

func wished(networks []string) string {
	if networks == nil {
		return "by default"
	}
	return fmt.Sprint(networks)
}

func names(networks []Network) (list []string) {
	for _, n := range networks {
		list = append(list, n.Name)
	}
	return list
}

// choose finds the networks of a request, and holds their generations until release is called.
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
		// The configuration may have changed before they were held. Later it finds them in use.
		again, err := pick(m.plugins.Networks(), r.Networks)
		if err == nil && slices.EqualFunc(chosen, again, func(a, b Network) bool { return a.Ref == b.Ref }) {
			return chosen, release, nil
		}
		release()
	}
}

// pick finds networks by name, or the defaults where no names are given.
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
		m.used[n.Ref]++
	}
	return func() {
		for _, n := range networks {
			m.leave(n.Ref)
		}
	}
}

// leave lets go of a generation, and tells if nobody is on it any more.
func (m *Manager) leave(on Ref) {
	m.mu.Lock()
	m.used[on]--
	last := m.used[on] == 0
	if last {
		delete(m.used, on)
	}
	m.mu.Unlock()
	if last {
		m.plugins.Release(on)
	}
}

// attach does what Add is for. After an error the record is what is to be removed.
func (m *Manager) attach(ctx context.Context, made *record, h netns.NsHandle, networks []Network) (*record, error) {
	if h.IsOpen() {
		if err := m.claim(made, h); err != nil {
			return made, err
		}
	}
	// Until the first record is written, a pin without one tells the next start of it.
	h, err := m.pin(made.UUID, h)
	if err != nil {
		return made, err
	}
	defer h.Close()
	failpoint.Here("kurma.add.pinned")
	if made.Space == (space{}) {
		if err := m.claim(made, h); err != nil {
			return made, err
		}
	}
	if err := loopback(h); err != nil {
		return made, err
	}
	failpoint.Here("kurma.add.loopback")
	for _, n := range networks {
		if err := ctx.Err(); err != nil {
			return made, failed("who asked for the pod waits no longer: %w", context.Cause(ctx))
		}
		call, err := callFor(made, h, n)
		if err != nil {
			return made, err
		}
		made = made.with(func(r *record) {
			r.Attachments = append(r.Attachments, Attachment{Network: n.Ref, Interface: call.Interface})
		})
		if err := m.store(made); err != nil {
			return made, err
		}
		failpoint.Here("kurma.add.announced")
		result, err := m.call(ctx, "add", n.Ref, func(ctx context.Context) (*current.Result, error) { return m.plugins.Add(ctx, n.Ref, call) })
		failpoint.Here("kurma.add.called")
		if err != nil && notCalled(err) { // nothing is half done, and a network that does not run would refuse to undo it
			made = made.with(func(r *record) { r.Attachments = r.Attachments[:len(r.Attachments)-1] })
		}
		if err != nil {
			return made, &Error{Failed, err}
		}
		if result == nil {
			result = &current.Result{CNIVersion: current.ImplementedSpecVersion}
		}
		made = made.with(func(r *record) { r.Attachments[len(r.Attachments)-1].Result = result })
	}
	whole := made.with(func(r *record) { r.State = Ready })
	if err := m.store(whole); err != nil {
		return made, err
	}
	failpoint.Here("kurma.add.stored")
	return whole, nil
}

// notCalled tells whether a network refused before its plugin was called.
func notCalled(err error) bool {
	var refusal interface{ NotCalled() bool }
	return errors.As(err, &refusal) && refusal.NotCalled()
}

// callFor chooses the name of the pod's next interface.
func callFor(r *record, h netns.NsHandle, n Network) (Call, error) {
	c := Call{Pod: r.UUID, Namespace: r.Namespace}
	if n.InterfaceName == nil {
		return c, nil
	}
	taken, err := linkNames(h)
	if err != nil {
		return c, err
	}
	for _, a := range r.Attachments {
		taken = append(taken, a.Interface)
		if a.Result != nil {
			for _, i := range a.Result.Interfaces {
				if i.Sandbox != "" {
					taken = append(taken, i.Name)
				}
			}
		}
	}
	taken = slices.DeleteFunc(taken, func(name string) bool { return name == "" })
	slices.Sort(taken)
	if c.Interface, err = n.InterfaceName(Vars{Pod: r.UUID, Num: len(r.Attachments), Taken: slices.Compact(taken)}); err != nil {
		return c, failed("network %s: %w", n.Name, err)
	}
	return c, nil
}

// claim notes whose the namespace is, which is one pod's alone.
func (m *Manager) claim(r *record, h netns.NsHandle) error {
	s, err := spaceOf(h)
	if err != nil {
		return &Error{Internal, err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// One without a record is just being added, and will pin what it holds open.
	if other := m.spaced[s]; other != "" && other != r.UUID && (m.pods[other] == nil || m.pinned(other)) {
		return &Error{Conflict, fmt.Errorf("namespace: it is pod %s's: %w", other, errShared)}
	}
	m.spaced[s] = r.UUID
	r.Space = s
	return nil
}

// pinned tells whether a pod's namespace is still there. The number of one that is gone may be another's now.
func (m *Manager) pinned(uuid string) bool {
	h, err := m.spaces.Handle(uuid)
	if err != nil {
		return false
	}
	_ = h.Close()
	return true
}

// errShared says that another pod has the namespace.
var errShared = errors.New("another pod has it already")

// LookedAfter tells whether Add failed as the namespace is the host's or another pod's: a container that asks for no networks of its own may be in it.
func LookedAfter(err error) bool { return errors.Is(err, errHost) || errors.Is(err, errShared) }
