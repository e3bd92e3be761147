package neutronapi

import (
	"reflect"

	"github.com/kuryr/kuryr/sdn"
)

// A field is an attribute of a resource. Its functions take the provider's object, the request for
// a new object and the change of one by pointers that via and store give their types.
type field struct {
	name   string
	is     kind // how a body's value is checked; nil if no body can have the attribute
	access access
	show   func(object any) any // nil: the attribute is only written
	// post and put store a checked value, of the type that the kind gives. Without post the
	// attribute is refused in POST, without put it is read-only.
	post, put func(into, value any)
	// why says why the SDN lacks what the attribute is for. A body may then have the value
	// only, which by default is the zero value of the kind.
	why  string
	only any
	// taken says in words which values a body may have if the kind or a hook refuses some of
	// them, because of why. docs/sdn-api.md has a table of all attributes with a why.
	taken string
}

// via and store make functions of any value from ones of a pointer. All pointers share one
// compiled copy of them, which is why the fields have no type parameters.
//
//go:noinline
func via[P, R any](f func(P) R) func(any) R {
	return func(object any) R { return f(object.(P)) }
}

//go:noinline
func store[P any](f func(P, any)) func(any, any) {
	return func(into, value any) { f(into.(P), value) }
}

// access says who may use an attribute, and whether a new object needs it.
type access uint8

const (
	required  access = 1 << iota // a new object without it is refused
	adminPost                    // only administrators say it of a new object
	adminPut                     // only administrators change it
	adminShow                    // only administrators see it
	hookPost                     // beforePost or checkPost reads it
	hookPut                      // beforePut or checkPut reads it
	adminSet  = adminPost | adminPut
	hooked    = hookPost | hookPut
)

// A kind takes an attribute from a body and checks it. It gives false if the attribute is
// absent or wrong; the body remembers what is wrong.
type kind func(b *body, name string) (value any, given bool)

// kindOf makes a kind of a method of body. Its values are of type V.
//
//go:noinline
func kindOf[V any](read func(*body, string) *V) kind {
	return func(b *body, name string) (any, bool) {
		v := read(b, name)
		if v == nil {
			return nil, false
		}
		return *v, true
	}
}

// The kinds that several resources have.
var (
	isText     = kindOf((*body).text)     // string
	isOptional = kindOf((*body).optional) // string, "" for null
	isID       = kindOf((*body).id)       // sdn.ID, "" for null
	isNamedID  = kindOf((*body).namedID)  // sdn.ID; null is refused
	isBool     = kindOf((*body).boolean)  // bool
	isTexts    = kindOf((*body).texts)    // []string
	isIDs      = kindOf((*body).ids)      // []sdn.ID
	isAddr     = kindOf((*body).addr)     // netip.Addr
	isAddrs    = kindOf((*body).addrs)    // []netip.Addr
	isPrefixes = kindOf((*body).prefixes) // []netip.Prefix
	isMAC      = kindOf((*body).mac)      // net.HardwareAddr
	isRoutes   = kindOf((*body).routes)   // []sdn.HostRoute
	isList     = kindOf((*body).list)     // []any
)

// isNull is the kind of what can only be null: any other value is given.
func isNull(b *body, name string) (any, bool) {
	if b.null(name) {
		return nil, false
	}
	value, given := b.take(name)
	return &value, given
}

// isInt takes a whole number, an int. Both ends of the range belong to it.
//
//go:noinline
func isInt(least, most int) kind {
	return kindOf(func(b *body, name string) *int { return b.integer(name, least, most) })
}

// isNumber takes a whole number, an int64. Both ends of the range belong to it.
//
//go:noinline
func isNumber(least, most int64) kind {
	return kindOf(func(b *body, name string) *int64 { return b.number(name, least, most) })
}

// isWord takes one of a few words, a string.
//
//go:noinline
func isWord(words ...string) kind {
	return kindOf(func(b *body, name string) *string { return b.oneOf(name, words...) })
}

// orNull makes null say nothing, nullInPost only of a new object. nullInPut makes null the
// empty text of a change.
//
//go:noinline
func orNull(k kind) kind {
	return func(b *body, name string) (any, bool) {
		if b.null(name) {
			return nil, false
		}
		return k(b, name)
	}
}

func nullInPost(k kind) kind {
	return func(b *body, name string) (any, bool) {
		if b.post && b.null(name) {
			return nil, false
		}
		return k(b, name)
	}
}

func nullInPut(k kind) kind {
	return func(b *body, name string) (any, bool) {
		if !b.post && b.null(name) {
			return "", true
		}
		return k(b, name)
	}
}

// set stores a checked value: post: set(func(s *S) *int { return &s.MTU }).
//
//go:noinline
func set[P, V any](at func(P) *V) func(any, any) {
	return func(into, value any) { *at(into.(P)) = value.(V) }
}

// change stores a checked value in a patch: put: change(func(p *P) **int { return &p.MTU }).
//
//go:noinline
func change[P, V any](at func(P) **V) func(any, any) {
	return func(into, value any) {
		v := value.(V)
		*at(into.(P)) = &v
	}
}

// setNot and changeNot store the opposite of a checked bool.
//
//go:noinline
func setNot[P any](at func(P) *bool) func(any, any) {
	return func(into, value any) { *at(into.(P)) = !value.(bool) }
}

//go:noinline
func changeNot[P any](at func(P) **bool) func(any, any) {
	return func(into, value any) {
		v := !value.(bool)
		*at(into.(P)) = &v
	}
}

// privileges refuses attributes that only administrators may say.
func (b *body) privileges(all []field) {
	forbidden := adminPut
	if b.post {
		forbidden = adminPost
	}
	for i := range all {
		if all[i].access&forbidden != 0 {
			b.privileged(all[i].name)
		}
	}
}

// attributes reads all attributes of a resource into a spec or a patch.
func (b *body) attributes(all []field, into any) {
	for i := range all {
		if b.has(all[i].name) {
			b.attribute(&all[i], into)
		}
	}
}

// attribute reads one attribute that the body has.
func (b *body) attribute(a *field, into any) {
	put, read := a.put, hookPut
	if b.post {
		put, read = a.post, hookPost
	}
	switch {
	case a.access&read != 0:
	case a.why != "" && a.taken == "":
		if value, given := a.is(b, a.name); given && !a.allows(value) {
			b.unsupported(a.name, a.why)
		}
	case put == nil:
		b.readOnly(a.name)
	default:
		if value, given := a.is(b, a.name); given {
			put(into, value)
		}
	}
}

// allows reports whether a value is the one that a body may have.
func (a *field) allows(value any) bool {
	if a.only != nil {
		return value == a.only
	}
	v := reflect.ValueOf(value)
	return !v.IsValid() || v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0
}

// needed names the attributes that a new object must have.
func needed(all []field) (names []string) {
	for _, a := range all {
		if a.access&required != 0 {
			names = append(names, a.name)
		}
	}
	return names
}

// null, never and empty show what the SDN lacks.
func null(any) any  { return nil }
func never(any) any { return false }
func empty(any) any { return []string{} }

// some shows a zero value as null.
func some[V comparable](v V) any {
	var zero V
	if v == zero {
		return nil
	}
	return v
}

// A metaField is an attribute that the objects of several resources show.
type metaField struct {
	name string
	show func(sdn.Meta) any
}

// neutronMeta are the attributes that most objects of Neutron show.
var neutronMeta = []metaField{
	{"id", func(m sdn.Meta) any { return string(m.ID) }},
	{"name", func(m sdn.Meta) any { return m.Name }},
	{"description", func(m sdn.Meta) any { return describe(m) }},
	{"project_id", func(m sdn.Meta) any { return m.Project }},
	{"tenant_id", func(m sdn.Meta) any { return m.Project }}, // the older name
	{"tags", func(m sdn.Meta) any { return m.Tags }},
	{"revision_number", func(m sdn.Meta) any { return m.Revision }},
	{"created_at", func(m sdn.Meta) any { return timestamp(m.Created) }},
	{"updated_at", func(m sdn.Meta) any { return timestamp(m.Updated) }},
}

// describe returns the description that is shown: the Key, if there is one.
func describe(m sdn.Meta) string {
	if !m.Key.IsZero() {
		return m.Key.String()
	}
	return m.Description
}
