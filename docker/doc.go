// Package docker is the front end for the Docker engine: libnetwork's remote network driver and IPAM driver, served as one
// plugin over HTTP on a Unix socket.
//
// It owns the translation of the engine's calls into the nouns of package sdn, and nothing else. It keeps no state but notes: what it
// must remember it writes into the SDN, so that it can be killed and started again at any moment, and every call may be
// repeated or come out of order. It must not call the engine back on the path of a call, must not know any provider, and
// must not touch the kernel but through its Binder.
//
// # The wire
//
// Package api has the requests and responses. Every call is a POST; an unknown path is answered
// 404, an invalid call 4xx, and a call that fails 200 with its error.
//
// # What becomes of what
//
//	call                    in the SDN                                              Key (kind: name)
//	RequestPool             subnet pool                                             docker-pool: host, space, nonce, CIDR, sub-pool
//	RequestAddress gateway  tag on the pool; the address is the subnet's gateway
//	RequestAddress aux      tag on the pool; the address becomes Reserved
//	RequestAddress          port, or one more address of the port with that MAC     docker-port: network id, MAC, nonce
//	  held by others        the port that has the address or the MAC, as it is
//	  of a bare pool        hidden network and subnet, then the port                docker-ipam, docker-ipam-subnet: pool id
//	CreateNetwork           network with its subnets                                docker-network: NetworkID
//	                                                                                docker-subnet: NetworkID, family, index
//	  -o kuryr.routes=…     host routes of the subnets
//	                        router, with a gateway where there is a way out         docker-router: NetworkID
//	  -o kuryr.router=NAME  router shared by networks                               docker-shared-router: NAME
//	CreateEndpoint          the port found by its address gets device, host, name
//	  of other IPAMs        port                                                    docker-endpoint: EndpointID
//	  that is lent          tags of the port, and what it lacks of device, owner, host
//	Join                    nothing; the Binder plugs
//	  kuryr.floating_ip=…   floating IP for the endpoint, or one that is there        docker-floating: EndpointID
//	Program…Connectivity    floating IP for all host addresses of a family or for   docker-publish: EndpointID, family or slot
//	                        a single one, with forwardings
//	  no HostAddresses      nothing: a proxy in this process (internal/portproxy)
//	  kuryr.publish=…       floating IP of the outside, with forwardings             docker-publish: EndpointID, family
//	  exposed ports         security group, where the SDN has such                   docker-exposed: EndpointID
//	Revoke…, Leave          the floating IPs go; Leave unplugs
//	DeleteEndpoint          the same; the port is parked (no device, no host), given back where it was lent, or deleted where CreateEndpoint
//	                        made it
//	ReleaseAddress          the address leaves the parked port; the last one deletes it
//	  --driver-opt kuryr.…  what the port may send as; the rest are tags: interface name, exposed ports
//	last address, if asked  the subnet goes; RequestAddress makes it again          (Config.DeleteEmptySubnets)
//	ReleasePool             the pool goes; while subnets are cut from it, it is tagged as released
//	DeleteNetwork           ports of ours, router, network, and the pools that were released
//	AllocateNetwork         network with its subnets, without a router              docker-network, docker-subnet
//	FreeNetwork             the network, unless a node has it
//
// A port outlives its endpoint until ReleaseAddress because that call carries the pool and the address only: were the port
// gone before, the address could be another container's by then.
//
// # Ports that others made
//
// A port without a Key of ours is unmanaged. One that kuryr-libnetwork made for an endpoint (tag compute:kuryr, or one of its names) gets a Key
// when it is used, and goes as ours do. One of another owner, of another installation, bound to another host, or of another endpoint
// is in use, and refused with that. Any other, such as one that Zun made for the container it starts, is lent to the endpoint: RequestAddress
// answers with its addresses and writes nothing; CreateEndpoint first writes tags (kuryr.port.existing and the endpoint's id as kuryr-libnetwork
// has them, whose endpoint it is, and what is about to be set), then sets the device, the owner and the host where they are empty, and the MAC where the engine
// chose one; DeleteEndpoint undoes what the tags say was set, and takes them off. Name, description, a device that it had, groups and all else stay,
// and it is never deleted. An endpoint finds its port by the device, which is the endpoint's id, and one that kept a device of its own by
// the tags with the id, also after a restart.
//
// A lent port needs the tags, since its description is its user's. A process that dies before they are written has set nothing; one that
// dies after is finished by the repeated CreateEndpoint, or undone by ReleaseAddress, DeleteEndpoint or Forget.
//
// A MAC is on a network but once, and an address in a subnet: that, not a search beforehand, tells RequestAddress that a port is there. So its Key
// has a nonce: another request never takes over by its Key a port that has an endpoint.
//
// CreateNetwork is not told the ids of its pools. It finds them by address space, range and gateway among the pools that no
// subnet is cut from; that is why a second pool of the same range is refused for as long as the first is neither used nor
// released.
//
// # What was there before
//
// kuryr-libnetwork's options (neutron.net.uuid and others) name networks, subnets and pools that are unmanaged. They are used, and
// neither renamed nor described nor deleted; what does not fit is refused before the first change, by the option's name. Their owner's
// description is not ours to write a Key into, and one network may be many engines' networks, of many hosts. So which network of the SDN
// an engine's is, is said by a link: a subnet pool of ours that nothing is cut from,
//
//	docker-existing: host, NetworkID		named: the network's id, and the ids of the engine's pools
//
// whose Key and name are there as soon as it is. The tags that other networks have on themselves are on the link. A pool whose range is an
// existing subnet's has the subnet in its Key, or, where only CreateNetwork named the network, in a tag that was written before the call was
// answered. Each host and each engine's network has links and pools of its own: none goes with another's. kuryr-libnetwork's tags are
// written on the network and the subnets too, and taken off again, for that program and for people: nothing here depends on them, and an
// owner may forbid them. A swarm's networks cannot be made of existing ones.
//
// What kuryr-libnetwork made carries no Key, but its names and tags: a network by the two tags of its id is taken over by giving Keys to it,
// its subnets and their pools when a call first asks for it. What it only used gets a link; a pool that its hosts shared for that goes
// with the last of the network's tags of use.
//
// A router is made for a network where Config.Routed says so or an option asks (kuryr.router, kuryr.external_network). A router that
// was there is attached to and detached from.
//
// # Swarms
//
// A swarm's manager takes ranges and addresses in the global space and tells of the network by AllocateNetwork, which makes it.
// Its nodes ask for the same in their local space when a first task comes. All of them mean one network, one subnet pool a range
// and one port an address. Who has a share in it is written on the SDN's objects: on the network that the manager has not freed
// it, and each node that has not deleted it; on a port that the manager has not released it. Whoever gives up the last share takes
// the thing away, in whatever order they come. A node's and a restarted manager's PoolIDs are the pool's id with a suffix, so that
// releases tell whose they are. Restarted, a manager takes all again that it had: a port's mark says in which of its lives it took
// it, which tells a thing taken again from one taken twice.
//
// # State of this host, and an SDN that is unavailable
//
// The database in Config.StateDir (internal/reconcile) has a row for each endpoint of this host, for its
// interface, and for what it publishes (docker/endpoint). A row is stored before the first change, and its
// deletion before the call is answered: Run repeats what the SDN did not do. Join and Leave need no SDN.
// The interface is removed also if the SDN does not answer.
//
// Other cleaning calls that the SDN was unavailable for are stored as they came, in a folder of
// Config.StateDir, answered as done, and called again by Run, which the first call that the SDN serves
// again wakes, or a timer. A call that allocates what such a call may be about (the same endpoint, address,
// MAC or range) completes that first. Calls that allocate fail at once while the SDN is unavailable. Another
// folder has the Keys of the networks and pools that a call is about to create, until the engine was told of
// them: so what a kill leaves of them can be told from what another engine has.
//
// The engine ignores errors of its cleaning calls and never repeats them, so what they leave is marked in the SDN before it
// is taken down, and Driver.Reconcile, run at start, finishes it.
//
// What an engine took away while nobody listened it has forgotten for good. Driver.Forgotten compares what is in the SDN with what
// the engine has (docker/engine), which must never be on the path of a call; Memory decides from what is found again and again what is
// to go, and Driver.Forget takes it down by the same ways as the engine's calls. Only what an engine was seen to have can be forgotten by it: a tag
// on networks and pools names it.
package docker
