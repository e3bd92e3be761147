package docker

import (
	"maps"
	"time"
)

// startGrace is how long an endpoint may take from its CreateEndpoint until its interface is in
// the container. Engines call Join right after CreateEndpoint.
const startGrace = 2 * time.Minute

// noteStarting records that an endpoint is being started. Until a container has its interface,
// nothing in the SDN tells it from one that the engine forgot.
func (d *Driver) noteStarting(endpoint string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.starting, func(_ string, since time.Time) bool {
		return time.Since(since) >= startGrace
	})
	d.starting[endpoint] = time.Now()
}

// isStarting reports whether an endpoint is being started by the engine that runs.
func (d *Driver) isStarting(endpoint string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	since, ok := d.starting[endpoint]
	return ok && time.Since(since) < startGrace
}

// endStarting records that an endpoint is no longer being started.
func (d *Driver) endStarting(endpoint string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.starting, endpoint)
}

// activate answers the handshake, which each engine process sends once. A new process has
// forgotten the endpoints that the one before it was starting.
func activate(d *Driver) any {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.starting)
	return activateResponse{[]string{"NetworkDriver", "IpamDriver"}}
}
