// Package feed brings what the API server has of one kind of object into an index of the caller's own, by list and watch.
//
// It owns client-go's Reflector and the set of names that it has given, by which it finds what has gone while the API server was away. It keeps no objects, which is what a cache of
// controller-runtime's would: a node's daemon keeps of a pod only what it needs. It must not write.
package feed
