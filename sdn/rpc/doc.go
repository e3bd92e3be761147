// Package rpc serves a provider of package sdn to the other processes of this machine, and
// is the provider that they use.
//
// It owns the protocol between the two: versions, encoding, deadlines, cancellation and
// bounds. It must not know what a method means, nor which provider is served. It is root's
// alone: its handler answers at Unix sockets only, and the socket decides about the peer.
//
// # Protocol
//
// The protocol is HTTP/1.1, so a connection has one call at a time. A GET of [Path] returns
// the [Peer]. A POST to Path, the version, a slash and a method of sdn.Provider calls the
// method. The body of the request is a JSON array of the arguments after the context. Each
// line of the answer begins with a sign:
//
//	+{"ID":"4f…"}         a result: a Find method has any number
//	-null                 the end
//	-{"kind":"not found"} the end, with an error
//
// An empty line says that the call is in progress. The server sends one every ten seconds,
// so a client need not wait for a server that has stopped. An answer without an end was
// lost.
//
// A header carries the time that the caller's context has left. When that context ends, the
// client closes the connection, which ends the context of the call. Another header carries
// the projects that the client has named. A restarted server thus knows which Keys are the
// client's.
//
// # Versions
//
// The server is upgraded first. A server refuses arguments and fields that it does not
// know, and methods: the error says that `kuryr sdn` must be upgraded. A client ignores
// fields of results that it does not know. A change that this does not cover needs a new
// [Version]. A client calls only a server that has its version among [Peer.Versions].
package rpc
