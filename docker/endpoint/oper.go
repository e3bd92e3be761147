package endpoint

import (
	"context"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/sdn"
)

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
