package network

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// plan is what a CreateNetwork asks for, with everything that it names found.
type plan struct {
	spec     Spec
	pools    []ipam.Pool // of the ranges; the zero Pool for one of another IPAM driver
	existing *existing   // nil: a network of its own
	fresh    bool        // the SDN has no network with the Key
}

// Create makes the network of the pools that were requested for its ranges. A repeated call
// finishes what an earlier one left. After an error nothing of this call is left.
func (s *Service) Create(ctx context.Context, r *api.CreateNetworkRequest) error {
	unlock, err := s.locks.Lock(ctx, lockNetwork+r.NetworkID)
	if err != nil {
		return err
	}
	defer unlock()
	unlockRanges, err := s.Pools.LockRanges(ctx, r.Ranges...)
	if err != nil {
		return err
	}
	defer unlockRanges()
	old, existed := s.networks.Get(r.NetworkID)
	p, err := s.plan(ctx, r)
	if err != nil {
		return err
	}
	err = s.set(ctx, r.NetworkID, p)
	if (sdn.IsConflict(err) || reconcile.IsConflict(err)) && !reconcile.IsPending(err) {
		// A network whose DeleteNetwork was lost may be in the way. Docker has released its pools.
		if err := s.dropReleased(ctx, r.NetworkID); err != nil {
			s.Log.WarnContext(ctx, "released networks not all deleted", "err", err)
		}
		err = s.set(ctx, r.NetworkID, p)
	}
	if err != nil {
		return s.explain(err, p.spec)
	}
	s.Pools.NoteHeard(true, p.spec.pools()...)
	if err := s.Pools.TagLater(ctx, p.spec.pools()...); err != nil {
		s.Log.WarnContext(ctx, "pools not tagged", "network", r.NetworkID, "err", err)
	}
	if existed && old.Phase == reconcile.Wanted {
		return nil
	}
	if len(r.Options.Foreign) > 0 {
		s.Log.WarnContext(ctx, "network options without effect", "network", r.NetworkID,
			"options", api.Line(foreignOptions(r.Options.Foreign)))
	}
	return nil
}

// explain says what another network has, or what is being deleted.
func (s *Service) explain(err error, spec Spec) error {
	held, isConflict := errors.AsType[*reconcile.ConflictError](err)
	gone, isGone := errors.AsType[*reconcile.OwnerError](err)
	if reconcile.IsPending(err) || !isConflict && !isGone {
		return err
	}
	for _, r := range spec.Ranges {
		switch {
		case isGone && gone.Owner == s.Pools.RefOf(r.Pool):
			return api.RefuseFor(err, "the range %s is being deleted", r.CIDR)
		case isGone:
		case r.Pool != "" && held.Resource == claimPool+r.Pool:
			return api.RefuseFor(err, "the range %s is another network's", r.CIDR)
		case held.Resource == routerClaim(spec.Router, r.CIDR):
			return api.RefuseFor(err, "option %s: another network has the range %s on router %s",
				api.OptRouter, r.CIDR, api.Clip(spec.Router, 100))
		}
	}
	return api.RefuseFor(err, "another network has what the network needs")
}

// routerClaim is the claim of a range on a router that networks share.
func routerClaim(router string, cidr netip.Prefix) string {
	return "router/" + router + "/" + cidr.String()
}

// NoteUnheard notes that Docker has not got the answer of a CreateNetwork.
func (s *Service) NoteUnheard(id string) {
	if r, ok := s.networks.Get(id); ok {
		s.noteHeard(id, r.Spec, false)
	}
}

func (s *Service) noteHeard(id string, spec Spec, heard bool) {
	s.networks.NoteHeard(id, heard)
	s.Pools.NoteHeard(heard, spec.pools()...)
}

func foreignOptions(names []string) string {
	const most = 20
	if len(names) > most {
		names = append(slices.Clone(names[:most]), "…")
	}
	return strings.Join(names, " ")
}

func (s *Service) set(ctx context.Context, id string, p plan) error {
	if p.fresh {
		ctx = withNew(ctx, p.existing)
	}
	last, err := s.networks.Set(ctx, s.request(id, p.spec))
	if err != nil || p.existing == nil {
		return err
	}
	var standing []sdn.Subnet
	for _, subnet := range p.existing.standing {
		standing = append(standing, subnet)
	}
	if identity.PeersWork(p.existing.network, standing) {
		// kuryr-libnetwork deletes a network that no tag says is in use.
		s.tagFirst(ctx, id, p.spec.Existing)
	}
	for _, pool := range p.pools {
		if pool.Nonce != "" && !pool.Peer {
			last.Home = cmp.Or(last.Home, pool.Project)
		}
	}
	s.setTags(ctx, id, p.spec, last)
	return nil
}

// request returns the row of a network. A pool is of one network only.
func (s *Service) request(id string, spec Spec) reconcile.Request[Spec] {
	q := reconcile.Request[Spec]{Key: id, Spec: spec}
	for _, r := range spec.Ranges {
		if r.Pool != "" {
			q.Owners = append(q.Owners, s.Pools.RefOf(r.Pool))
			q.Claims = append(q.Claims, claimPool+r.Pool)
		}
		if spec.Router != "" && spec.Routed {
			q.Claims = append(q.Claims, routerClaim(spec.Router, r.CIDR))
		}
	}
	return q
}

// plan finds everything that a CreateNetwork names, and refuses what cannot be made. It changes
// nothing.
func (s *Service) plan(ctx context.Context, r *api.CreateNetworkRequest) (plan, error) {
	old, has := s.networks.Get(r.NetworkID)
	known := has && old.Phase == reconcile.Wanted
	if known && old.Spec.Existing != "" {
		r.Options.Existing.Network = api.Reference{Option: api.OptNetUUID, ID: old.Spec.Existing}
	}
	p, err := s.planRanges(ctx, r)
	if err != nil {
		return p, err
	}
	if !has && !p.fresh {
		// The pools are of an earlier process, whose network may be lost, or of kuryr-libnetwork.
		found, err := s.lookUp(ctx, r.NetworkID)
		if err != nil {
			return p, err
		}
		if found {
			return s.plan(ctx, r)
		}
		p.fresh = true
	}
	return p, s.planOptions(ctx, r, &p, old, known)
}

// planRanges finds the pools of the ranges, and the existing network if one is named.
func (s *Service) planRanges(ctx context.Context, r *api.CreateNetworkRequest) (p plan, err error) {
	ranges := make([]ipam.Range, len(r.Ranges))
	if r.Options.Existing.Given() {
		e, err := s.resolveExisting(ctx, r)
		if err != nil {
			return p, err
		}
		if p.existing = &e; len(r.Ranges) > maxLinkPools {
			return p, api.Refuse("an existing network can be given %d ranges at most", maxLinkPools)
		}
	}
	for i, data := range r.Ranges {
		ranges[i] = ipam.Range{IPAMData: data, Existing: p.existing != nil}
		if p.existing != nil {
			ranges[i].Standing = p.existing.standing[data].ID
		}
	}
	if p.pools, err = s.Pools.ForRanges(ctx, ranges, r.NetworkID); err != nil {
		return p, err
	}
	p.fresh = true
	for i, pool := range p.pools {
		if p.existing == nil && pool.OfSubnet != "" { // RequestPool named it, CreateNetwork did not
			v6 := r.Ranges[i].Pool.Addr().Is6()
			r.Options.Existing.Subnet = map[bool]api.Reference{
				v6: {Option: api.StemSubnet + ".uuid", ID: pool.OfSubnet},
			}
			if err := r.Options.Check(); err != nil {
				return p, err
			}
			return s.planRanges(ctx, r)
		}
		if err := checkPool(r.Options, ranges[i], pool); err != nil {
			return p, err
		}
		p.fresh = p.fresh && (pool.Nonce == "" || pool.Fresh)
	}
	return p, nil
}

// Of returns the network that has a pool, and the name of its row; "" if none has it.
func (s *Service) Of(pool string) (id, ref string) {
	r, ok := s.networks.Holder(claimPool + pool)
	if !ok {
		return "", ""
	}
	return r.Key, s.networks.Ref(r.Key)
}

// checkPool refuses what was asked for in one of Docker's two calls only, and has no effect so.
func checkPool(o api.NetworkOptions, r ipam.Range, pool ipam.Pool) error {
	named, ok := o.Existing.Pool[r.Pool.Addr().Is6()]
	switch {
	case pool.Nonce == "" || pool.OfSubnet != "":
	case ok && pool.OfPool == "":
		return api.Refuse("option %s: give it by --ipam-opt too", named.Option)
	case r.Standing != "" && len(pool.Aux) > 0:
		return api.Refuse("an existing subnet has its owner's allocation pools: leave out --aux-address, "+
			"or give --ipam-opt %s.uuid=%s too", api.StemSubnet, r.Standing)
	}
	return nil
}

// planOptions completes the spec. Of a network that is there, groups are not looked for: a
// repeated call succeeds though one was deleted since.
func (s *Service) planOptions(
	ctx context.Context, r *api.CreateNetworkRequest, p *plan, old row, known bool,
) error {
	o := r.Options
	p.spec = specOf(o, s.form(old, known))
	if !known {
		if err := s.checkGroups(ctx, o, p); err != nil {
			return err
		}
	}
	if p.existing != nil {
		p.spec.Existing = p.existing.network.ID
	} else {
		p.spec.Shared = o.Existing.Shared != nil && *o.Existing.Shared
		var err error
		if p.spec.Routing, err = s.Routing(ctx, o); err != nil {
			return err
		}
		if known && p.spec.Router == old.Spec.Router {
			p.spec.RouterID = old.Spec.RouterID
		}
	}
	for i, data := range r.Ranges {
		g := rangeOf(o, data, p.pools[i])
		if p.existing != nil {
			g.Standing = p.existing.standing[data].ID
		}
		p.spec.Ranges = append(p.spec.Ranges, g)
	}
	if p.spec.Form == formCompat && !s.SDN.Capabilities().HasTags() {
		return identity.CheckStored(identity.NetworkOptionTags(p.spec.options()), nil)
	}
	return nil
}

// form returns the form of the Keys of a network, which never changes.
func (s *Service) form(old row, known bool) uint8 {
	switch {
	case known:
		return old.Spec.Form
	case s.Names.Compat:
		return formCompat
	}
	return formOwn
}

// checkGroups refuses security groups that endpoints of the network will not find. The network
// will be in the project of its pools. Without pools the project is unknown, and groups of the
// same name are left to CreateEndpoint.
func (s *Service) checkGroups(ctx context.Context, o api.NetworkOptions, p *plan) error {
	project, known := "", p.existing != nil
	if known {
		project = p.existing.network.Project
	}
	for _, pool := range p.pools {
		if pool.Nonce != "" {
			project, known = cmp.Or(project, pool.Project), true
		}
	}
	return s.CheckGroups(ctx, o, project, known)
}

// CheckGroups refuses security groups that endpoints of a network will not find. known says that
// the project of the network is.
func (s *Service) CheckGroups(ctx context.Context, o api.NetworkOptions, project string, known bool) error {
	option := "option " + api.OptGroups
	if known || !s.SDN.Capabilities().SecurityGroups {
		_, err := Groups(ctx, s.SDN, o.Groups, project, option)
		return err
	}
	for _, name := range o.Groups {
		query := sdn.SecurityGroupQuery{Match: NameOrID(name)}
		_, found, err := sdn.First(s.SDN.FindSecurityGroups(ctx, query))
		if err != nil {
			return err
		}
		if !found {
			return api.Refuse("%s: there is no security group %q", option, api.Clip(name, 100))
		}
	}
	return nil
}

// rangeOf returns a range of a network. Its pool is the zero Pool if another IPAM driver has it.
func rangeOf(o api.NetworkOptions, data *api.IPAMData, pool ipam.Pool) Range {
	s := ipam.SubnetSpec(sdn.Key{}, data, pool, !o.Routed())
	r := Range{
		CIDR: data.Pool, Sub: pool.Sub, Place: data.Place, Gateway: s.Gateway.Addr, None: s.Gateway.None,
		Reserved: s.Reserved, Routes: slices.Clone(s.HostRoutes), PoolID: pool.ID, CutFrom: s.Pool,
	}
	if !pool.Peer { // several networks can have an operator's
		r.Pool = pool.Nonce
	}
	if len(r.Reserved) == 0 {
		r.Reserved = nil // as a row has it that was read
	}
	if len(r.Routes) == 0 {
		r.Routes = nil
	}
	return r
}
