package neutronapi

import (
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/kuryr/kuryr/sdn"
)

// maxTags is how many tags an object may have, see mostTags.
const maxTags = 50

// mostTags is how many tags an object may have here: what the provider takes, at most maxTags.
func mostTags(can sdn.Capabilities) int {
	if can.MaxTags == 0 {
		return maxTags
	}
	return min(can.MaxTags, maxTags)
}

func errManyTags(most int) error {
	return badRequest("Invalid input for tags. Reason: an object can have at most " + strconv.Itoa(most) + " tags.")
}

// tagged returns the object whose tags the call reads or changes.
func (r *resource) tagged(c *call) (sdn.Meta, error) {
	get := r.own
	if c.reads() {
		get = r.need
	}
	object, err := get(c, c.target())
	if sdn.IsNotFound(err) {
		err = refuse(http.StatusNotFound, "TagResourceNotFound", "Resource %s %s could not be found.", r.title, c.target())
	}
	if err != nil {
		return sdn.Meta{}, err
	}
	return r.meta(object), nil
}

// attempts bounds the tries to change tags while other calls change the same object.
const attempts = 10

// changeTags sets the object's tags to what of returns for the present ones. It loses no change that
// is made concurrently. of may fail.
func (r *resource) changeTags(c *call, of func(tags []string) ([]string, error)) (tags []string, err error) {
	unlock, err := c.server.locks.lock(c.ctx(), string(c.target()))
	if err != nil {
		return nil, err
	}
	defer unlock()
	ctx, most := holding(c.ctx(), string(c.target())), mostTags(c.server.p.Capabilities())
	for range attempts {
		m, err := r.tagged(c)
		if err != nil {
			return nil, err
		}
		if _, err := c.condition(r.title, m); err != nil {
			return nil, err
		}
		if tags, err = of(slices.Clone(m.Tags)); err != nil {
			return nil, err
		}
		if len(tags) > most && len(tags) > len(m.Tags) {
			return nil, errManyTags(most)
		}
		err = r.setTags(ctx, m.ID, sdn.Patch{IfRevision: m.Revision, Tags: &tags})
		if sdn.ReasonOf(err) != sdn.Stale {
			return tags, err
		}
	}
	return nil, sdn.Conflict(sdn.Stale, r.title, "tags", "others change it all the time")
}

func (r *resource) listTags(w http.ResponseWriter, c *call) error {
	m, err := r.tagged(c)
	if err == nil {
		writeJSON(w, http.StatusOK, map[string][]string{"tags": list(m.Tags)})
	}
	return err
}

func (r *resource) showTag(w http.ResponseWriter, c *call) error {
	m, err := r.tagged(c)
	if err != nil {
		return err
	}
	if tag := c.PathValue("tag"); !slices.Contains(m.Tags, tag) {
		return tagNotFound(tag)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func tagNotFound(tag string) error {
	return refuse(http.StatusNotFound, "TagNotFound", "Tag %s could not be found.", tag)
}

// bodyTags reads {"tags": […]}.
func (c *call) bodyTags() ([]string, error) {
	document, err := c.document()
	if err != nil {
		return nil, err
	}
	items, ok := document["tags"].([]any)
	switch {
	case !ok:
		return nil, invalidInput("Invalid tags body")
	case len(items) > maxItems:
		return nil, errManyTags(mostTags(c.server.p.Capabilities()))
	}
	tags := []string{}
	for _, item := range items {
		tag, ok := item.(string)
		if !ok {
			return nil, invalidInput("'%s' is not a valid string", show(item))
		}
		if slices.Contains(tags, tag) {
			return nil, invalidInput("Duplicate items in the list: '%s'", tag)
		}
		if err := checkTag(tag); err != nil {
			return nil, err
		}
		tags = append(tags, tag)
	}
	return tags, nil
}

func checkTag(tag string) error {
	if n := utf8.RuneCountInString(tag); n > maxText {
		return invalidInput("'%s' exceeds maximum length of 255", tag)
	} else if n == 0 {
		return invalidInput("'' is not a valid tag")
	}
	return nil
}

// replaceTags sets all tags.
func (r *resource) replaceTags(w http.ResponseWriter, c *call) error {
	tags, err := c.bodyTags()
	if err != nil {
		return err
	}
	if tags, err = r.changeTags(c, func([]string) ([]string, error) { return tags, nil }); err == nil {
		writeJSON(w, http.StatusOK, map[string][]string{"tags": tags})
	}
	return err
}

// addTags adds several tags (extension tag-creation).
func (r *resource) addTags(w http.ResponseWriter, c *call) error {
	tags, err := c.bodyTags()
	if err != nil {
		return err
	}
	return r.answerChange(w, c, http.StatusCreated, func(have []string) ([]string, error) {
		return union(have, tags), nil
	})
}

func union(have, more []string) []string {
	for _, tag := range more {
		if !slices.Contains(have, tag) {
			have = append(have, tag)
		}
	}
	return have
}

// answerChange changes the tags and answers with the status and without a body.
func (r *resource) answerChange(w http.ResponseWriter, c *call, status int, of func([]string) ([]string, error)) error {
	_, err := r.changeTags(c, of)
	if err == nil {
		w.WriteHeader(status)
	}
	return err
}

func (r *resource) addTag(w http.ResponseWriter, c *call) error {
	tag := c.PathValue("tag")
	if err := checkTag(tag); err != nil {
		return err
	}
	return r.answerChange(w, c, http.StatusCreated, func(have []string) ([]string, error) {
		return union(have, []string{tag}), nil
	})
}

func (r *resource) removeTag(w http.ResponseWriter, c *call) error {
	tag := c.PathValue("tag")
	return r.answerChange(w, c, http.StatusNoContent, func(have []string) ([]string, error) {
		if !slices.Contains(have, tag) {
			return nil, tagNotFound(tag)
		}
		return slices.DeleteFunc(have, func(t string) bool { return t == tag }), nil
	})
}

func (r *resource) removeTags(w http.ResponseWriter, c *call) error {
	return r.answerChange(w, c, http.StatusNoContent, func([]string) ([]string, error) { return []string{}, nil })
}
