package neutronapi

import (
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// systems are the attributes of every object that the SDN sets.
var systems = []string{"id", "status", "revision_number", "created_at", "updated_at"}

// base reads what every new object has. A description that is a Key is the object's identity.
func (b *body) base() sdn.Base {
	out := sdn.Base{Name: or(b.text("name")), Description: or(b.description("")), Project: b.project(), Tags: b.tags()}
	if key, ok := sdn.ParseKey(out.Description); ok {
		out.Key, out.Description = key, ""
		b.key = key
	}
	b.readOnly(systems...)
	return out
}

// description takes the description of an object that has had the text now, or null,
// which is "". Kuryr's front ends find what is theirs by descriptions that are Keys, so
// only administrators write those.
func (b *body) description(now string) *string {
	text := b.optional("description")
	if text != nil && *text != now && strings.HasPrefix(*text, sdn.KeyPrefix) && !b.caller.admin() {
		b.fail(b.denied("only administrators write descriptions that begin with " + sdn.KeyPrefix))
	}
	return text
}

// project reads whose a new object is: the caller's own, unless an administrator says another.
func (b *body) project() string {
	project, tenant := b.text("project_id"), b.text("tenant_id")
	if project == nil {
		project = tenant
	}
	switch {
	case project == nil:
		return b.caller.Project
	case tenant != nil && *tenant != *project:
		b.fail(badRequest("'project_id' and 'tenant_id' do not match"))
	case !b.caller.admin() && *project != b.caller.Project:
		b.fail(badRequest("Specifying 'project_id' or 'tenant_id' other than the authenticated project in request requires admin or advsvc privileges"))
	}
	return *project
}

// changes reads what can be changed of every object, which is at m now.
func (b *body) changes(m sdn.Meta) sdn.Patch {
	b.readOnly(append(systems, "project_id", "tenant_id", "tags")...)
	p := sdn.Patch{IfRevision: b.ifRevision, Name: b.text("name")}
	description := b.description(describe(m))
	if description == nil {
		return p
	}
	key, isKey := sdn.ParseKey(*description)
	switch {
	case isKey && key == m.Key:
	case isKey:
		p.Key = &key
		if m.Description != "" {
			p.Description = new(string)
		}
	default:
		p.Description = description
	}
	return p
}
