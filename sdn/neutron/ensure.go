package neutron

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// maxRaces is how often an Ensure begins anew when another process made the same thing at the same time.
const maxRaces = 5

// lockKey keeps calls for one key of a collection apart within this process. The zero key needs no lock.
func lockKey[W wire](ctx context.Context, p *Provider, k collection[W], key sdn.Key) (unlock func(), err error) {
	if key.IsZero() {
		return func() {}, nil
	}
	return p.locks.lock(ctx, k.path+" "+key.String())
}

// A search says when an Ensure looks for an object with its Key.
type search int

const (
	around search = iota // also after making: of two that were made concurrently the younger goes
	before               // Neutron itself refuses a second object
	never                // the caller knows that nothing has the Key
)

// ofNew is the search for an object that the caller says is New, or not.
func ofNew(isNew bool) search {
	if isNew {
		return never
	}
	return around
}

// ensure gives the object with the Key that the base has, in its project, and whether
// make made it just now. It looks before it makes, looks again where the answer to make
// was lost or it was refused because the thing is there or Neutron is busy, and never
// makes twice without a look in between. Within this process calls for one key come one
// after another. With the zero key it only makes.
//
// look says how it searches for objects of other processes.
//
// What ensure gives is what there is, which may be half made or different from what is asked: adopt and finish it.
func ensure[W wire](
	ctx context.Context, p *Provider, k collection[W], b sdn.Base, look search,
	make func(context.Context) (W, error),
) (w W, made bool, err error) {
	if look == never {
		return makeOnce(ctx, p, k, b, make)
	}
	unlock, err := lockKey(ctx, p, k, b.Key)
	if err != nil {
		return w, false, err
	}
	defer unlock()
	for n := 1; ; n++ {
		w, made, err = findOrMake(ctx, p, k, b, make)
		if err != nil || !made || look == before || b.Key.IsZero() {
			return w, made, err
		}
		now, ours, err := settle(ctx, p, k, b, w)
		if err != nil || ours {
			return now, err == nil, err
		}
		if n == maxRaces || !p.client.backoff(ctx, n, nil) {
			return w, false, sdn.Conflict(sdn.Exists, k.title, "key", "%v is being made by several at once", b.Key)
		}
	}
}

// findOrMake is ensure for who has the lock, without the look after making.
func findOrMake[W wire](
	ctx context.Context, p *Provider, k collection[W], b sdn.Base,
	make func(context.Context) (W, error),
) (w W, made bool, err error) {
	if b.Key.IsZero() {
		return makeOnce(ctx, p, k, b, make)
	}
	for n := 1; ; n++ {
		found, err := k.byKey(ctx, p, b)
		switch {
		case err != nil:
			return w, false, err
		case len(found) == 1:
			return found[0], false, nil
		case len(found) > 1 && n < settleLooks && p.client.backoff(ctx, n, nil):
			continue // their makers are settling which one stays
		case len(found) > 1:
			p.log.Warn("several objects have one key; the oldest is used", "noun", k.title, "key", b.Key.String(), "number", len(found))
			return found[0], false, nil
		}
		return makeOnce(ctx, p, k, b, make)
	}
}

// ofParts hides the kind of an error: the object was made and its parts were not. So ensure does not
// search for it, nor make it again.
type ofParts struct{ error }

// makeOnce makes, without a look beforehand: the caller knows that nothing has the key. What Neutron was too busy for is asked for again, between two looks.
func makeOnce[W wire](
	ctx context.Context, p *Provider, k collection[W], b sdn.Base,
	make func(context.Context) (W, error),
) (w W, made bool, err error) {
	w, err = make(ctx)
	for n := 1; !b.Key.IsZero() && (sdn.IsUnavailable(err) || sdn.IsConflict(err)); n++ {
		again := p.client.makeAgain(ctx, n, err)
		// It may have been made all the same, by this request or by another process.
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
		// By the earlier request it may have been made right after the look.
		if now, ours, err := settle(ctx, p, k, b, w); err != nil || ours {
			return now, err == nil, err
		}
		err = sdn.Conflict(sdn.Exists, k.title, "key", "%v is being made by several at once", b.Key)
	}
	return w, err == nil, err
}

// settleLooks is how often the maker of the oldest of several looks whether the others have gone: three to six seconds in all.
const settleLooks = 6

// settle decides what becomes of w, which has just been made, where others have its key, and gives what it is now. Who sees an older one than its
// own takes its own back. Who has the oldest waits for the others to go; one that stays was made by somebody who looked before the oldest was there to be
// seen and has given it away, so that the oldest has to go instead. Which is older is but an order that all agree on: Neutron's clocks need not.
func settle[W wire](ctx context.Context, p *Provider, k collection[W], b sdn.Base, w W) (now W, ours bool, err error) {
	mine := w.common()
	for n := 1; ; n++ {
		found, err := k.byKey(ctx, p, b)
		if err != nil {
			return now, false, err
		}
		at := slices.IndexFunc(found, func(o W) bool { return o.common().ID == mine.ID })
		switch {
		case at < 0:
			return now, false, sdn.NotFound(k.title, mine.ID) // deleted by somebody meanwhile
		case len(found) == 1:
			return found[0], true, nil
		case at > 0 || n == settleLooks:
			return now, false, k.erase(ctx, p, sdn.ID(mine.ID), 0)
		case !p.client.backoff(ctx, n, nil):
			return now, false, sdn.Conflict(sdn.Exists, k.title, "key", "%v is being made by several at once", b.Key)
		}
	}
}

// adopt compares what a spec says of an object that is there with what there is, and puts what is to be changed into body. Tags are
// not in it: finish with setTags.
func adopt(noun string, m *meta, b sdn.Base, body map[string]any) error {
	if b.Project != "" && b.Project != m.Project {
		return immutable(noun, m.ID, "project", m.Project, b.Project)
	}
	set(body, "name", unless(nonZero(b.Name), m.Name, is))
	return nil
}

// patch changes one object by what every Patch has and by body, which has the noun's own, and gives what it is then. Tags
// are written last. Key and description need to be compared with what is there; then the change is made on the condition that
// it has not changed meanwhile.
func patch[W wire](ctx context.Context, p *Provider, k collection[W], id sdn.ID, change sdn.Patch, body map[string]any) (W, error) {
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
				continue // by the provider's own condition: look again
			}
			return none, err
		}
		if change.Tags == nil || sameSet(*change.Tags, w.common().Tags) {
			return w, nil
		}
		if err := k.setTags(ctx, p, w, *change.Tags); err != nil {
			return none, err
		}
		return k.read(ctx, p, id) // for its revision
	}
}

// describe puts into body what becomes of the description, in which Neutron keeps the Key.
func describe[W wire](ctx context.Context, p *Provider, k collection[W], now W, change sdn.Patch, body map[string]any) error {
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

// changeTags is patch of the tags of an object in the cache, without a read. Its requests cannot lose
// what another process does to other tags: one for a tag of our own object, one for each tag of
// another's. Neutron cannot make a change of tags conditional, so the revision is compared with the
// cache. done is false for any other change.
//
// The revision in w is what Neutron counts to by a tag each. A condition on the one before is stale
// here too. If Neutron counted otherwise, so is a condition on this one.
func changeTags[W wire](
	ctx context.Context, p *Provider, c *cache[W], k collection[W], id sdn.ID, change sdn.Patch,
) (w W, done bool, err error) {
	w, ok := c.get(id)
	if !ok || change.Tags == nil || !p.extensions.hasTags() ||
		change.Key != nil || change.Name != nil || change.Description != nil {
		return w, false, nil
	}
	m := w.common()
	if change.IfRevision != 0 && int64(m.Revision) != change.IfRevision {
		return w, false, nil
	}
	if err := valid.Tags(k.title, *change.Tags); err != nil {
		return w, false, err
	}
	want := valid.TagSet(*change.Tags)
	added, removed := without(want, m.Tags), without(m.Tags, want)
	all := slices.Concat(added, removed)
	if len(all) == 0 || len(all) > 1 && p.mine(m) || slices.ContainsFunc(all, hasSlash) {
		return w, false, nil
	}
	w, err = c.changing(id, func() (W, error) {
		missing, err := k.changeTags(ctx, p, id, added, removed)
		if missing && err == nil {
			err = errTagMissing
		}
		m.Tags, m.Revision = want, m.Revision+revision(len(all))
		return w, err
	})
	if errors.Is(err, errTagMissing) {
		return w, false, nil // the tag is gone, or the object is: patch finds out
	}
	return w, true, tagError(k.title, err, all)
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

// tagged writes the tags that a spec has; nil leaves those that are there.
func tagged[W wire](
	ctx context.Context, p *Provider, k collection[W], w W, tags []string,
) (W, error) {
	if tags == nil {
		return w, nil
	}
	return k.retag(ctx, p, w, tags)
}

// writeTags writes the tags that a spec has of an object that may be in the cache. The cache drops it: a
// concurrent read may lack them.
func writeTags[W wire](
	ctx context.Context, p *Provider, c *cache[W], k collection[W], w W, tags []string,
) (written bool, err error) {
	if tags == nil || sameSet(tags, w.common().Tags) {
		return false, nil
	}
	id := sdn.ID(w.common().ID)
	c.drop(id)
	defer c.drop(id)
	return true, k.setTags(ctx, p, w, tags)
}

// errTagMissing tells changeTags that a tag was not there to be removed.
var errTagMissing = errors.New("the tag is not there")

// locks keep calls for one object apart.
type locks struct{ keymutex.Mutex }

// lock waits for the name. The function it gives lets go.
func (l *locks) lock(ctx context.Context, name string) (unlock func(), err error) {
	if unlock, err = l.Lock(ctx, name); err != nil {
		return nil, sdn.Unavailable(err, "Neutron", "another call for the same object has not ended in time")
	}
	return unlock, nil
}
