// Package docker is the front end for the Docker engine: libnetwork's remote network driver and IPAM driver, served as one
// plugin over HTTP on a Unix socket.
//
// It owns the translation of the engine's calls into the nouns of package sdn, and nothing else. It keeps no state: what it
// must remember it writes into the SDN, so that it can be killed and started again at any moment, and every call may be
// repeated or come out of order. It must not call the engine back on the path of a call, must not know any provider, and
// must not touch the kernel but through its Binder.
//
// # The wire
//
// The protocol is moby's libnetwork/docs/remote.md and ipam.md, as the engines 20.10 to 29 speak it. Every call is a POST. An
// unknown path is answered 404, what cannot be decoded 4xx with the name of the field, what cannot be done 200 with both
// "Err" (which the network side reads) and "Error" (which the IPAM side reads). An engine that repeats a call after its
// connection broke sends an empty body, since it has consumed its buffer: a call that needs arguments and has none is
// answered with an error, which ends the engine's retries.
//
// # What becomes of what
//
//	call                    in the SDN                                              Key (kind: name)
//	RequestPool             subnet pool                                             docker-pool: host, space, nonce, CIDR, sub-pool
//	RequestAddress gateway  tag on the pool; the address is the subnet's gateway
//	RequestAddress aux      tag on the pool; the address becomes Reserved
//	RequestAddress          port, or one more address of the port with that MAC     docker-port: network id, MAC
//	  of a bare pool        hidden network and subnet, then the port                docker-ipam, docker-ipam-subnet: pool id
//	CreateNetwork           network with its subnets                                docker-network: NetworkID
//	                                                                                docker-subnet: NetworkID, family, index
//	                        router, with a gateway where there is a way out         docker-router: NetworkID
//	  -o kuryr.router=NAME  router shared by networks                               docker-shared-router: NAME
//	CreateEndpoint          the port found by its address gets device, host, name
//	  of other IPAMs        port                                                    docker-endpoint: EndpointID
//	Join                    nothing; the Binder plugs
//	Program…Connectivity    floating IP for every host address, with forwardings    docker-publish: EndpointID, family
//	Revoke…, Leave          the floating IPs go; Leave unplugs
//	DeleteEndpoint          the same; the port is parked (no device, no host), or deleted where CreateEndpoint made it
//	ReleaseAddress          the address leaves the parked port; the last one deletes it
//	ReleasePool             the pool goes; while subnets are cut from it, it is tagged as released
//	DeleteNetwork           ports of ours, router, network, and the pools that were released
//
// A port outlives its endpoint until ReleaseAddress because that call carries the pool and the address only: were the port
// gone before, the address could be another container's by then.
//
// CreateNetwork is not told the ids of its pools. It finds them by address space, range and gateway among the pools that no
// subnet is cut from; that is why a second pool of the same range is refused for as long as the first is neither used nor
// released.
//
// The engine ignores errors of its cleaning calls and never repeats them, so what they leave is marked in the SDN before it
// is taken down, and Driver.Reconcile, run at start, finishes it.
package docker
