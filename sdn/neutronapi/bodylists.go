package neutronapi

import (
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
)

// maxItems is how many elements a list in a body may have, and how many objects it may ask for, where nothing else says.
const maxItems = 1024

// list takes a list; nil is absent. A null is an empty one.
func (b *body) list(name string) *[]any { return b.listUpTo(name, maxItems) }

func (b *body) listUpTo(name string, most int) *[]any {
	value, given := b.take(name)
	if !given {
		return nil
	}
	items, ok := value.([]any)
	switch {
	case value == nil:
		items = []any{}
	case !ok:
		b.invalid(name, "'%s' is not a list", show(value))
		return nil
	case len(items) > most:
		b.invalid(name, "it has %d elements, and at most %d are taken", len(items), most)
		return nil
	}
	return &items
}

// each reads the elements of a list of one-value elements: read gets a body with the element as the attribute of the list's name.
func each[V any](b *body, name string, read func(*body) *V) *[]V {
	items := b.list(name)
	if items == nil {
		return nil
	}
	out := []V{}
	for _, item := range *items {
		element := &body{call: b.call, noun: b.noun, within: b.within, post: b.post, values: map[string]any{name: item}}
		if v := read(element); v != nil {
			out = append(out, *v)
		}
		b.took(element)
	}
	return &out
}

// objects reads the elements of a list of objects: read gets the attributes of one.
func objects[V any](b *body, name string, read func(*body) V) *[]V {
	return objectsUpTo(b, name, maxItems, read)
}

func objectsUpTo[V any](b *body, name string, most int, read func(*body) V) *[]V {
	out := []V{}
	if !b.eachObject(name, most, func(element *body) { out = append(out, read(element)) }) {
		return nil
	}
	return &out
}

// eachObject calls read for each element of a list of objects. It reports false if the list is
// absent or wrong.
func (b *body) eachObject(name string, most int, read func(*body)) bool {
	items := b.listUpTo(name, most)
	if items == nil {
		return false
	}
	for _, item := range *items {
		values, ok := item.(map[string]any)
		if !ok {
			b.invalid(name, "'%s' is not a dictionary", show(item))
			return false
		}
		element := b.part(name, values)
		read(element)
		b.took(element)
	}
	return true
}

// sub reads an attribute that is an object. It is nil where the attribute is absent or null.
func (b *body) sub(name string) *body {
	value, given := b.take(name)
	if !given || value == nil {
		return nil
	}
	values, ok := value.(map[string]any)
	if !ok {
		b.invalid(name, "'%s' is not a dictionary", show(value))
		return nil
	}
	return b.part(name, values)
}

// part is an object within this one; what is wrong with it is said of the attribute that it is in. Whoever reads it hands it to took.
func (b *body) part(name string, values map[string]any) *body {
	if b.within != "" {
		name = b.within
	}
	left := make(map[string]any, len(values)) // what is read is taken out, and another may look at the value later
	for k, v := range values {
		left[k] = v
	}
	return &body{call: b.call, noun: b.noun, within: name, post: b.post, values: left}
}

// took remembers what was wrong with a part.
func (b *body) took(part *body) {
	if err := part.done(); err != nil {
		b.fail(err)
	}
}

// texts takes a list of texts.
func (b *body) texts(name string) *[]string {
	return each(b, name, func(b *body) *string { return b.text(name) })
}

// ids takes a list of ids.
func (b *body) ids(name string) *[]sdn.ID {
	return each(b, name, func(b *body) *sdn.ID { return b.namedID(name) })
}

// addrs takes a list of addresses.
func (b *body) addrs(name string) *[]netip.Addr {
	return each(b, name, func(b *body) *netip.Addr { return b.addr(name) })
}

// prefixes takes a list of ranges.
func (b *body) prefixes(name string) *[]netip.Prefix {
	return each(b, name, func(b *body) *netip.Prefix { return b.prefix(name) })
}

// or is what a pointer points to, or the zero value.
func or[V any](p *V) (v V) {
	if p != nil {
		v = *p
	}
	return v
}
