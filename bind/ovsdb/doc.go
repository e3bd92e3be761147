// Package ovsdb asks Open vSwitch's configuration database in its own words: JSON-RPC
// over the database's Unix socket, as RFC 7047 says. It needs no program of Open vSwitch
// and starts none.
//
// It owns a connection, which lives for one call or one watch: there is none to lose
// between calls, so a database that was restarted is met again by itself, and the kernel
// makes a connection faster than the database answers. It has the operations that a
// binding driver needs and no model of the tables; the general client in Go (libovsdb)
// keeps a copy of every row and brings a validator and its translations along.
//
// It must not know of ports or bridges, and not repeat a transaction: after a lost answer
// its caller looks.
package ovsdb
