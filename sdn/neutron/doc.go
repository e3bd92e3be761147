// Package neutron is the provider for OpenStack Neutron: it makes the nouns of package sdn exist in a Neutron by its v2.0 API.
//
// It owns what it has made under its installation's Keys, which it carries in the description of every object (255 bytes, in
// the creating call, kept by all of Neutron's drivers; tags at creation are dropped by many). It owns no state of its own but
// caches, so that a process may be killed at any moment: Neutron is the truth. It must not change what is Foreign, must
// not send a POST a second time without a look-up by Key in between, and must not plug anything in: that is package bind's.
//
// # Inside
//
// Every request goes through a client's exchange (session.go), which has the token and the endpoint,
// deadlines, retries with their budget (retry.go), the breaker that makes calls fail while Neutron is
// unavailable (breaker.go), renewed tokens (auth.go; refusals.go keeps an account from being locked)
// and the translation of errors (errors.go). Calls of gophercloud's typed packages get there by the
// client's http.RoundTripper, and those of collections by get, post, put, act, remove and list
// (client.go). A noun's file has its wire struct, which embeds meta and is what Neutron says of one
// object, a decode to the sdn type and the bodies of its requests. What all nouns share is a
// collection (collection.go): read, find, byKey, create, update, erase and setTags; ensure and patch
// are the frames of an Ensure and an Update method.
//
// gophercloud's typed packages do what they can: interfaces of routers, tags, new port forwardings, the
// addresses of address groups, and Keystone. A wire struct says why gophercloud's type does not do. Own
// requests are those that its packages do not have: several ports or subnets by one POST, nulls and
// empty values in updates, lists that go on after a deleted marker, and changes on a revision of any
// noun.
//
// What a Neutron can do is read off its extensions (extensions.go), asked for with the first call and
// again after Neutron was unavailable.
package neutron
