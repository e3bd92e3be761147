package neutronapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// The contract says that a port is in a trunk already; Neutron says by the error's type as what. It is asked for only where the provider has refused.

func errParentInUse(id sdn.ID) error {
	return refuse(http.StatusConflict, "ParentPortInUse", "Port %s is currently in use and is not eligible for use as a parent port.", id)
}

// trunkOf is the trunk of which a port is the parent; "" where there is none, or none can be found out.
func (s *server) trunkOf(ctx context.Context, parent sdn.ID) sdn.ID {
	for t, err := range s.p.FindTrunks(ctx, sdn.TrunkQuery{Parents: []sdn.ID{parent}}) {
		if err != nil {
			return ""
		}
		return t.ID
	}
	return ""
}

// asParent makes of the refusal of a port that is in a trunk, the parent or one of the subports asked for, that of a parent where it is one.
func (s *server) asParent(ctx context.Context, err error, parent sdn.ID, subports []sdn.Subport) error {
	if sdn.ReasonOf(err) != sdn.Exists {
		return err
	}
	var at int
	switch field := sdn.FieldOf(err); {
	case field == "parent":
	case strings.HasSuffix(field, ".port"):
		if _, bad := fmt.Sscanf(field, "subports[%d].port", &at); bad != nil || at >= len(subports) {
			return err
		}
		parent = subports[at].Port
	default:
		return err
	}
	if s.trunkOf(ctx, parent) != "" {
		return errParentInUse(parent)
	}
	return err
}

// removePort deletes a port at a revision, 0 for any.
func (s *server) removePort(ctx context.Context, id sdn.ID, revision int64) error {
	err := s.p.DeletePort(ctx, id, revision)
	if sdn.ReasonOf(err) != sdn.InUse || !s.p.Capabilities().Trunks {
		return err
	}
	if p, lost := s.p.Port(ctx, id); lost == nil && p.DeviceOwner == sdn.OwnerSubport {
		return refuse(http.StatusConflict, "PortInUseAsSubPort", "%v", err)
	}
	if s.trunkOf(ctx, id) != "" {
		return refuse(http.StatusConflict, "PortInUseAsTrunkParent", "%v", err)
	}
	return err
}
