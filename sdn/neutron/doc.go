// Package neutron is the provider for OpenStack Neutron and Octavia: it makes the nouns of package sdn
// exist by Neutron's API of version 2.0.
//
// It owns what it has made under its installation's Keys. Every object has its Key in its description
// (255 bytes, written by the creating request, kept by all of Neutron's drivers; many drop tags at
// creation). The package has no state but caches, so a process may be killed at any moment. It must not
// change what is Foreign, must not send a POST a second time without a look by Key in between, and must
// not plug anything in: that is package bind's. Nested is the provider in a virtual machine.
//
// # Inside
//
// Every request goes through a client's exchange (session.go), which has the token and the endpoint
// (auth.go, cloud.go), deadlines, retries and the breaker (retry.go), and the translation of errors
// (errors.go). Calls of gophercloud's typed packages get there by the client's http.RoundTripper, those
// of collections by get, post, put and remove (client.go).
//
// A noun has one file: its wire struct, which embeds meta and is what Neutron says of one object,
// decode to the sdn form, the methods that get and find, then those that ensure, update and delete.
// What all nouns share is a collection (collection.go) with read, find, byKey, create, update and
// erase. The frames of the methods are decoded and matching for a get and a find, ensure for an Ensure,
// applied for an Apply, patch for an Update (ensure.go), and those of tags (tags.go). Networks, subnets
// and subnet pools have a cache (cache.go), with the frames cached, matchingCached, patchCached and
// writeTags. Ports and load balancers are made by machines of their own: portBatch makes many ports by
// few requests, and a balancerMaker names the one request that brings a load balancer nearer to its
// spec.
//
// gophercloud's typed packages do what they can: interfaces of routers, subports of trunks, tags, new
// port forwardings, the addresses of address groups, rules of QoS policies, the deletion of load
// balancers with all parts, and Keystone. A wire struct says why gophercloud's type does not do.
// Collections send the other requests, as those packages do not have several ports or subnets by one
// POST, nulls and empty values in updates, lists that go on after a deleted marker, and changes at a
// revision of any noun.
//
// What a Neutron can do is read off its extensions (extensions.go), with the first call and again after
// Neutron was unavailable.
package neutron
