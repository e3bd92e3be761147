package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	endpoints "github.com/kuryr/kuryr/docker/endpoint"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/swarm"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/sdn"
)

// The previous version kept its state in tags and in four folders. records makes rows of the
// folders before the store is started, and finish does so later for what needs the SDN. objects
// makes rows of what the SDN has. A record is deleted after its rows are committed. Keys that have
// a row are left out, so that records which a rolled back version writes are imported at the next
// upgrade.

// The folders of the previous version, and of endpoints' records, which it reads after a rollback.
const endpointsFolder, owedFolder, begunFolder, marksFolder = "endpoints", "owed", "begun", "marks"

// Folders returns the folders in which a Driver with these two, or an earlier version, keeps
// records: files of JSON.
func Folders(stateDir, runDir string) []string {
	return []string{
		filepath.Join(stateDir, owedFolder), filepath.Join(stateDir, marksFolder),
		filepath.Join(stateDir, begunFolder), folderIn(runDir, endpointsFolder),
	}
}

func folderIn(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

// upgrade imports the state of the previous version.
type upgrade struct {
	identity.Daemon
	stateDir, runDir string
	endpoints        upgradedEndpoints
	addresses        upgradedAddresses
	networks         upgradedNetworks
	swarm            *swarm.Service // nil in the local scope
}

type upgradedEndpoints interface {
	// ImportRecords makes rows of the records of endpoints in a folder, and deletes those that are not
	// needed for the previous version.
	ImportRecords(ctx context.Context, folder string) error
	// ImportCleanup stores what is left to delete after a call: NetworkDriver.DeleteEndpoint, Leave or
	// RevokeExternalConnectivity. port is "" if it is unknown.
	ImportCleanup(ctx context.Context, method, id string, port sdn.ID) error
	// ImportUnconfirmed stores the deletion of a port with this Key, which the SDN may yet create.
	ImportUnconfirmed(ctx context.Context, id string, network sdn.ID, key sdn.Key) error
	// IsDeleting reports whether an endpoint is being deleted.
	IsDeleting(id string) bool
	// ImportPort makes the rows of an endpoint that has a port, on a network of the engine's.
	ImportPort(ctx context.Context, network string, p sdn.Port) error
}

var _ upgradedEndpoints = (*endpoints.Service)(nil)

type upgradedAddresses interface {
	// ImportRelease stores the deletion of a port.
	ImportRelease(ctx context.Context, port sdn.ID) error
	ImportPoolRelease(ctx context.Context, id api.PoolID) error
	// ImportUnconfirmed stores the deletion of a port with this Key, which the SDN may yet create.
	ImportUnconfirmed(ctx context.Context, network sdn.ID, key sdn.Key) error
	LookUpPool(ctx context.Context, id sdn.ID) (bool, error)
	ImportPort(ctx context.Context, p sdn.Port) error
}

type upgradedNetworks interface {
	ImportDelete(ctx context.Context, id string) error
	// ImportTags stores that kuryr-libnetwork's tags of an existing network, and of the subnets of
	// the pools, must agree with whether the engine has the network.
	ImportTags(ctx context.Context, id string, network sdn.ID, pools []sdn.ID) error
	// Import makes the row of a network, if the SDN has it.
	Import(ctx context.Context, id string) error
}

// queuedCleanup is a call of the engine that was repeated until the SDN did it.
type queuedCleanup struct {
	Method    string
	Body      json.RawMessage
	At        time.Time
	Port      sdn.ID // of the endpoint or address; "": unknown
	Addresses []netip.Addr
	// Late is set if the SDN may yet create a port, which must be deleted then.
	Late *struct {
		Key      sdn.Key
		Network  sdn.ID
		Endpoint string // "": the port of an address
	}
}

// records makes rows of the folders. It does not call the SDN.
func (u *upgrade) records(ctx context.Context) error {
	if err := u.endpoints.ImportRecords(ctx, folderIn(u.runDir, endpointsFolder)); err != nil {
		return err
	}
	left, err := u.cleanups(ctx, u.cleanup)
	if err != nil {
		return err
	}
	if err := u.marks(ctx); err != nil {
		return err
	}
	// What the engine was not told of has a row like all other objects, which its list judges.
	folders := []string{begunFolder, marksFolder}
	if left == 0 {
		folders = append(folders, owedFolder)
	}
	for _, name := range folders {
		if err := os.RemoveAll(filepath.Join(u.stateDir, name)); err != nil {
			u.Log.WarnContext(ctx, "folder of an earlier version not deleted", "folder", name, "err", err)
		}
	}
	return nil
}

func load[T any](ctx context.Context, u *upgrade, name string) (*jsonstore.Store, map[string]T) {
	folder := jsonstore.Shared(filepath.Join(u.stateDir, name))
	all, err := jsonstore.Load[T](folder)
	if err != nil {
		u.Log.WarnContext(ctx, "records of an earlier version not all readable", "folder", name, "err", err)
	}
	return folder, all
}

// cleanups makes rows of the calls that the engine does not repeat, the oldest first, and returns
// how many records are left. A record that fails does not keep the others.
func (u *upgrade) cleanups(
	ctx context.Context, do func(context.Context, queuedCleanup) (done bool, err error),
) (left int, err error) {
	folder, all := load[queuedCleanup](ctx, u, owedFolder)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(all)) {
		done, err := do(ctx, all[name])
		if refused := (*api.Error)(nil); errors.As(err, &refused) {
			u.Log.WarnContext(ctx, "cleanup of an earlier version dropped", "method", all[name].Method, "err", err)
			done, err = true, nil
		}
		if err == nil && done {
			err = folder.Delete(name)
		} else if left++; err != nil {
			err = fmt.Errorf("import cleanup %s: %w", name, err)
		}
		errs = append(errs, err)
	}
	return left, errors.Join(errs...)
}

// cleanup makes rows of one call. It is not done if the SDN has to be asked. An *api.Error says that
// the record is damaged.
func (u *upgrade) cleanup(ctx context.Context, c queuedCleanup) (done bool, err error) {
	if c.Late != nil && c.Late.Endpoint != "" {
		return true, u.endpoints.ImportUnconfirmed(ctx, c.Late.Endpoint, c.Late.Network, c.Late.Key)
	} else if c.Late != nil {
		return true, u.addresses.ImportUnconfirmed(ctx, c.Late.Network, c.Late.Key)
	}
	switch driver, method, _ := strings.Cut(c.Method, "."); method {
	case "DeleteEndpoint", "Leave", "RevokeExternalConnectivity":
		var r api.EndpointRequest
		if err := api.Decode(c.Body, &r); err != nil {
			return false, err
		}
		return true, u.endpoints.ImportCleanup(ctx, c.Method, r.EndpointID, c.Port)
	case "DeleteNetwork":
		var r api.NetworkRequest
		if err := api.Decode(c.Body, &r); err != nil {
			return false, err
		}
		if u.swarm != nil && swarm.IsSwarm(r.NetworkID) {
			return true, u.swarm.ImportDelete(ctx, r.NetworkID)
		}
		return true, u.networks.ImportDelete(ctx, r.NetworkID)
	case "ReleasePool", "ReleaseAddress":
		return false, nil // the SDN tells what there is to delete, and whose it is
	default:
		return false, &api.Error{Text: fmt.Sprintf("%s.%s is no cleanup", driver, api.Clip(method, 40))}
	}
}

func (u *upgrade) marks(ctx context.Context) error {
	folder, all := load[struct {
		Network sdn.ID
		Pools   []sdn.ID
	}](ctx, u, marksFolder)
	for _, id := range slices.Sorted(maps.Keys(all)) {
		err := u.networks.ImportTags(ctx, id, all[id].Network, all[id].Pools)
		if err == nil {
			err = folder.Delete(id)
		}
		if err != nil {
			return fmt.Errorf("import tags of network %s: %w", id, err)
		}
	}
	return nil
}

// finish makes rows of released pools, and of released addresses whose port was not known. The store
// is started. After an error it is called again: a record that fails does not keep the others.
func (u *upgrade) finish(ctx context.Context) error {
	_, err := u.cleanups(ctx, func(ctx context.Context, c queuedCleanup) (bool, error) {
		return true, u.release(ctx, c)
	})
	return err
}

func (u *upgrade) release(ctx context.Context, c queuedCleanup) error {
	switch _, method, _ := strings.Cut(c.Method, "."); method {
	case "ReleasePool":
		var r api.ReleasePoolRequest
		if api.Decode(c.Body, &r) != nil {
			return nil
		}
		if u.swarm != nil {
			if ours, err := u.swarm.ReleaseShared(ctx, &r); ours || err != nil {
				return err
			}
		}
		return u.addresses.ImportPoolRelease(ctx, r.PoolID)
	case "ReleaseAddress":
		var r api.ReleaseAddressRequest
		if u.swarm != nil && api.Decode(c.Body, &r) == nil {
			if ours, err := u.swarm.ReleaseSharedAddress(ctx, &r); ours || err != nil {
				return err
			}
		}
		port, found, err := u.released(ctx, c)
		if err != nil || !found {
			return err
		}
		return u.addresses.ImportRelease(ctx, port)
	}
	return nil
}

// released returns the port of an address that was released, if Kuryr made it. A record also names
// a port that its user made. A port that was created later has the address for another. One that an
// endpoint still has becomes a row, which Docker's list judges.
func (u *upgrade) released(ctx context.Context, c queuedCleanup) (none sdn.ID, found bool, err error) {
	var r api.ReleaseAddressRequest
	if api.Decode(c.Body, &r) != nil {
		return none, false, nil
	}
	if c.Port != "" {
		p, err := u.SDN.Port(ctx, c.Port)
		switch {
		case sdn.IsNotFound(err):
			return none, false, nil
		case err != nil:
			return none, false, err
		case !u.Names.Ours(p.Meta, identity.KindPort) && !identity.PeersPort(p), identity.Elsewhere(p, u.Host):
			return none, false, nil
		case p.DeviceID != "" && !u.endpoints.IsDeleting(p.DeviceID):
			return none, false, u.addresses.ImportPort(ctx, p)
		}
		return p.ID, true, nil
	}
	for _, q := range []sdn.SubnetQuery{
		{Pools: []sdn.ID{r.PoolID.Pool}}, {Match: sdn.Match{Tags: []string{string(r.PoolID.Pool)}}},
	} {
		subnets, err := sdn.All(u.SDN.FindSubnets(ctx, q))
		if err != nil {
			return none, false, err
		}
		for _, s := range subnets {
			p, found, err := u.PortAt(ctx, s.ID, r.Address)
			if err != nil {
				return none, false, err
			}
			if found && u.Names.Ours(p.Meta, identity.KindPort) && p.DeviceID == "" && !p.Created.After(c.At) {
				return p.ID, true, nil
			}
		}
	}
	return none, false, nil
}

// objects makes rows of what this host has in the SDN. The engine's list has networks of
// kuryr-libnetwork and of other IPAM drivers too; it is empty if the engine did not answer. No
// imported row is known to be the engine's until its list has it. An object that cannot be imported
// does not keep the others from it. Objects that a swarm shares are imported by the calls that name
// them.
func (u *upgrade) objects(ctx context.Context, list engine.List) error {
	f := found{
		pools: map[sdn.ID]bool{}, ids: map[string]bool{}, networks: map[sdn.ID][]string{},
		endpoints: map[string]string{}, own: map[sdn.ID]bool{},
	}
	for _, n := range list.Networks {
		if n.Ours && n.Scope != "swarm" {
			f.ids[n.ID] = true
		}
	}
	for _, e := range list.Endpoints() {
		f.endpoints[e.ID] = e.Network
	}
	errs := []error{u.pools(ctx, &f), u.links(ctx, &f), u.owners(ctx, &f)}
	for _, id := range slices.Sorted(maps.Keys(f.ids)) {
		errs = append(errs, u.unlessRefused(ctx, "network", id, u.networks.Import(ctx, id)))
	}
	return errors.Join(append(errs, u.ports(ctx, f))...)
}

// unlessRefused returns the error of an import that can succeed later. Any other is logged: the next
// call that names the object imports it, or tells its user why not.
func (u *upgrade) unlessRefused(ctx context.Context, noun, id string, err error) error {
	_, refused := errors.AsType[*api.Refusal](err)
	switch {
	case err == nil, sdn.IsUnavailable(err):
		return err
	case refused, sdn.IsNotFound(err), sdn.IsInvalid(err), sdn.IsDenied(err), sdn.IsUnsupported(err):
		u.Log.WarnContext(ctx, "object not imported", "noun", noun, "id", id, "err", err)
		return nil
	}
	return err
}

// found is what objects knows of this host.
type found struct {
	pools     map[sdn.ID]bool
	ids       map[string]bool     // the engine's ids of networks
	networks  map[sdn.ID][]string // the same by the SDN's, of all hosts
	endpoints map[string]string   // the same by endpoints that the engine listed
	own       map[sdn.ID]bool     // networks whose ports are this host's, also hidden ones
}

// networkOf returns the engine's network of an endpoint that has a port; "" if it is unknown: the
// engine has several networks that are one of the SDN, and has not listed the endpoint.
func (f found) networkOf(endpoint string, p sdn.Port) string {
	if network := f.endpoints[endpoint]; network != "" {
		return network
	}
	if ids := f.networks[p.Network]; len(ids) == 1 {
		return ids[0]
	}
	return ""
}

func (u *upgrade) pools(ctx context.Context, f *found) error {
	if !u.SDN.Capabilities().SubnetPools {
		return nil
	}
	var errs []error
	match := sdn.Match{Owner: u.Names.Owner, Kind: identity.KindPool}
	for p, err := range u.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		name, _ := identity.ParsePoolName(p.Key.Name)
		if u.Names.OfThisHost(p.Meta, identity.KindPool) && name.Space != api.GlobalSpace {
			f.pools[p.ID] = true
			_, err := u.addresses.LookUpPool(ctx, p.ID)
			errs = append(errs, u.unlessRefused(ctx, "pool", string(p.ID), err))
		}
	}
	return errors.Join(errs...)
}

// links finds the existing networks of this host's engine. Several of its networks can be one.
func (u *upgrade) links(ctx context.Context, f *found) error {
	if !u.SDN.Capabilities().SubnetPools {
		return nil
	}
	match := sdn.Match{Owner: u.Names.Owner, Kind: identity.KindLink}
	for p, err := range u.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
		if err != nil {
			return err
		}
		id, here := strings.CutPrefix(withoutIncarnation(p.Key), u.Names.Host+"/")
		if !here || !u.Names.Ours(p.Meta, identity.KindLink) {
			continue
		}
		f.ids[id] = true
		text, _, _ := strings.Cut(p.Name, ",")
		network := sdn.ID(text)
		f.networks[network] = append(f.networks[network], id)
	}
	return nil
}

// withoutIncarnation returns the name of a Key without what tells a second object of an id apart.
func withoutIncarnation(key sdn.Key) string {
	name, _, _ := strings.Cut(key.Name, "~")
	return name
}

// owners finds the networks that have a subnet of one of this host's pools.
func (u *upgrade) owners(ctx context.Context, f *found) error {
	match := sdn.Match{Owner: u.Names.Owner, Kind: identity.KindSubnet}
	for s, err := range u.SDN.FindSubnets(ctx, sdn.SubnetQuery{Match: match}) {
		if err != nil {
			return err
		}
		id, _, ok := strings.Cut(s.Key.Name, "/")
		ofPool := func(p sdn.ID) bool { return f.pools[p] }
		if !ok || !u.Names.Ours(s.Meta, identity.KindSubnet) || slices.Contains(s.Tags, identity.TagSwarm) ||
			!slices.ContainsFunc(append(identity.IDs(s.Tags), s.Pool), ofPool) {
			continue
		}
		f.ids[id] = true
		if _, existing := f.networks[s.Network]; !existing {
			f.own[s.Network] = true
		}
	}
	for _, kind := range []string{identity.KindNetwork, identity.KindHidden} {
		match.Kind = kind
		for n, err := range u.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: match}) {
			if err != nil {
				return err
			}
			switch {
			case !u.Names.Ours(n.Meta, kind):
			case kind == identity.KindNetwork:
				f.networks[n.ID] = []string{withoutIncarnation(n.Key)}
			case f.pools[sdn.ID(n.Key.Name)]:
				f.own[n.ID] = true
			}
		}
	}
	return nil
}

// ports imports the ports of endpoints on this host, and those of its networks that have an address
// and no endpoint. On an existing network the latter do not tell whose they are. An endpoint whose
// network is unknown is imported by the next call that names it.
func (u *upgrade) ports(ctx context.Context, f found) error {
	var errs []error
	for _, q := range []sdn.PortQuery{
		{Match: sdn.Match{Owner: u.Names.Owner, Kind: identity.KindPort}, Hosts: []string{u.Host}},
		{Match: sdn.Match{Owner: u.Names.Owner, Kind: identity.KindEndpoint}, Hosts: []string{u.Host}},
		{Match: sdn.Match{Owner: u.Names.Owner, Kind: identity.KindPort, Names: []string{identity.UnboundPort}}},
		{Match: sdn.Match{Tags: []string{identity.TagExistingPort, identity.TagBorrower + u.Names.Owner}}},
	} {
		for p, err := range u.SDN.FindPorts(ctx, q) {
			if err != nil {
				return errors.Join(append(errs, err)...)
			}
			ours := u.Names.Ours(p.Meta, identity.KindPort, identity.KindEndpoint)
			id := identity.EndpointOf(p)
			network := f.networkOf(id, p)
			switch {
			case id != "" && network != "" && (ours && p.Host == u.Host || u.Names.Attached(p, u.Host)):
				err = u.endpoints.ImportPort(ctx, network, p)
			case id == "" && ours && f.own[p.Network]:
				err = u.addresses.ImportPort(ctx, p)
			}
			errs = append(errs, u.unlessRefused(ctx, "port", string(p.ID), err))
		}
	}
	return errors.Join(errs...)
}
