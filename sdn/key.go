package sdn

import (
	"strings"
	"time"
)

// ID is an SDN's own identifier of an object. It is opaque: compare it, keep it, print it, never take it apart. The ids
// of Kuryr's own providers are random (version 4) UUIDs, because interface names use their first characters.
type ID string

// Short is the part of an id that interface names carry: its first 11 characters (Neutron's convention).
func (id ID) Short() string { return string(id[:min(len(id), 11)]) }

// MaxKeyLen is the longest encoded Key in bytes: it must fit Neutron's description (255) with room for what may follow.
const MaxKeyLen = 200

// KeyPrefix begins every encoded Key, so that an operator's own description is not
// mistaken for one. A server keeps descriptions that begin with it to its administrators.
const KeyPrefix = "kuryr/"

// A Key is a caller's identity of an object: who made it, what kind of thing of the caller's it stands for, and which
// one. The zero Key is no identity.
type Key struct {
	Owner string // the installation that made the object: Provider.Installation
	Kind  string // the caller's kind of thing, such as "docker-network"; one word of a-z, 0-9 and '-'
	Name  string // the caller's name of the thing, unique within owner and kind; printable, no spaces
}

// IsZero tells whether k is no identity.
func (k Key) IsZero() bool { return k == Key{} }

// String encodes k as it is carried by an SDN: "kuryr/<owner>/<kind>/<name>". The zero Key is "".
func (k Key) String() string {
	if k.IsZero() {
		return ""
	}
	return KeyPrefix + k.Owner + "/" + k.Kind + "/" + k.Name
}

// ParseKey decodes what String made. It reports false for any other text.
func ParseKey(s string) (Key, bool) {
	rest, ok := strings.CutPrefix(s, KeyPrefix)
	if !ok {
		return Key{}, false
	}
	parts := strings.SplitN(rest, "/", 3)
	if len(parts) != 3 {
		return Key{}, false
	}
	k := Key{Owner: parts[0], Kind: parts[1], Name: parts[2]}
	return k, !k.IsZero() && k.Validate() == nil
}

// Validate returns an error that IsInvalid, naming the field, for a Key that cannot be carried.
func (k Key) Validate() error {
	if k.IsZero() {
		return nil
	}
	for _, f := range []struct{ field, value string }{{"key.owner", k.Owner}, {"key.kind", k.Kind}} {
		if f.value == "" || strings.ContainsFunc(f.value, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
		}) {
			return Invalid("key", f.field, "must be one or more of a-z, 0-9 and '-', not %q", f.value)
		}
	}
	if k.Name == "" || strings.ContainsFunc(k.Name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return Invalid("key", "key.name", "must be printable ASCII without spaces, not %q", k.Name)
	}
	if n := len(k.String()); n > MaxKeyLen {
		return Invalid("key", "key.name", "makes the key %d bytes long; at most %d fit", n, MaxKeyLen)
	}
	return nil
}

// Base is what the caller says of any object it asks for.
type Base struct {
	Key  Key    `json:",omitzero"`
	Name string `json:",omitzero"` // at most 255 bytes; not unique; changeable
	// Description is free text of at most 255 bytes. An SDN may have no other place for the Key, so a Spec that has a Key
	// must leave it empty (IsInvalid).
	Description string `json:",omitzero"`
	Project     string `json:",omitzero"` // "" is the provider's own project
	// Tags are for people, for compatibility and for notes; a set, order is not kept; no commas (IsInvalid). Where
	// Capabilities.TagsAtCreate is false they are written after the object: a provider that dies in between leaves one without
	// them, which its Key still finds, and the repeated Ensure tags it.
	Tags []string `json:",omitzero"`
}

// Meta is what an SDN tells of any object.
type Meta struct {
	ID   ID `json:",omitzero"`
	Base    // Key is zero for what carries none
	// Foreign objects have no Key of this installation in a project of ours. Kuryr never changes or
	// deletes them on its own initiative.
	Foreign bool `json:",omitzero"`
	// Revision differs after each change. It is 0 everywhere if the SDN has none, so that a condition
	// on it is none.
	Revision int64     `json:",omitzero"`
	Created  time.Time `json:",omitzero"`
	Updated  time.Time `json:",omitzero"`
}

// Match selects objects by what they have in common. All conditions must hold; those left zero do not select. Within
// one list any element matches, but all of Tags must be present.
type Match struct {
	IDs      []ID
	Keys     []Key  // of our projects, see the package's Identity
	Owner    string // of the Key
	Kind     string // of the Key
	Names    []string
	Projects []string
	Tags     []string
	// After leaves out what is not behind it in the order of ids, for who reads page by page. Where Capabilities.Ordered is set, what is found comes in
	// that order, and reading on costs by what is read.
	After ID
}

// Matches tells whether m has everything that q asks for.
func (q Match) Matches(m Meta) bool {
	return in(q.IDs, m.ID) && in(q.Keys, m.Key) && in(q.Names, m.Name) && in(q.Projects, m.Project) &&
		(q.Owner == "" || q.Owner == m.Key.Owner) && (q.Kind == "" || q.Kind == m.Key.Kind) && hasAll(m.Tags, q.Tags) &&
		(q.After == "" || m.ID > q.After)
}

// Patch changes what every object has. IfRevision, if not 0, makes the change conditional: where the object has another
// revision, nothing is changed and the error is a conflict with reason Stale.
type Patch struct {
	IfRevision int64
	// Key gives one to an object that has none: how what an older program made is taken over. Another Key than the object has
	// IsConflict, Immutable; one that another object has IsConflict, Exists; while there is a description in its place, and none
	// in the patch that clears it, IsInvalid.
	Key         *Key
	Name        *string
	Description *string // of an object that has a Key it must stay empty (IsInvalid)
	// Tags are the whole new set. An SDN that needs a call of its own for them makes it last: an error may leave the rest
	// changed and the tags not.
	Tags *[]string
}
