// Package docker is the front end for the Docker engine: libnetwork's remote network driver and IPAM
// driver, served as one plugin over HTTP on a Unix socket.
//
// It owns the server, the database, and what is done at a start. Each call is answered by the
// service that owns its subject (server.go):
//
//   - docker/ipam: ranges and addresses.
//   - docker/network: the networks of this engine, with their routers, and existing networks.
//   - docker/endpoint: endpoints, with their interfaces, published ports and floating IPs.
//   - docker/swarm: the networks of a swarm, in the global scope. It is asked first.
//
// A service keeps what was asked for as rows of docker.db (internal/reconcile). A row is stored
// before the first change, and its deletion before the call is answered: Run repeats what the SDN
// did not do. So the process can be killed at any moment, and calls may be repeated and come out of
// order. Join and Leave need no SDN. Calls that allocate fail immediately while it is
// unavailable.
//
// What Docker no longer has is deleted after it was missing from two of its lists (docker/engine,
// orphans.go). A swarm's networks are never compared: other nodes may have them.
//
// Package api has the requests and responses, and docker/identity the Keys, tags and names of the
// objects in the SDN, which the previous version and kuryr-libnetwork share. upgrade.go makes rows
// of what the previous version has left.
//
// # What becomes of what
//
//	call                    in the SDN                                       kind of the Key
//	RequestPool             subnet pool                                      docker-pool
//	RequestAddress          port, or one more address of one                 docker-port
//	  of another driver     hidden network and subnet, then the port         docker-ipam, docker-ipam-subnet
//	  of an existing port   nothing
//	CreateNetwork           network with its subnets, router                 docker-network, docker-subnet, docker-router
//	  -o kuryr.router=NAME  router that networks share                       docker-shared-router
//	  of an existing one    link, a subnet pool that names the network       docker-existing
//	CreateEndpoint          the port gets device, host, name
//	  of another IPAM       port                                             docker-endpoint
//	Join                    nothing: the Binder plugs the port
//	  kuryr.floating_ip=…   floating IP                                      docker-floating
//	Program…Connectivity    floating IP with forwardings, or a proxy         docker-publish
//	  exposed ports         security group                                   docker-exposed
//	AllocateNetwork         network with its subnets                         docker-network, docker-subnet
//
// A port outlives its endpoint until ReleaseAddress, which has the pool and the address only: the
// address could be another container's by then.
//
// The package must not call the engine on the path of a call: an engine waits for its plugin. It
// must not know any provider, and must not touch the kernel but through its Binder.
package docker
