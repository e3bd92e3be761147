package neutron

import (
	"cmp"
	"context"
	"slices"

	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// maxRaces is how often a call begins again because another process was faster.
const maxRaces = 5

// A search says when an Ensure looks for an object with its Key.
type search int

const (
	around search = iota // also after making: of two that were made concurrently the younger goes
	before               // Neutron itself refuses a second object
	never                // the caller knows that no object has the Key
)

// ofNew is the search for an object that the caller says is New, or not.
func ofNew(isNew bool) search {
	if isNew {
		return never
	}
	return around
}

// ensure returns the object with the Key of the base in its project, and whether make made it. It looks
// before it makes. It looks again if the answer was lost, Neutron was busy, or Neutron says that the
// object exists: it never makes twice without a look in between. Calls of this process for one Key
// come one after another. With the zero Key ensure only makes.
//
// An object that exists may be half made, or differ from the spec: adopt and finish it.
func ensure[W wire](
	ctx context.Context, p *Provider, k collection[W], b sdn.Base, look search,
	make func(context.Context) (W, error),
) (w W, made bool, err error) {
	if look == never || b.Key.IsZero() {
		return makeOnce(ctx, p, k, b, make)
	}
	unlock, err := p.locks.lock(ctx, k.path+" "+b.Key.String())
	if err != nil {
		return w, false, err
	}
	defer unlock()
	for n := 1; ; n++ {
		w, made, err = findOrMake(ctx, p, k, b, make)
		if err != nil || !made || look == before {
			return w, made, err
		}
		now, ours, err := keepOldest(ctx, p, k, b, w)
		if err != nil || ours {
			return now, err == nil, err
		}
		if n == maxRaces || !p.client.backoff(ctx, n, nil) {
			return w, false, madeTwice(k.title, b.Key)
		}
	}
}

// madeTwice is the conflict of a call whose object other processes are making too.
func madeTwice(noun string, key sdn.Key) error {
	return sdn.Conflict(sdn.Exists, noun, "key", "%v is being made by several processes", key)
}

// findOrMake is ensure without the look after making. It waits while the makers of several objects
// decide which one stays.
func findOrMake[W wire](
	ctx context.Context, p *Provider, k collection[W], b sdn.Base,
	make func(context.Context) (W, error),
) (w W, made bool, err error) {
	for n := 1; ; n++ {
		found, err := k.byKey(ctx, p, b)
		switch {
		case err != nil:
			return w, false, err
		case len(found) == 0:
			return makeOnce(ctx, p, k, b, make)
		case len(found) == 1:
			return found[0], false, nil
		case n == settleLooks || !p.client.backoff(ctx, n, nil):
			p.log.Warn("several objects have one key",
				"noun", k.title, "key", b.Key.String(), "number", len(found))
			return found[0], false, nil
		}
	}
}

// ofParts hides the kind of an error: the object was made and its parts were not. So ensure does not
// search for it, nor make it again.
type ofParts struct{ error }

// makeOnce makes without a look before. If Neutron was too busy, it makes again, between two looks.
func makeOnce[W wire](
	ctx context.Context, p *Provider, k collection[W], b sdn.Base,
	make func(context.Context) (W, error),
) (w W, made bool, err error) {
	w, err = make(ctx)
	for n := 1; !b.Key.IsZero() && (sdn.IsUnavailable(err) || sdn.IsConflict(err)); n++ {
		again := p.client.makeAgain(ctx, n, err)
		// This request may have made it, or another process.
		found, errLook := k.byKey(ctx, p, b)
		if errLook == nil && len(found) > 0 {
			return found[0], false, nil
		}
		if errLook != nil || !again {
			return w, false, err
		}
		if w, err = make(ctx); err != nil {
			continue
		}
		// The earlier request may have made it right after the look.
		if now, ours, err := keepOldest(ctx, p, k, b, w); err != nil || ours {
			return now, err == nil, err
		}
		err = madeTwice(k.title, b.Key)
	}
	return w, err == nil, err
}

// settleLooks is how often the maker of the oldest object looks for the others to go: within three to
// six seconds.
const settleLooks = 6

// keepOldest decides what happens to w, which this call has made, if other objects have its Key. It returns
// w as read last, and false after it deleted w. A maker that sees an older object deletes its own. The
// maker of the oldest waits for the others to go. If one stays, its maker looked before the oldest
// could be seen and has returned it, so the oldest goes. The order is one that all makers agree on:
// Neutron's clocks need not.
func keepOldest[W wire](
	ctx context.Context, p *Provider, k collection[W], b sdn.Base, w W,
) (now W, ours bool, err error) {
	mine := w.common()
	for n := 1; ; n++ {
		found, err := k.byKey(ctx, p, b)
		if err != nil {
			return now, false, err
		}
		at := slices.IndexFunc(found, func(o W) bool { return o.common().ID == mine.ID })
		switch {
		case at < 0: // another process has deleted it
			return now, false, sdn.NotFound(k.title, mine.ID)
		case len(found) == 1:
			return found[0], true, nil
		case at > 0 || n == settleLooks:
			return now, false, k.erase(ctx, p, sdn.ID(mine.ID), 0)
		case !p.client.backoff(ctx, n, nil):
			return now, false, madeTwice(k.title, b.Key)
		}
	}
}

// adopt compares what every spec has with an object that exists, and puts what differs into body. Tags
// are written by tagged or writeTags.
func adopt(noun string, m *meta, b sdn.Base, body map[string]any) error {
	if b.Project != "" && b.Project != m.Project {
		return immutable(noun, m.ID, "project", m.Project, b.Project)
	}
	set(body, "name", unless(nonZero(b.Name), m.Name, is))
	return nil
}

// patch changes an object by what every Patch has and by body, which has the noun's own. It returns the
// object after that. It writes tags last. For a Key or a description it reads the object first, and
// changes it at the revision that it has read.
func patch[W wire](
	ctx context.Context, p *Provider, k collection[W], id sdn.ID, change sdn.Patch,
	body map[string]any,
) (W, error) {
	var none W
	if err := valid.Patch(k.title, change); err != nil {
		return none, err
	}
	set(body, "name", change.Name)
	for n := 1; ; n++ {
		ifRevision := change.IfRevision
		if change.Key != nil || change.Description != nil {
			now, err := k.read(ctx, p, id)
			if err != nil {
				return none, err
			}
			if err := describe(ctx, p, k, now, change, body); err != nil {
				return none, err
			}
			if ifRevision == 0 {
				ifRevision = int64(now.common().Revision)
			}
		}
		w, err := k.update(ctx, p, id, ifRevision, body)
		if err != nil {
			if sdn.ReasonOf(err) == sdn.Stale && change.IfRevision == 0 && n < maxRaces {
				continue // by the condition of this function
			}
			return none, err
		}
		if change.Tags == nil {
			return w, nil
		}
		return k.retag(ctx, p, w, *change.Tags)
	}
}

// describe puts the new description into body. Neutron keeps the Key there.
func describe[W wire](
	ctx context.Context, p *Provider, k collection[W], now W, change sdn.Patch,
	body map[string]any,
) error {
	m := now.common().decode(p.owner)
	description := m.Description
	if change.Description != nil {
		description = *change.Description
	}
	key := m.Key
	if change.Key != nil && *change.Key != key {
		if !key.IsZero() {
			return immutable(k.title, string(m.ID), "key", key, *change.Key)
		}
		key = *change.Key
		others, err := k.byKey(ctx, p, sdn.Base{Key: key, Project: m.Project})
		if err != nil {
			return err
		}
		if len(others) > 0 {
			return sdn.Conflict(sdn.Exists, k.title, "key", "%v is another's", key)
		}
	}
	if !key.IsZero() && description != "" {
		return sdn.Invalid(k.title, "description", "must be empty for an object with a key")
	}
	if text := cmp.Or(key.String(), description); text != now.common().Description {
		body["description"] = text
	}
	return nil
}

// patchCached is patch, or write, of a noun with a cache. onlyTags says that nothing but what every
// Patch has is to change.
func patchCached[W wire](
	ctx context.Context, p *Provider, c *cache[W], k collection[W], id sdn.ID, change sdn.Patch,
	onlyTags bool, write func() (W, error),
) (W, error) {
	if onlyTags {
		if w, done, err := changeTags(ctx, p, c, k, id, change); done || err != nil {
			return w, err
		}
	}
	return c.changing(id, write)
}

// applied returns the object that a whole value is about: the one with the id, or the one with the
// Key of b, which create makes if it is absent. An object that exists is changed to what b says, and to
// what change puts into the body. Of an object that was named by its id the Key and the description of
// b count too. Tags do not. If nothing differs, no change is sent.
func applied[W wire](
	ctx context.Context, p *Provider, k collection[W], id sdn.ID, b sdn.Base, ifRevision int64,
	create func(context.Context) (W, error), change func(w W, body map[string]any) error,
) (w W, made bool, err error) {
	if id != "" {
		w, err = k.read(ctx, p, id)
	} else {
		w, made, err = ensure(ctx, p, k, b, around, create)
	}
	if err != nil || made {
		return w, made, err
	}
	m := w.common()
	if ifRevision != 0 && ifRevision != int64(m.Revision) {
		return w, false, stale(k.title, m)
	}
	body := map[string]any{}
	if err := change(w, body); err != nil {
		return w, false, err
	}
	if err := adopt(k.title, m, b, body); err != nil {
		return w, false, err
	}
	asked := sdn.Patch{IfRevision: ifRevision}
	if id != "" && !b.Key.IsZero() {
		asked.Key = &b.Key
	}
	if id != "" && b.Description != "" {
		asked.Description = &b.Description
	}
	if len(body) == 0 && asked.Key == nil && asked.Description == nil {
		return w, false, nil
	}
	w, err = patch(ctx, p, k, sdn.ID(m.ID), asked, body)
	return w, false, err
}

// finished sends the changes in body of an object that an Ensure has made or found, and writes the tags
// of b.
func finished[W wire](
	ctx context.Context, p *Provider, k collection[W], w W, b sdn.Base, body map[string]any,
) (W, error) {
	if err := adopt(k.title, w.common(), b, body); err != nil {
		return w, err
	}
	if len(body) > 0 {
		var err error
		if w, err = k.update(ctx, p, sdn.ID(w.common().ID), 0, body); err != nil {
			return w, err
		}
	}
	return tagged(ctx, p, k, w, b.Tags)
}

// locks keep calls for one object apart.
type locks struct{ keymutex.Mutex }

// lock waits for the name.
func (l *locks) lock(ctx context.Context, name string) (unlock func(), err error) {
	if unlock, err = l.Lock(ctx, name); err != nil {
		return nil, sdn.Unavailable(err, "Neutron",
			"another call for the same object has not ended in time")
	}
	return unlock, nil
}
