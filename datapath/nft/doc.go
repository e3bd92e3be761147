// Package nft is the layer between the data path and nftables.
//
// It owns the expressions of rules, rules that are recognized by their comments, elements of
// sets and maps as comparable values, their difference, and the transaction that changes a
// table. It knows nothing of routers, load balancers or security groups, and imports nothing
// of ours. It must not keep a copy of what the kernel has.
//
// A rule's comment ends with a hash of its expressions. So a rule of another version is found
// without decoding expressions, and the hash must not change while the rule does the same: an
// upgrade leaves such rules in place. The hash sees which name a register has. Expressions that
// compare use First, keys use Reg.
package nft
