// Package api has the requests and responses of the plugin protocol of Docker: the network
// driver and the IPAM driver of libnetwork (moby: libnetwork/docs/remote.md and ipam.md, as
// engines 20.10 to 29 use them). It decodes and validates what Docker sends.
//
// There is one type per request and response. A request has typed values; its documentation
// names the format and the default of each field and option. Decode reads a request. Its errors
// name the field and the value. The options of a network are in NetworkOptions and Existing,
// those of an endpoint in EndpointOptions.
//
// An error is an Error, answered with its HTTP status, if the call cannot be decoded. It is a
// Refusal, answered with status 200 and an ErrorResponse, if the call asks for what does not exist
// or for what excludes one another.
//
// The package calls neither the SDN nor Docker and keeps no state.
package api
