//go:build linux

// Package lb balances connections over endpoints with nftables, in one network namespace:
// in a router's for the load balancers of the embedded SDN, in a node's for what of
// Kubernetes' Services is the node's own.
//
// It owns the tables of one name (kuryr_lb) in the inet and the bridge family, the
// entries of connection tracking that lead flows to its frontends past what new ones
// would be led by, and the forwarding entry UpMAC of bridges. Truth is what it was told,
// in memory; the kernel is a projection of it, read once, by Restore. It decides how
// connections are led, never what frontends there are, and must not touch others' tables,
// routes, addresses or settings of the kernel: that packets for a frontend reach the
// namespace, that it forwards, and that others' filters let them pass is its caller's.
//
// # Form
//
// A frontend is elements of flat maps, one set of them for each family, and no chain or
// rule of its own:
//
//	service   address . protocol . port         -> profile
//	endpoint  address . protocol . port . slot  -> address . port
//
// A profile is how a frontend is led: its number of endpoints, and the few other things that
// makes a difference (affinity's timeout, restricted sources, masquerade). Only profiles
// have chains, made when the first frontend needs one. All values are data but in the
// small map of profiles to chains: at a change of a map of verdicts the kernel checks the
// whole map, so that one more of 30,000 frontends would cost a hundred times as much as
// it does.
//
// The number of endpoints has to be a constant of a rule (numgen's modulus), hence a
// chain of one rule for each number there is: a thousand endpoints are one chain and a
// thousand elements, and the chain is entered by one look-up. The alternatives cost more:
// buckets of a fixed number, as hashing makes them, are either unfair to a few endpoints
// or a multiple of the elements, and ranges of random numbers are sets that the kernel
// copies whole at every change. An endpoint keeps its slot as far as it can: where one
// goes the last takes its place, so that a change among a thousand is two or three
// elements.
//
// The slot travels in the packet's mark, from its choice until the translation in the
// same chain, since nft of Debian 12 cannot list a ruleset in which a random number is a
// part of a key. Where the mark is set again in one rule with a translation, nft shows
// both in the other order than the kernel has them: the ruleset that it lists is for
// reading, not for loading.
//
// With affinity the endpoint of a client is remembered by an id, not by its slot, in a
// set that the rules themselves fill; the endpoint map has the ids as keys. When an
// endpoint goes its id goes, and the client is led again by the next rule: nothing has to
// look for the clients of an endpoint. A change has taken effect when the kernel has made
// the transaction, between two look-ups of one packet at the worst: what has chosen a
// slot that is not there any more gets the first one.
//
// # Clients inside
//
// A frontend may lead some clients elsewhere: those that come by certain links, and the
// namespace's own (Config.Inside). It has elements in maps of their own then, with a
// profile, slots and ids of their own, which are looked up first for such clients alone.
// Only who may connect is one set for both: a set of ranges costs the most to change.
//
// # Client and endpoint on one bridge
//
// An endpoint answers a client on its own bridge by that bridge, past the translation.
// Masquerading would cure it and hide the client; br_netfilter would, too, at 13 % of all
// throughput of the bridge. Instead a chain of the bridge family leads what endpoints
// send from balanced ports up to the namespace, as if it were the frame's destination:
// with a MAC that every bridge takes for its own (LeadUp), so that the rule is the same
// for all bridges. Direct connections to those ports go up on their way back, too: they
// are routed there as between two bridges, with their addresses as they are. Fragments
// and ICMP errors of endpoints go up for the reason that bridgeChains gives. The chain is
// after the guard and the security groups, which see frames as ports send and get them.
// An endpoint that went is led up for as long as it sends, so that its connections go on.
//
// A connection by a frontend and one past it, of one client's port to one endpoint's port
// at the same time, cannot be told apart by the endpoint; the second fails to begin.
package lb
