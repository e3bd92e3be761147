// Package sdn is the contract between the front ends of Kuryr and the software-defined networks behind it: the nouns
// (network, subnet, subnet pool, port, trunk, router, floating IP, security group, load balancer, quota), the Provider
// interface that makes them exist, and the errors that providers answer with.
//
// It owns names and meanings only. It imports nothing else of Kuryr, talks to nothing, and knows neither Docker nor
// Kubernetes nor any one SDN. What a sentence here promises, package sdntest checks on every provider.
//
// # Identity
//
// An SDN chooses the ids of its objects; a caller never does. What a caller knows a thing by is its Key, which travels
// inside the creating call, so that an object whose creation was answered to nobody can still be found. The Ensure
// methods build on that: Ensure makes the object, or finishes or adopts the one that already has the Key, then sets what
// is mutable and differs. Ensure twice is Ensure once. A field that cannot be changed and differs is a conflict with
// reason Immutable that names the field. An Ensure with the zero Key is a plain creation: it makes a new object each time.
//
// At most one live object of a noun and a project has a given Key. Where the SDN does not
// see to that by itself (Neutron), the provider does: within a process by asking one
// after another, between processes by looking again after making, when the younger of two
// is taken back.
//
// An object is ours only with our Key and in our project: tenants can write descriptions,
// and so Keys, in projects of their own. Our projects are the provider's own and those
// that a call has named (Base.Project, Match.Projects). An Ensure looks in the project of
// its Spec alone. In any other project a Key is a description like any other: the object
// has no Key, no search by Key finds it, and it is never adopted, also if it is shared
// with us. A server marks the calls for its clients (WithClient), whose Keys are their
// own.
//
// An object without a Key of this installation is Foreign: it may be
// used, but is never changed, renamed, tagged or deleted on Kuryr's own initiative.
//
// An error names a field as its Spec does, in lower case with underscores, with the position in brackets where it is one of a list:
// "cidr", "prefix_len", "addresses[0]", "forwards[1].external".
//
// # Absence
//
// Get-like methods (Network, Port, …) answer an error that IsNotFound for what is absent. Delete of what is absent is
// nil. Find of nothing is an empty sequence. A method that needs another object (the network of a port) answers
// IsNotFound naming it, and makes nothing.
//
// # Finding
//
// A Find method streams in an order of the SDN's choosing. The loop that takes the results may change the SDN: what is there
// from the first result to the last is found exactly once, what comes or goes meanwhile at most once. An error is the last
// thing a stream gives.
//
// # Values
//
// The zero value of a field in a Spec means the provider's default, never "clear it"; a list that is empty but not nil is one
// with nothing in it. A Patch has pointers: nil leaves
// a field as it is. What is a set or a tree (a security group, an address group, a QoS policy, a load balancer) is applied as
// one whole value: to the object whose ID it has, else to the one with its Key, else a new one. Of such a value's Base what
// is zero stays as it is; all else becomes what the value says. IfRevision is as in Patch, and checked before the first
// change where the SDN needs several calls.
//
// # Time
//
// Every method takes a context and gives up when it ends. No method sleeps; the few that wait for the SDN (WaitPorts)
// say so. When an error that IsUnavailable or a context's end comes back from a changing method, the change may or may
// not have been made: repeat the Ensure, which looks before it makes.
package sdn
