// Package restapi serves an sdn.Provider as the OpenStack Networking API v2.0 (Neutron), and asks such a server.
//
// It owns the translation between Kuryr's nouns and Neutron's JSON: field names, filters, error bodies and status codes,
// a file for each noun. It serves reading only: lists with exact-match filters, single objects, the port forwardings of a
// floating IP. It must not know any particular provider, keep state, or decide who may ask; whoever serves the handler does.
//
// Where Neutron has no word for what Kuryr knows, a field is added that Neutron's clients pass over: "kuryr:…", and
// "interfaces_info" of a router, which is how the openstack command shows a router's legs. A Key is the description, where
// Neutron carries it too.
//
// Source: https://docs.openstack.org/api-ref/network/v2/
package restapi
