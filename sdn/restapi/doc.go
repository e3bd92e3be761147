// Package restapi serves an sdn.Provider as the OpenStack Networking API v2.0 (Neutron), and asks such a server.
//
// It owns the translation between Kuryr's nouns and Neutron's JSON: attributes, filters, pages, tags, revisions, quotas, error types and status codes. A
// noun is a value of type noun, which says how its attributes are read and shown and which of the provider's methods they go to; routing, lists,
// creation one by one and in bulk, changes and tags are the same for all. It owns, too, what projects see and change of one another, by the Caller in a
// request's context. It must not know any particular provider, keep state, or find out who a caller is; whoever serves the handler does.
//
// Where Neutron has no word for what Kuryr knows, an attribute is added that Neutron's clients pass over: "kuryr:…", and
// "interfaces_info" of a router, which is how the openstack command shows a router's legs; the extension "kuryr" shows the provider's capabilities. A Key
// is the description, where Neutron carries it too: a POST with one that an object of the caller's has already is answered with that object.
//
// What the provider cannot do is refused in words that name the attribute, never passed over; a value that only says what is so anyway is taken.
//
// Source: https://docs.openstack.org/api-ref/network/v2/
package restapi
