// Package neutronapi serves an sdn.Provider as the OpenStack Networking API v2.0 (Neutron).
//
// It owns the translation between Kuryr's objects and Neutron's JSON: attributes, filters, pages, tags,
// revisions, quotas, error types and status codes. Each resource has one table (table.go) of its
// attributes (field.go) and of the provider's calls. The handlers in list.go, create.go, update.go,
// delete.go and tags.go are the same for all resources.
//
// The package also owns what projects see and change of one another, by the Caller in a request's
// context. It must not know any particular provider, keep state, or find out who a caller is; the
// code that serves the handler does.
//
// Where Neutron has no word for what Kuryr knows, an attribute is added that Neutron's clients pass over: "kuryr:…", and
// "interfaces_info" of a router, which is how the openstack command shows a router's legs; the extension "kuryr" shows the provider's capabilities. A Key
// is the description, where Neutron carries it too: a POST with one that an object of the caller's has already is answered with that object.
//
// What the provider cannot do is refused in words that name the attribute, never passed over; a value that only says what is so anyway is taken.
//
// Source: https://docs.openstack.org/api-ref/network/v2/
package neutronapi
