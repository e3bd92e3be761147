package docker

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/sdn"
)

// A port whose making was not answered in time may be made after all, when nobody waits for it any more. The engine was told that it has no address
// and gives none back; and on an existing network a port that is nowhere does not tell whose it is. So its Key, which no other request has, is written
// down with what is owed, and looked for: at once when the SDN answers, and again after ever longer times. Who is given that port meanwhile, because
// it has the MAC or the address that was asked for, has it: nothing is owed of it then.

// landing is for how long a port that may yet be made is looked for, from when the SDN first answered that it is not there.
const landing = 10 * time.Minute

// maxLate is how many such ports are looked for. Those beyond are left to the comparison with the engine.
const maxLate = maxOwed / 10

// latePort is a port that may yet be made.
type latePort struct {
	Key      sdn.Key
	Network  sdn.ID
	Endpoint string `json:",omitempty"` // whose port it is to be; "" of one that only holds an address
}

// mayLand tells that what could not be made may be made yet: it was asked for, and what became of that is not known.
func mayLand(err error) bool {
	return (away(err) || errors.Is(err, context.Canceled)) && !errors.Is(err, sdn.ErrNotSent)
}

// oweLateAddress writes down that the port of a RequestAddress that failed is to go if it is ever made. It is not done for a swarm's manager, whose port
// has a mark from the start by which it is somebody's.
func (d *Driver) oweLateAddress(ctx context.Context, s sdn.Subnet, r *api.RequestAddressRequest, key sdn.Key, cause error) {
	c := owedCall{Method: "IpamDriver.ReleaseAddress", MAC: r.MAC.String(), Late: &latePort{Key: key, Network: s.Network}}
	if r.Address.IsValid() {
		c.Addresses = []netip.Addr{r.Address}
	}
	d.oweLate(ctx, c, map[string]any{"PoolID": r.PoolID.String(), "Address": r.Address}, cause)
}

func (d *Driver) oweLate(ctx context.Context, c owedCall, body map[string]any, cause error) {
	if d.owed.folder == nil || !mayLand(cause) {
		return
	}
	encoded, err := json.Marshal(body)
	c.Body, c.At, c.about = encoded, time.Now(), api.SubjectOf(encoded)
	if len(d.owed.names(owedCall.isLate)) >= maxLate {
		err = errors.New("too many are looked for already")
	} else if err == nil {
		err = d.owed.add(c)
	}
	if err != nil {
		d.log.ErrorContext(ctx, "a port that may yet be made is not looked for", "key", c.Late.Key, "err", err)
		return
	}
	d.log.WarnContext(ctx, "whether the SDN makes the port of a request that failed is not known; it is looked for, and deleted if it does", "key", c.Late.Key, "err", cause)
}

func (c owedCall) isLate() bool { return c.Late != nil }

// settleLate looks for a port that may yet be made and deletes it. What is not there yet stays owed, without an error.
func (d *Driver) settleLate(ctx context.Context, name string, c owedCall) error {
	freed, err := d.dropLate(ctx, name, c)
	if sdn.IsConflict(err) && time.Since(c.At) >= patience {
		d.log.WarnContext(ctx, "a port that was made after its request had failed cannot be deleted", "key", c.Late.Key, "err", err)
		return d.owed.drop(name)
	}
	d.tidySubnets(ctx, freed...)
	return err
}

// dropLate is settleLate up to the subnets that are empty then. A RequestAddress that gets a port by
// its MAC holds the same lock. An endpoint gets no such port: its CreateEndpoint deletes it, too. The
// port has no interface and publishes nothing, as its endpoint was not created.
func (d *Driver) dropLate(ctx context.Context, name string, c owedCall) (freed []sdn.Address, err error) {
	var locks []string
	if c.Late.Endpoint == "" && c.MAC != "" {
		locks = append(locks, portLock(c.Late.Network, c.MAC))
	}
	unlock, err := d.locks.lock(ctx, locks...)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, still := d.owed.get(name); !still {
		return nil, nil // somebody was given it
	}
	err = retryStale(func(bool) error {
		port, found, err := sdn.First(d.sdn.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{Keys: []sdn.Key{c.Late.Key}}}))
		switch {
		case err != nil:
			return err
		case !found:
			return d.owed.notThere(name, time.Now(), d.timeout)
		case port.DeviceID == c.Late.Endpoint && len(held(port)) == 0:
			if err := ignoreAbsent(d.sdn.DeletePort(ctx, port.ID, port.Revision)); err != nil {
				return err
			}
			d.forgetPorts(port.ID)
			freed = port.Addresses
			d.log.WarnContext(ctx, "a port that was made after its request had failed is deleted", "key", c.Late.Key, "asked", c.At)
		}
		return d.owed.drop(name)
	})
	return freed, err
}

// notThere says that a port was not there, and drops it where it was looked for long enough. It is looked for again when as much time has passed as has
// already, which is never less than the least.
func (o *owed) notThere(name string, now time.Time, least time.Duration) error {
	o.mu.Lock()
	c, ok := o.all[name]
	if ok && c.missed.IsZero() {
		c.missed = now
	}
	over := ok && now.Sub(c.missed) >= landing
	if ok && !over {
		c.due = now.Add(max(least, now.Sub(c.missed)))
		o.all[name] = c
	}
	o.mu.Unlock()
	if over {
		return o.drop(name)
	}
	return nil
}

// nextLook is when the first of the ports that were not there is looked for again.
func (o *owed) nextLook() (at time.Time, waits bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.all {
		if !c.due.IsZero() && (!waits || c.due.Before(at)) {
			at, waits = c.due, true
		}
	}
	return at, waits
}

// keepLate says that a port is given to somebody: it is not to go, whenever it was made.
func (d *Driver) keepLate(port sdn.Port) error {
	for _, name := range d.owed.names(func(c owedCall) bool { return c.isLate() && c.Late.Key == port.Key }) {
		if err := d.owed.drop(name); err != nil {
			return err
		}
	}
	return nil
}

// portLock is the name of the lock of what has a MAC on a network.
func portLock(network sdn.ID, mac string) string { return "port/" + string(network) + "/" + mac }
