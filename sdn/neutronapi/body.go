package neutronapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kuryr/kuryr/sdn"
)

// maxText is how long names and descriptions may be, in characters.
const maxText = 255

// body reads the attributes of an object in a request. A method takes an attribute and checks what it is; the first that is wrong is remembered, and
// so are those that nobody asked for. What is absent is nil.
type body struct {
	*call
	noun       string // the member, for denials
	within     string // the attribute that this is a part of; "" for an object itself
	values     map[string]any
	post       bool // a new object's, not a change
	ifRevision int64
	key        sdn.Key // that the description is, once read
	err        error
}

// done returns what was wrong.
func (b *body) done() error {
	if left := slices.Sorted(maps.Keys(b.values)); len(left) > 0 && b.within == "" {
		return badRequest("Unrecognized attribute(s) '" + strings.Join(left, ", ") + "'")
	} else if len(left) > 0 {
		b.invalid(left[0], "Unexpected keys: %s", strings.Join(left, ", "))
	}
	return b.err
}

// fail remembers the first error.
func (b *body) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// stop remembers an error after which nothing further is read.
func (b *body) stop(err error) {
	b.fail(err)
	b.values = nil
}

// invalid remembers that an attribute is not what it should be.
func (b *body) invalid(name, reason string, args ...any) {
	if b.within != "" {
		name = b.within
	}
	b.fail(badRequest("Invalid input for " + name + ". Reason: " + fmt.Sprintf(reason, args...) + "."))
}

// mistyped remembers that an attribute cannot be made what it should be.
func (b *body) mistyped(name, reason string, args ...any) {
	if b.within != "" {
		name = b.within
	}
	b.fail(refuse(http.StatusBadRequest, "InvalidInput", "Invalid input for %s. Reason: %s.", name, fmt.Sprintf(reason, args...)))
}

// has tells whether an attribute is given and was not taken yet.
func (b *body) has(name string) bool {
	_, there := b.values[name]
	return there
}

// take takes an attribute. A null is given, with the value nil.
func (b *body) take(name string) (value any, given bool) {
	value, given = b.values[name]
	delete(b.values, name)
	return value, given
}

// null takes an attribute if it is null, and tells whether it was.
func (b *body) null(name string) bool {
	if value, given := b.values[name]; !given || value != nil {
		return false
	}
	delete(b.values, name)
	return true
}

// required refuses a new object without these.
func (b *body) required(names ...string) {
	for _, name := range names {
		if b.post && !b.has(name) {
			b.fail(badRequest("Failed to parse request. Required attribute '" + name + "' not specified"))
		}
	}
}

// readOnly refuses attributes that the SDN sets.
func (b *body) readOnly(names ...string) {
	for _, name := range names {
		if _, given := b.take(name); !given {
			continue
		}
		if b.post {
			b.fail(badRequest("Attribute '" + name + "' not allowed in POST"))
		} else {
			b.fail(badRequest("Cannot update read-only attribute " + name))
		}
	}
}

// falseAnyway are the attributes for administrators that are false of a new object of which nothing is said.
var falseAnyway = []string{"shared", "is_default", "router:external"}

// privileged refuses an attribute to all but administrators. It is not taken. As in Neutron, who says of a new object what is so anyway has said nothing.
func (b *body) privileged(name string) {
	if anyway := b.post && b.values[name] == false && slices.Contains(falseAnyway, name); b.has(name) && !anyway && !b.caller.admin() {
		verb := "update_"
		if b.post {
			verb = "create_"
		}
		b.fail(errAdminsOnly(verb + b.noun + ":" + name))
	}
}

// unsupported refuses an attribute, already taken, that asks for what the SDN cannot do.
func (b *body) unsupported(name, why string) {
	b.fail(&sdn.Error{Kind: sdn.KindUnsupported, Noun: b.noun, Field: fieldOf(name), Detail: why})
}

// str takes a text of at most limit characters.
func (b *body) str(name string, limit int) *string {
	value, given := b.take(name)
	if !given {
		return nil
	}
	s, ok := value.(string)
	switch {
	case !ok:
		b.invalid(name, "'%s' is not a valid string", show(value))
	case utf8.RuneCountInString(s) > limit:
		b.invalid(name, "'%s' exceeds maximum length of %d", s, limit)
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }):
		b.invalid(name, "%s has characters that cannot be shown", strconv.Quote(s))
	default:
		return &s
	}
	return nil
}

// text takes a text of at most 255 characters.
func (b *body) text(name string) *string { return b.str(name, maxText) }

// optional takes a text or null, which is "".
func (b *body) optional(name string) *string {
	if b.null(name) {
		return new(string)
	}
	return b.text(name)
}

// id takes an id or null, which is "".
func (b *body) id(name string) *sdn.ID {
	s := b.optional(name)
	if s == nil {
		return nil
	}
	id := sdn.ID(*s)
	return &id
}

// namedID takes an id, and refuses null.
func (b *body) namedID(name string) *sdn.ID {
	if s := b.text(name); s != nil {
		id := sdn.ID(*s)
		return &id
	}
	return nil
}

// boolean takes a truth value, which clients write in several ways.
func (b *body) boolean(name string) *bool {
	value, given := b.take(name)
	if !given {
		return nil
	}
	out := false
	switch v := value.(type) {
	case bool:
		return &v
	case string:
		switch strings.ToLower(v) {
		case "true", "1":
			out = true
			return &out
		case "false", "0":
			return &out
		}
	case json.Number:
		if v == "0" || v == "1" {
			out = v == "1"
			return &out
		}
	}
	b.mistyped(name, "'%s' cannot be converted to boolean", show(value))
	return nil
}

// number takes a whole number, both ends of its range in it.
func (b *body) number(name string, least, most int64) *int64 {
	value, given := b.take(name)
	if !given {
		return nil
	}
	var n int64
	err := strconv.ErrSyntax
	switch v := value.(type) {
	case json.Number:
		n, err = strconv.ParseInt(v.String(), 10, 64)
	case string:
		n, err = strconv.ParseInt(v, 10, 64)
	}
	switch {
	case err != nil:
		b.mistyped(name, "'%s' is not an integer", show(value))
	case n < least:
		b.invalid(name, "'%d' is too small - must be at least '%d'", n, least)
	case n > most:
		b.invalid(name, "'%d' is too large - must be no larger than '%d'", n, most)
	default:
		return &n
	}
	return nil
}

// integer is number for what the contract has as an int.
func (b *body) integer(name string, least, most int) *int {
	n := b.number(name, int64(least), int64(most))
	if n == nil {
		return nil
	}
	i := int(*n)
	return &i
}

// oneOf takes one of a few words.
func (b *body) oneOf(name string, words ...string) *string {
	s := b.text(name)
	if s != nil && !slices.Contains(words, *s) {
		b.invalid(name, "'%s' is not in ['%s']", *s, strings.Join(words, "', '"))
		return nil
	}
	return s
}

// show is a value as Neutron's messages have it.
func show(value any) string {
	if value == nil {
		return "None"
	}
	if s, ok := value.(string); ok {
		return s
	}
	data, _ := json.Marshal(value)
	return string(data)
}

// needs refuses a part without these.
func (b *body) needs(names ...string) {
	for _, name := range names {
		if !b.has(name) {
			b.invalid(name, "Expected keys not found: %s", name)
		}
	}
}
