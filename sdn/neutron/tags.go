package neutron

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/attributestags"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// setTags makes tags the whole set of an object's tags, and puts them into w. Neutron counts the
// revision up, which w does not show. Without tags in Neutron it does nothing: nothing may depend on
// them.
//
// Tags of our own objects are written as a set, by one request. Those of another's, which other
// programs mark too, are written one by one, so that none is lost: Neutron cannot make a set
// conditional. If the noun has one user at a time, and all tags are that user's, a set is written too.
func (k collection[W]) setTags(ctx context.Context, p *Provider, w W, tags []string) error {
	m := w.common()
	want := valid.TagSet(tags)
	if sameSet(want, m.Tags) || !p.extensions.hasTags() {
		return nil
	}
	added, removed := without(want, m.Tags), without(m.Tags, want)
	alone := k.oneUser && len(m.Tags) == len(removed)
	var err error
	if alone || p.mine(m) || slices.ContainsFunc(slices.Concat(added, removed), hasSlash) {
		opts := attributestags.ReplaceAllOpts{Tags: append([]string{}, want...)}
		err = p.client.typed(attributestags.ReplaceAll(
			ctx, p.client.api(), k.path[1:], url.PathEscape(m.ID), opts).Err)
	} else {
		_, err = k.addTags(ctx, p, sdn.ID(m.ID), added, removed)
	}
	if err != nil {
		return tagError(k.title, err, added)
	}
	m.Tags = want
	return nil
}

// hasSlash reports whether a tag cannot be part of a path: it is written in a set.
func hasSlash(tag string) bool { return strings.Contains(tag, "/") }

// tagError names the tag that is too long for an older Neutron, if it refused one.
func tagError(noun string, err error, tags []string) error {
	isLong := func(tag string) bool { return utf8.RuneCountInString(tag) > maxTagLen }
	at := slices.IndexFunc(tags, isLong)
	if at < 0 || !sdn.IsInvalid(err) {
		return err
	}
	return &sdn.Error{
		Kind: sdn.KindInvalid, Noun: noun, Field: "tags", Err: err,
		Detail: fmt.Sprintf(
			"%q is %d characters long, and a Neutron before release 19 takes at most %d",
			tags[at], utf8.RuneCountInString(tags[at]), maxTagLen),
	}
}

// addTags adds tags and removes others. Neutron 25 and later adds several by one request, for which
// gophercloud has no call. A tag that exists already is no error. missing reports that a tag to be
// removed, or the object, was absent.
func (k collection[W]) addTags(
	ctx context.Context, p *Provider, id sdn.ID, added, removed []string,
) (missing bool, err error) {
	if len(added) > 1 && p.extensions.has("tag-creation") {
		body := map[string]any{"tags": added}
		if err := p.client.do(ctx, http.MethodPost, k.at(id, "tags"), 0, body, nil); err != nil {
			return false, err
		}
		added = nil
	}
	api, object := p.client.api(), url.PathEscape(string(id))
	for _, tag := range added {
		tag = url.PathEscape(tag)
		err := p.client.typed(attributestags.Add(ctx, api, k.path[1:], object, tag).Err)
		if err != nil {
			return false, err
		}
	}
	for _, tag := range removed {
		tag = url.PathEscape(tag)
		err := p.client.typed(attributestags.Delete(ctx, api, k.path[1:], object, tag).Err)
		if err != nil && !sdn.IsNotFound(err) {
			return missing, err
		}
		missing = missing || err != nil
	}
	return missing, nil
}

// retag is setTags that returns the object after that, with its revision.
func (k collection[W]) retag(
	ctx context.Context, p *Provider, w W, tags []string,
) (W, error) {
	if sameSet(tags, w.common().Tags) {
		return w, nil
	}
	if err := k.setTags(ctx, p, w, tags); err != nil {
		return w, err
	}
	return k.read(ctx, p, sdn.ID(w.common().ID))
}

// tagged writes the tags that a spec has; nil leaves those that exist.
func tagged[W wire](
	ctx context.Context, p *Provider, k collection[W], w W, tags []string,
) (W, error) {
	if tags == nil {
		return w, nil
	}
	return k.retag(ctx, p, w, tags)
}

// writeTags writes the tags that a spec has of an object that may be in the cache. The cache drops it:
// a concurrent read may lack them.
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
		missing, err := k.addTags(ctx, p, id, added, removed)
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

// errTagMissing tells changeTags that a tag was not there to be removed.
var errTagMissing = errors.New("the tag is not there")
