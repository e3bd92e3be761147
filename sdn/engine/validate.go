package engine

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

func newID() sdn.ID { return sdn.ID(uuid.NewString()) }

func contains[T comparable](list []T, v T) bool { return slices.Contains(list, v) }

// lacking refuses a field that asks for what the embedded SDN has not.
func lacking(noun, field string, asked bool, what string) error {
	if !asked {
		return nil
	}
	return &sdn.Error{Kind: sdn.KindUnsupported, Noun: noun, Field: field, Detail: "this SDN " + what}
}

// newMeta begins an object.
func newMeta(b sdn.Base) sdn.Meta {
	b.Tags = valid.TagSet(b.Tags)
	return sdn.Meta{ID: newID(), Base: b}
}

// adopt compares what a spec says of an existing object with what is there, and tells whether
// anything mutable was changed.
func adopt(noun string, m *sdn.Meta, b sdn.Base) (changed bool, err error) {
	if b.Project != "" && b.Project != m.Project {
		return false, immutable(noun, m.ID, "project", m.Project, b.Project)
	}
	changed = set(&m.Name, b.Name)
	if tags := valid.TagSet(b.Tags); b.Tags != nil && !slices.Equal(tags, m.Tags) {
		m.Tags, changed = tags, true
	}
	return changed, nil
}

// patch applies what every object's patch has.
func (t table[T, R]) patch(tx *tx, m *sdn.Meta, p sdn.Patch) error {
	if p.IfRevision != 0 && p.IfRevision != m.Revision {
		return stale(t.title, m)
	}
	if p.Name != nil {
		m.Name = *p.Name
	}
	if p.Description != nil {
		m.Description = *p.Description
	}
	if p.Key != nil && *p.Key != m.Key {
		if !m.Key.IsZero() {
			return immutable(t.title, m.ID, "key", m.Key, *p.Key)
		}
		if t.ID(tx.Tx, "key", identKey(m.Project, *p.Key)) != "" {
			return sdn.Conflict(sdn.Exists, t.title, "key", "%v is another's", *p.Key)
		}
		m.Key = *p.Key
	}
	if !m.Key.IsZero() && m.Description != "" {
		return sdn.Invalid(t.title, "description", "must be empty for an object with a key")
	}
	if p.Tags != nil {
		m.Tags = valid.TagSet(*p.Tags)
	}
	return nil
}

func stale(noun string, m *sdn.Meta) error {
	return &sdn.Error{Kind: sdn.KindConflict, Reason: sdn.Stale, Noun: noun, ID: string(m.ID), Detail: fmt.Sprintf("it is at revision %d", m.Revision)}
}

func immutable(noun string, id sdn.ID, field string, have, want any) error {
	return &sdn.Error{Kind: sdn.KindConflict, Reason: sdn.Immutable, Noun: noun, ID: string(id), Field: field, Detail: fmt.Sprintf("is %v and cannot become %v", have, want)}
}

// set gives a field the value that a spec asks for; the zero value asks for nothing.
func set[T comparable](field *T, want T) bool {
	var zero T
	if want == zero || *field == want {
		return false
	}
	*field = want
	return true
}

// setList is set for lists, of which nil asks for nothing.
func setList[T comparable](field *[]T, want []T) bool {
	if want == nil || slices.Equal(*field, want) {
		return false
	}
	*field = want
	return true
}

// inUse makes the conflict that something else depends on an object.
func inUse(noun string, id sdn.ID, detail string, args ...any) error {
	return &sdn.Error{Kind: sdn.KindConflict, Reason: sdn.InUse, Noun: noun, ID: string(id), Detail: fmt.Sprintf(detail, args...)}
}

// builtIn makes the refusal to change what the SDN made for itself.
func builtIn(noun string, id sdn.ID) error {
	return &sdn.Error{Kind: sdn.KindDenied, Noun: noun, ID: string(id), Detail: "is built in and cannot be changed or deleted"}
}

func family(a netip.Addr) int { return a.BitLen() }

func checkMAC(noun string, mac net.HardwareAddr) error {
	if mac == nil {
		return nil
	}
	if len(mac) != 6 || mac[0]&1 != 0 || slices.Equal(mac, make(net.HardwareAddr, 6)) {
		return sdn.Invalid(noun, "mac", "%v is no unicast address of 6 bytes", mac)
	}
	return nil
}
