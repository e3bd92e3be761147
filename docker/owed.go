package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/sdn"
)

// An engine calls once for each thing that is to be cleaned up, whatever the answer, and forgets the thing. So a call that cleans up and that the
// SDN was away for is written down as it came, answered as done, and made again when the SDN is back: all of them can be repeated. Before
// anything is given that such a call may be about, the call is made first; what was given since is nobody's debt.

// maxOwed is how many calls are written down; those beyond fail, and what they were about is found by comparing with the engine.
const maxOwed = 20000

// owedCall is a call that is to be made again.
type owedCall struct {
	Method string
	Body   json.RawMessage
	At     time.Time
	// What is known of the port that it is about: whose address, released by then, others may get afterwards.
	Port      sdn.ID       `json:",omitempty"`
	MAC       string       `json:",omitempty"`
	Addresses []netip.Addr `json:",omitempty"`
	// Late is set where no call is to be made: a port that may yet be made is to go, of the MAC and the address above where those were asked for.
	Late *latePort `json:",omitempty"`

	about       api.Subject // the objects that the call names
	missed, due time.Time   // Late: when it was first not there, and when it is looked for again
}

// owed are the calls that are to be made again, in the order they came in. A Driver without a folder for them owes nothing: its calls fail.
type owed struct {
	folder *jsonstore.Store

	mu   sync.Mutex
	all  map[string]owedCall // by names that sort in their order
	next uint64

	more chan struct{} // full: something was written down
	back chan struct{} // full: the SDN has answered
}

// openOwed reads what an earlier process owed. What cannot be read is left to the comparison with the engine.
func openOwed(dir string, log *slog.Logger) *owed {
	folder, err := jsonstore.Open(dir)
	if err != nil {
		log.Error("clean-ups that the SDN is away for cannot be written down: they fail", "err", err)
	}
	o := &owed{folder: folder, more: make(chan struct{}, 1), back: make(chan struct{}, 1)}
	if o.all, err = jsonstore.Load[owedCall](folder); err != nil {
		log.Warn("clean-ups that were written down cannot all be read", "err", err)
	}
	for name, c := range o.all {
		var n uint64
		if _, err := fmt.Sscanf(name, "%d", &n); err == nil && n >= o.next {
			o.next = n + 1
		}
		c.about = api.SubjectOf(c.Body)
		o.all[name] = c
	}
	return o
}

// names are those of the calls that are wanted, the oldest first.
func (o *owed) names(wanted func(owedCall) bool) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var names []string
	for name, c := range o.all {
		if wanted(c) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (o *owed) get(name string) (owedCall, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c, ok := o.all[name]
	return c, ok
}

func (o *owed) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all)
}

// add writes a call down. When it returns nil the call will be made, whatever happens to this process or its machine.
func (o *owed) add(c owedCall) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.all) >= maxOwed {
		return fmt.Errorf("%d calls are owed already", len(o.all))
	}
	name := fmt.Sprintf("%020d", o.next)
	if err := o.folder.Put(name, c); err != nil {
		return err
	}
	o.next++
	o.all[name] = c
	kick(o.more)
	return nil
}

func (o *owed) drop(name string) error {
	if err := o.folder.Delete(name); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, name)
	return nil
}

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is known already
	}
}

// away tells that the SDN could not be asked, or not in time: what was wanted may be wanted again later.
func away(err error) bool {
	if err == nil {
		return false
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(several.Unwrap(), away)
	}
	var e *sdn.Error
	if errors.As(err, &e) {
		return e.Kind == sdn.KindUnavailable
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// owable tells that a call which cleans up is to be made again later: the SDN was away, or something keeps a port there for now. Nobody else would ever
// find a port that holds an address for nobody on an existing network: it does not tell whose it is.
func owable(method string, err error) bool {
	return away(err) || method == "IpamDriver.ReleaseAddress" && sdn.IsConflict(err)
}

// patience is for how long what the SDN refuses for what is there is asked for again.
const patience = time.Hour

// owe writes down a call that the SDN was away for, and tells whether that was possible.
func (d *Driver) owe(ctx context.Context, method string, body []byte, cause error) bool {
	if d.owed.folder == nil {
		return false
	}
	c := owedCall{Method: method, Body: slices.Clone(body), At: time.Now(), about: api.SubjectOf(body)}
	if c.about.PoolID != "" {
		c.Addresses = c.about.Addresses
		c.Port = d.endpoints.Pending(func(p sdn.Port) bool { return shareAddress(addrs(p), c.Addresses) })
	}
	if err := d.owed.add(c); err != nil {
		d.log.ErrorContext(ctx, "a call could not be written down and is not made again", "method", method, "err", err)
		return false
	}
	failpoint.Here("docker.owed.written")
	d.log.WarnContext(ctx, "the SDN is away, or refuses; what the engine asked to clean up is written down and done when it can be", "method", method,
		"endpoint", c.about.EndpointID, "network", c.about.NetworkID, "owed", d.owed.count(), "err", cause)
	return true
}

// oweNetwork writes down that a network, which could not be made, is to go.
func (d *Driver) oweNetwork(ctx context.Context, network string, cause error) bool {
	body, err := json.Marshal(map[string]string{"NetworkID": network})
	return err == nil && d.owe(ctx, "NetworkDriver.DeleteNetwork", body, cause)
}

func shareAddress(a, b []netip.Addr) bool {
	return slices.ContainsFunc(a, func(x netip.Addr) bool { return slices.Contains(b, x) })
}

// settleBefore makes the calls that are owed for what another call is about to give again. Where that cannot be, it must not be given.
func (d *Driver) settleBefore(ctx context.Context, method string, body []byte) error {
	a := api.SubjectOf(body)
	if err := d.finishEndpoints(ctx, a); err != nil {
		return err
	}
	if d.owed.count() == 0 {
		return nil
	}
	addresses, mac := a.Addresses, a.MAC
	ranges := method == "IpamDriver.RequestPool" || method == "NetworkDriver.CreateNetwork" || method == "NetworkDriver.AllocateNetwork"
	wanted := func(c owedCall) bool {
		switch {
		case c.isLate():
			return !ranges && (shareAddress(addresses, c.Addresses) || mac != "" && c.MAC == mac)
		case ranges:
			return c.about.EndpointID == "" && len(c.about.Addresses) == 0 // pools and networks
		case a.EndpointID != "" && a.EndpointID == c.about.EndpointID, shareAddress(addresses, c.Addresses):
			return true
		case mac != "" && c.about.EndpointID != "":
			return c.MAC == mac || c.MAC == ""
		}
		return false
	}
	related := map[netip.Addr]bool{} // of the endpoints that are taken away: their addresses are released after
	for _, name := range d.owed.names(wanted) {
		if c, ok := d.owed.get(name); ok {
			for _, address := range c.Addresses {
				related[address] = true
			}
		}
	}
	for _, name := range d.owed.names(func(c owedCall) bool {
		return wanted(c) || shareAddress(slices.Collect(maps.Keys(related)), c.Addresses)
	}) {
		err := d.settleOne(ctx, name)
		if c, ok := d.owed.get(name); ok && ranges && d.frugal() && away(err) && ctx.Err() == nil && (a.NetworkID == "" || a.NetworkID != c.about.NetworkID) {
			// No pool is given twice there, so nothing that is owed can be about what is given now. One that the SDN fails at each time must not
			// keep all networks from being made; and where the SDN is away the call itself says so.
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stuckInRow is after how many calls in a row that could not be made the SDN is taken to be away, and no further is tried.
const stuckInRow = 5

// inTurn settles one after the other of what is named, each in the time of a call, until the SDN seems to be away. settle tells whether there was anything
// to ask the SDN for. The error is that of the first that stays.
func (d *Driver) inTurn(ctx context.Context, names []string, settle func(ctx context.Context, name string) (asked bool, err error)) (first error) {
	row := 0
	for _, name := range names {
		within, cancel := context.WithTimeout(ctx, d.timeout)
		asked, err := settle(within, name)
		cancel()
		switch {
		case !asked:
			continue
		case err == nil:
			row = 0
			continue
		case first == nil:
			first = err
		}
		if row++; row == stuckInRow || ctx.Err() != nil {
			break
		}
	}
	return first
}

// settleAll makes all calls that are owed and due, until the SDN is away again. One that the SDN fails at each time keeps back those that are about the same
// endpoint or addresses and the end of its network, and no others. The error is that of the first that stays owed.
func (d *Driver) settleAll(ctx context.Context) error {
	d.tidyGone(ctx)
	var stuck []owedCall
	now := time.Now()
	due := d.owed.names(func(c owedCall) bool { return !c.due.After(now) })
	return d.inTurn(ctx, due, func(ctx context.Context, name string) (bool, error) {
		c, ok := d.owed.get(name)
		if !ok {
			return false, nil
		}
		if slices.ContainsFunc(stuck, c.follows) {
			stuck = append(stuck, c)
			return false, nil
		}
		err := d.settleOne(ctx, name)
		if err != nil {
			stuck = append(stuck, c)
		}
		return true, err
	})
}

// follows tells whether a call is to be made after another that came before it.
func (c owedCall) follows(earlier owedCall) bool {
	if c.about.EndpointID == "" && c.about.NetworkID != "" {
		return c.about.NetworkID == earlier.about.NetworkID
	}
	return c.about.EndpointID != "" && c.about.EndpointID == earlier.about.EndpointID || shareAddress(c.Addresses, earlier.Addresses)
}

// settleOne makes one call that is owed. An error is one for which it stays owed.
func (d *Driver) settleOne(ctx context.Context, name string) error {
	unlock, err := d.locks.lock(ctx, "owed/"+name)
	if err != nil {
		return err
	}
	defer unlock()
	c, ok := d.owed.get(name)
	if !ok {
		return nil // somebody else was faster
	}
	if c.isLate() {
		return d.settleLate(ctx, name, c)
	}
	rt := routes["/"+c.Method]
	if !rt.tidy {
		d.log.WarnContext(ctx, "what was written down is no clean-up and is passed over", "method", c.Method)
		return d.owed.drop(name)
	}
	_, err = rt.run(d, context.WithValue(ctx, owedContext{}, c), c.Body)
	if err == nil && c.about.EndpointID == "" && c.about.NetworkID != "" {
		// The network may have gone just before the SDN was away: then its released pools are left, and nothing but their marks tells of them.
		err = d.finishReleased(ctx)
	}
	switch {
	case away(err), owable(c.Method, err) && time.Since(c.At) < patience:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		// The engine would have been told the same, and would not have asked again.
		d.log.WarnContext(ctx, "what the engine asked to clean up while the SDN was away cannot be done", "method", c.Method, "asked", c.At, "err", err)
	default:
		d.log.InfoContext(ctx, "what the engine asked to clean up while the SDN was away is done", "method", c.Method, "asked", c.At,
			"endpoint", c.about.EndpointID, "network", c.about.NetworkID)
	}
	failpoint.Here("docker.owed.repeated")
	if err := d.owed.drop(name); err != nil {
		return err
	}
	failpoint.Here("docker.owed.settled")
	return nil
}

// owedContext is the key of the owed call that a method is run for.
type owedContext struct{}

// givenSince tells, of a port that an owed call has found by its address, that the call does not mean it: the address was given again meanwhile, be
// it by another host. Where the port that was meant is not known, one that was made later is not it.
func givenSince(ctx context.Context, port sdn.Port) bool {
	c, owed := ctx.Value(owedContext{}).(owedCall)
	switch {
	case !owed:
		return false
	case c.Port != "":
		return port.ID != c.Port
	}
	return port.Created.After(c.At)
}
