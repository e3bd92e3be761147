package docker

import (
	"time"

	"github.com/kuryr/kuryr/docker/api"
)

// startGrace is how long an endpoint may take from its CreateEndpoint until its interface is in
// the container. Engines call Join right after CreateEndpoint.
const startGrace = 2 * time.Minute

// noteStarting records that a CreateEndpoint of an endpoint is in progress. Until a container
// has its interface, nothing in the SDN tells it from one that the engine forgot. The caller
// holds the endpoint's lock and calls endStarting when the CreateEndpoint ends.
func (d *Driver) noteStarting(endpoint string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.starting[endpoint] = time.Now()
}

// startingSince returns when the CreateEndpoint in progress began. It returns the zero Time if
// there is no such call of the engine that runs.
func (d *Driver) startingSince(endpoint string) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.starting[endpoint]
}

// endStarting records that the CreateEndpoint in progress has ended. Its success is in the
// endpoint's record.
func (d *Driver) endStarting(endpoint string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.starting, endpoint)
}

// isStarting reports whether an endpoint is being started by the engine that runs. It is asked
// about endpoints whose locks the caller does not hold.
func (d *Driver) isStarting(endpoint string) bool {
	if !d.startingSince(endpoint).IsZero() {
		return true
	}
	r, _ := d.plugged.get(endpoint)
	return r.isStarting()
}

// isStarting reports whether the endpoint was created within startGrace. The clock may have
// been set back since an earlier process wrote the record.
func (r plugged) isStarting() bool {
	return !r.Started.IsZero() && time.Since(r.Started).Abs() < startGrace
}

// activate answers the handshake, which each engine process sends once. A new process has
// forgotten the endpoints that the one before it was starting.
func activate(d *Driver) any {
	d.mu.Lock()
	clear(d.starting)
	d.mu.Unlock()
	d.plugged.endStarts()
	return api.ActivateResponse{Implements: []string{"NetworkDriver", "IpamDriver"}}
}
