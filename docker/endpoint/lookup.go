package endpoint

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// find returns the row of an endpoint of a network. One without a row, of kuryr-libnetwork or of a
// database that was lost, gets it.
func (s *Service) find(ctx context.Context, id, networkID string) (endpointRow, error) {
	row, known := s.endpoints.Get(id)
	switch {
	case known && row.Phase == reconcile.Deleting:
		return row, api.Refuse("there is no endpoint %s", id)
	case known && row.Spec.Network != networkID:
		return row, api.Refuse("endpoint %s is not of network %s", id, networkID)
	case known && row.Last.Port.ID == "": // the answer of the SDN was not stored
		return s.again(ctx, row)
	case known:
		return row, nil
	}
	port, found, err := s.LookUp(ctx, id)
	if err == nil && !found {
		err = api.Refuse("there is no endpoint %s", id)
	}
	if err != nil {
		return row, err
	}
	n, err := s.Networks.Find(ctx, networkID)
	if err != nil {
		return row, err
	}
	switch {
	case n.ID != port.Network:
		return row, api.Refuse("endpoint %s is not of network %s", id, networkID)
	case port.Host != s.Host:
		return row, api.Refuse("endpoint %s is bound to host %q", id, api.Clip(port.Host, 100))
	}
	if err := s.importFound(ctx, id, networkID, n, port); err != nil {
		return row, err
	}
	row, known = s.endpoints.Get(id)
	if !known {
		return row, errors.New("endpoint was deleted concurrently")
	}
	return row, nil
}

// again sets a row once more, for the answer.
func (s *Service) again(ctx context.Context, row endpointRow) (endpointRow, error) {
	row, err := identity.Again(ctx, s.endpoints, row)
	return row, explain(row.Key, err)
}

// LookUp finds the port of an endpoint in the SDN. An existing port with a device of its own is
// found by its tags.
func (s *Service) LookUp(ctx context.Context, id string) (sdn.Port, bool, error) {
	for _, q := range []sdn.PortQuery{
		{Devices: []string{id}},
		{Match: sdn.Match{Tags: append(identity.IDTags(id), identity.TagExistingPort)}},
	} {
		for p, err := range s.SDN.FindPorts(ctx, q) {
			if err != nil {
				return sdn.Port{}, false, err
			}
			if s.IsOwn(p) && p.DeviceID == id || s.Names.Attached(p, s.Host) && identity.IsExistingOf(p, id) {
				return p, true, nil
			}
		}
	}
	return sdn.Port{}, false, nil
}

// DropGone deletes endpoints whose port the SDN no longer has, or has for another endpoint: that was
// changed while no process was running. An endpoint that is being started, or whose interface a
// container has, stays.
func (s *Service) DropGone(ctx context.Context) error {
	rows := map[string]sdn.Port{}
	var ids []sdn.ID
	for r := range s.endpoints.Rows() {
		if port := r.Last.Port; r.Phase == reconcile.Wanted && port.ID != "" {
			rows[r.Key] = port
			ids = append(ids, port.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	for p, err := range s.SDN.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{IDs: ids}}) {
		if err != nil {
			return err
		}
		if id := identity.EndpointOf(p); rows[id].ID == p.ID {
			delete(rows, id)
		}
	}
	var errs []error
	for id, port := range rows {
		err := s.endpoints.RemoveTreeIf(ctx, id, func(ctx context.Context, r endpointRow) (bool, error) {
			if r.Last.Port.ID != port.ID {
				return false, nil // it has another by now
			}
			stale, err := s.isStale(ctx, r)
			if err == nil && !stale {
				s.Log.WarnContext(ctx, "the SDN does not have the port of an endpoint that is used",
					"endpoint", id, "port", port.ID)
			}
			return stale, err
		})
		errs = append(errs, s.removed(ctx, id, port, err))
	}
	return errors.Join(errs...)
}

// importFound makes the rows of an endpoint whose port was found. Whether it publishes anything is
// unknown.
func (s *Service) importFound(
	ctx context.Context, id, networkID string, n network.View, port sdn.Port,
) error {
	e := Spec{
		Network: networkID, SDNNetwork: n.ID, Existing: !s.IsOwn(port),
		Subnets: lasting(n.Subnets), MTU: n.MTU, Internal: !n.Options.Routed(),
	}
	e.readTags(port)
	port.Status = ""
	row := endpointRow{
		Object: reconcile.Object{Key: id}, Phase: reconcile.Wanted, Spec: e, Last: Last{Port: port},
		Done: true, Owners: owners(n.Ref), Claims: e.claims(),
	}
	rows := s.parts(id, port)
	rows.endpoints = append(rows.endpoints, row)
	return s.store(ctx, rows)
}

// importUnknown makes rows of what an endpoint without a row may have, so that it is deleted:
// docker.db may be lost, or may not have had room. all includes the endpoint itself.
func (s *Service) importUnknown(ctx context.Context, id string, all bool) error {
	if s.known(id) {
		return nil
	}
	rows := s.parts(id, sdn.Port{})
	if all {
		rows.endpoints = append(rows.endpoints, endpointRow{
			Object: reconcile.Object{Key: id}, Phase: reconcile.Wanted, Done: true,
		})
	}
	return s.store(ctx, rows)
}

// imported are rows that are made without a request.
type imported struct {
	endpoints    []endpointRow
	plugs        []plugRow
	publications []publicationRow
	floating     []floatingRow
}

func (s *Service) parts(id string, port sdn.Port) imported {
	o, phase := reconcile.Object{Key: id}, reconcile.Wanted
	return imported{
		plugs: []plugRow{{
			Object: o, Phase: phase, Done: true, Owners: s.owner(id), Spec: PlugSpec{Port: port},
		}},
		publications: []publicationRow{{
			Object: o, Phase: phase, Done: true, Owners: s.plugOwners(id), Last: PublicationLast{Unknown: true},
		}},
		floating: []floatingRow{{
			Object: o, Phase: phase, Done: true, Owners: s.plugOwners(id),
		}},
	}
}

// store commits imported rows. The endpoints are last: an endpoint that has a row has all its rows,
// and the others are imported again after a crash.
func (s *Service) store(ctx context.Context, rows imported) error {
	err := s.floating.Import(ctx, rows.floating)
	if err == nil {
		err = s.publications.Import(ctx, rows.publications)
	}
	if err == nil {
		err = s.plugs.Import(ctx, rows.plugs)
	}
	if err == nil {
		err = s.endpoints.Import(ctx, rows.endpoints)
	}
	return err
}

func (s *Service) owner(id string) []string { return []string{s.endpoints.Ref(id)} }

func (s *Service) plugOwners(id string) []string {
	return []string{s.endpoints.Ref(id), s.plugs.Ref(id)}
}

// readTags reads what the tags of a port store of its endpoint.
func (e *Spec) readTags(port sdn.Port) {
	if port.Key.Kind != identity.KindEndpoint {
		e.Port = port.ID
	}
	e.Publish = firstValue(port.Tags, identity.TagPublish)
	e.Floating = firstValue(port.Tags, identity.TagFloating) + firstValue(port.Tags, identity.TagPublishAt)
	if name := firstValue(port.Tags, identity.TagIfname); api.ValidIfname(name) {
		e.Ifname = name
	}
	e.Binding, _ = netip.ParseAddr(firstValue(port.Tags, identity.TagBinding))
}

// claims are the resources of an endpoint that gets a row without a request.
func (e Spec) claims() []string {
	if e.Port == "" {
		return nil
	}
	return []string{boundTo(e.Port)}
}

func firstValue(tags []string, prefix string) string {
	values := identity.Values(tags, prefix)
	return append(slices.Clone(values), "")[0]
}

// OperInfo answers EndpointOperInfo with facts about the port. It never fails: older engines do not
// start a container without the answer.
func (s *Service) OperInfo(ctx context.Context, r *api.EndpointRequest) (api.OperInfoResponse, error) {
	id, value := r.EndpointID, map[string]any{}
	port, found, err := s.portOf(ctx, id)
	if err != nil {
		s.Log.WarnContext(ctx, "endpoint facts unavailable", "endpoint", id, "err", err)
	}
	if !found {
		return api.OperInfoResponse{Value: value}, nil
	}
	value["kuryr.port.id"] = string(port.ID)
	value["kuryr.port.mac"] = port.MAC.String()
	value["kuryr.network.id"] = string(port.Network)
	if port.Status != "" {
		value["kuryr.port.status"] = string(port.Status)
	}
	exposed := Exposed(port.Tags)
	if plug, ok := s.plugs.Get(id); ok && len(plug.Spec.Exposed) > 0 {
		exposed = plug.Spec.Exposed
	}
	if exposed != nil {
		value["kuryr.port.exposed"] = exposed
	}
	return api.OperInfoResponse{Value: value}, nil
}

// portOf returns the port of an endpoint, with its status unless it is an existing one: for those
// the SDN would be asked twice in each start.
func (s *Service) portOf(ctx context.Context, id string) (sdn.Port, bool, error) {
	row, known := s.endpoints.Get(id)
	switch {
	case !known || row.Last.Port.ID == "":
		return s.LookUp(ctx, id)
	case row.Spec.Existing:
		return row.Last.Port, true, nil
	}
	query := sdn.PortQuery{Match: sdn.Match{IDs: []sdn.ID{row.Last.Port.ID}}}
	port, found, err := sdn.First(s.SDN.FindPorts(ctx, query))
	if !found {
		port = row.Last.Port
	}
	return port, true, err
}
