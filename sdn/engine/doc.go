// Package engine has the rules of the embedded SDN: all that it does with its objects, apart from
// where they are stored and where the packets go.
//
// It owns the rows and their indexes, the allocation of ids, MACs, addresses and prefixes, validation,
// identity, quotas and revisions. [Engine] works on a [Store], whose [Tx] is a transaction on named
// tables, and on a [Realm], which has the kernel. It records what a transaction changes and answers a
// caller when the realm has it. Changes that come while the store is written are written together.
// [Memory] is a store for tests.
//
// It must import neither a store nor the data path, and know no front end.
package engine
