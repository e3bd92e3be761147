package neutron

import (
	"context"
	"fmt"
	"iter"
	"net/url"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/addressgroups"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

var addressGroups = collection[*addressGroupWire]{
	title: "address group", item: "address_group", items: "address_groups", path: "/address-groups",
}

// addressGroupWire is an address group. Some Neutrons tell no revision of it: then it has none.
// gophercloud's AddressGroup has neither a revision nor tags.
type addressGroupWire struct {
	meta
	Addresses []string `json:"addresses"`
}

func (w *addressGroupWire) decode(o *owner) sdn.AddressGroup {
	g := sdn.AddressGroup{Meta: w.meta.decode(o)}
	for _, a := range w.Addresses {
		if prefix, err := parsePrefix(a); err == nil {
			g.Prefixes = append(g.Prefixes, prefix)
		}
	}
	return g
}

// needAddressGroups refuses address groups if a rule with one might allow everyone:
// Neutron with OVN did so before release 26, with the same extensions. An extension that
// came with 26 tells.
func (p *Provider) needAddressGroups(ctx context.Context) error {
	if err := p.extensions.learn(ctx, p.client); err != nil {
		return err
	}
	if !p.Capabilities().AddressGroups {
		return sdn.Unsupported("address group", "this Neutron has none, or one older than release 26 (2025.1), where a rule with an address group may allow everyone")
	}
	return nil
}

// AddressGroup gets an address group.
func (p *Provider) AddressGroup(ctx context.Context, id sdn.ID) (sdn.AddressGroup, error) {
	if err := p.needAddressGroups(ctx); err != nil {
		return sdn.AddressGroup{}, err
	}
	w, err := addressGroups.read(ctx, p, id)
	return decoded(p.owner, w, err)
}

// FindAddressGroups streams address groups. Some Neutrons have no filter by their tags: tags are
// compared here.
func (p *Provider) FindAddressGroups(
	ctx context.Context, q sdn.AddressGroupQuery,
) iter.Seq2[sdn.AddressGroup, error] {
	if err := p.needAddressGroups(ctx); err != nil {
		return failed[sdn.AddressGroup](err)
	}
	filter := p.query(q.Match)
	filter.Del("tags")
	matches := func(g sdn.AddressGroup) bool { return q.Matches(g.Meta) }
	return matching(ctx, p, addressGroups, filter, matches, nil)
}

// ApplyAddressGroup makes an address group have this value.
func (p *Provider) ApplyAddressGroup(ctx context.Context, spec sdn.AddressGroupSpec) (sdn.AddressGroup, error) {
	none := sdn.AddressGroup{}
	p.owner.note(spec.Project)
	if err := valid.Base("address group", spec.Base); err != nil {
		return none, err
	}
	if err := p.needAddressGroups(ctx); err != nil {
		return none, err
	}
	var want []string
	for i, prefix := range spec.Prefixes {
		if !prefix.IsValid() {
			return none, sdn.Invalid("address group", fmt.Sprintf("prefixes[%d]", i), "is none")
		}
		want = append(want, prefix.Masked().String())
	}
	want = valid.TagSet(want)
	create := func(ctx context.Context) (*addressGroupWire, error) {
		body := p.body(spec.Base)
		body["addresses"] = append([]string{}, want...)
		return addressGroups.create(ctx, p, body)
	}
	unchanged := func(*addressGroupWire, map[string]any) error { return nil }
	w, _, err := applied(
		ctx, p, addressGroups, spec.ID, spec.Base, spec.IfRevision, create, unchanged,
	)
	if err != nil {
		return none, err
	}
	if w, err = p.applyAddresses(ctx, w, want); err != nil {
		return none, err
	}
	w, err = tagged(ctx, p, addressGroups, w, spec.Tags)
	return decoded(p.owner, w, err)
}

// applyAddresses makes a group's addresses those of the value. It adds before it removes.
// Neutron refuses a whole request for an address that exists already, or does not:
// another process did the same, and the group is read again.
func (p *Provider) applyAddresses(ctx context.Context, w *addressGroupWire, want []string) (*addressGroupWire, error) {
	for n := 1; ; n++ {
		have := map[string]bool{}
		drop := []string{}
		wanted := map[string]bool{}
		for _, a := range want {
			wanted[a] = true
		}
		for _, a := range w.Addresses {
			prefix, err := parsePrefix(a)
			if have[prefix.String()] = true; err != nil || !wanted[prefix.String()] {
				drop = append(drop, a)
			}
		}
		add := []string{}
		for _, a := range want {
			if !have[a] {
				add = append(add, a)
			}
		}
		if len(add) == 0 && len(drop) == 0 {
			return w, nil
		}
		if n > maxRaces {
			return w, sdn.Conflict(sdn.Stale, "address group", "prefixes", "others change them at the same time")
		}
		api, id := p.client.api(), url.PathEscape(w.ID)
		var err error
		if len(add) > 0 {
			some := addressgroups.UpdateAddressesOpts{Addresses: add}
			err = p.client.typed(addressgroups.AddAddresses(once(ctx), api, id, some).Err)
		}
		if err == nil && len(drop) > 0 {
			some := addressgroups.UpdateAddressesOpts{Addresses: drop}
			err = p.client.typed(addressgroups.RemoveAddresses(once(ctx), api, id, some).Err)
		}
		err = inField(err, "prefixes")
		if err != nil && (n >= maxRaces || !sdn.IsInvalid(err) && !sdn.IsNotFound(err) && !sdn.IsConflict(err)) {
			return w, err
		}
		now, errRead := addressGroups.read(ctx, p, sdn.ID(w.ID))
		if errRead != nil {
			return w, errRead
		}
		w = now
	}
}

// DeleteAddressGroup deletes an address group.
func (p *Provider) DeleteAddressGroup(ctx context.Context, id sdn.ID) error {
	if err := p.needAddressGroups(ctx); err != nil {
		return err
	}
	return addressGroups.erase(ctx, p, id, 0)
}
