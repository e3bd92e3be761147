package neutronapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// SubPort is a port that is reached through a trunk.
type SubPort struct {
	PortID string `json:"port_id"`
	Type   string `json:"segmentation_type"`
	VLAN   int    `json:"segmentation_id"`
}

const segmentVLAN = "vlan"

func encodeSubports(subports []sdn.Subport) []SubPort {
	out := make([]SubPort, len(subports))
	for i, s := range subports {
		out[i] = SubPort{PortID: string(s.Port), Type: segmentVLAN, VLAN: s.VLAN}
	}
	return out
}

func errTrunkDisabled(id sdn.ID) error {
	return refuse(http.StatusConflict, "TrunkDisabled", "Trunk %s is currently disabled.", id)
}

// checkSubports refuses what cannot be added to a trunk as it is.
func checkSubports(t sdn.Trunk, added []sdn.Subport) error {
	if t.Disabled {
		return errTrunkDisabled(t.ID)
	}
	for _, s := range added {
		switch {
		case s.Port == t.Parent:
			return errParentInUse(s.Port)
		case slices.ContainsFunc(t.Subports, func(have sdn.Subport) bool { return have.Port == s.Port }):
			return refuse(http.StatusConflict, "TrunkPortInUse", "Port %s is in use by another trunk.", s.Port)
		case slices.ContainsFunc(t.Subports, func(have sdn.Subport) bool { return have.VLAN == s.VLAN }):
			return refuse(http.StatusConflict, "DuplicateSubPort", "segmentation_type %s and segmentation_id %d already in use on trunk %s.", segmentVLAN, s.VLAN, t.ID)
		}
	}
	return nil
}

// checkLeaving refuses to take away what is not in the trunk.
func checkLeaving(t sdn.Trunk, leaving []sdn.ID) error {
	if t.Disabled {
		return errTrunkDisabled(t.ID)
	}
	for _, id := range leaving {
		if !slices.ContainsFunc(t.Subports, func(have sdn.Subport) bool { return have.Port == id }) {
			return refuse(http.StatusNotFound, "SubPortNotFound", "SubPort %s on trunk %s could not be found.", id, t.ID)
		}
	}
	return nil
}

// trunkSpec asks for a trunk with its first subports.
type trunkSpec struct {
	sdn.TrunkSpec
	subports []sdn.Subport
}

func (s *server) trunks() tableOf[sdn.Trunk] {
	type N = sdn.Trunk
	type S = trunkSpec
	type P = sdn.TrunkPatch
	remove, removeIf := s.checked(sdn.NounTrunk, s.checkEnabled, s.p.DeleteTrunk)
	t := &table{
		member: "trunk", collection: "trunks", title: "trunk",
		meta: via(func(n *N) sdn.Meta { return n.Meta }), shows: neutronMeta, tags: true,
		base: via(func(x *S) *sdn.Base { return &x.Base }), patch: via(func(p *P) *sdn.Patch { return &p.Patch }),
		fields: []field{
			{name: "port_id", is: isID, access: required, show: via(func(n *N) any { return string(n.Parent) }),
				post: set(func(x *S) *sdn.ID { return &x.Parent })},
			{name: "sub_ports", is: kindOf((*body).firstSubports), show: via(func(n *N) any { return encodeSubports(n.Subports) }),
				post: set(func(x *S) *[]sdn.Subport { return &x.subports })},
			{name: "status", show: via(func(*N) any { return active })}, // the ports tell theirs
			{name: "admin_state_up", is: isBool, show: via(func(n *N) any { return !n.Disabled }),
				post: setNot(func(x *S) *bool { return &x.Disabled }),
				put:  changeNot(func(p *P) **bool { return &p.Disabled })},
		},
		get: getCall{made[N], func(ctx context.Context, id sdn.ID) (any, error) { return pointer(s.p.Trunk(ctx, id)) }},
		find: func(ctx context.Context, f *filter) iter.Seq2[any, error] {
			return pointers(s.p.FindTrunks(ctx, sdn.TrunkQuery{Match: f.match(), Parents: f.ids("port_id")}))
		},
		checkPost: hook(s.checkTrunk),
		create:    createCall{made[S], func(ctx context.Context, x any) (any, error) { return pointer(s.createTrunk(ctx, *x.(*S))) }},
		update: updateCall{made[P], func(ctx context.Context, id sdn.ID, p any) (any, error) {
			return pointer(s.p.UpdateTrunk(ctx, id, *p.(*P)))
		}},
		remove:   remove,
		removeIf: removeIf,
	}
	return tableOf[N]{t}
}

func (s *server) checkTrunk(c *call, b *body, spec *trunkSpec) {
	if b.err != nil {
		return
	}
	_, err := s.ports().own(c, spec.Parent)
	if err == nil && slices.ContainsFunc(spec.subports, func(sub sdn.Subport) bool { return sub.Port == spec.Parent }) {
		err = errParentInUse(spec.Parent)
	}
	b.fail(errors.Join(err, s.checkFree(c, spec.subports)))
}

// firstSubports are those of a new trunk, of which Neutron checks the form as it does of any attribute.
func (b *body) firstSubports(name string) *[]sdn.Subport {
	return b.subportsOr(name, func(message string, args ...any) error {
		return badRequest("Invalid input for sub_ports. Reason: " + fmt.Sprintf(message, args...) + ".")
	})
}

// subports are those that a trunk gets later.
func (b *body) subports() *[]sdn.Subport { return b.subportsOr("sub_ports", invalidInput) }

// subportsOr reads a list of subports. All are VLANs that the caller chooses. What has not the form of a list of subports is refused by malformed.
func (b *body) subportsOr(name string, malformed func(message string, args ...any) error) *[]sdn.Subport {
	seen := map[sdn.ID]bool{}
	vlans := map[int]bool{}
	return objects(b, name, func(b *body) sdn.Subport {
		id := or(b.id("port_id"))
		kind, given := b.take("segmentation_type")
		switch {
		case id == "":
			b.fail(malformed("A valid port UUID must be specified"))
		case seen[id]:
			b.fail(malformed("Non unique UUID for subport: '%s'", id))
		case !given || !b.has("segmentation_id"):
			b.fail(malformed("Invalid subport details: missing segmentation information. Must specify both segmentation_id and segmentation_type"))
		case kind != segmentVLAN:
			b.fail(invalidInput("Unknown segmentation_type '%s'", show(kind)))
		}
		out := sdn.Subport{Port: id, VLAN: or(b.integer("segmentation_id", -1<<31, 1<<31-1))}
		switch {
		case b.err != nil:
		case out.VLAN < 1 || out.VLAN > 4094:
			b.fail(invalidInput("Segmentation ID '%d' is not in range", out.VLAN))
		case vlans[out.VLAN]:
			b.fail(malformed("Segmentation ID '%d' for '%s' is not unique", out.VLAN, id))
		}
		seen[id], vlans[out.VLAN] = true, true
		return out
	})
}

// checkFree wants ports that are to become subports to be there for the caller, and no machine's.
func (s *server) checkFree(c *call, subports []sdn.Subport) error {
	for _, sub := range subports {
		p, err := s.ports().own(c, sub.Port)
		if err != nil {
			return err
		}
		if p.DeviceID != "" {
			return refuse(http.StatusConflict, "PortInUse", "Unable to complete operation on port %s for network %s. Port already has an attached device %s.", p.ID, p.Network, p.DeviceID)
		}
	}
	return nil
}

// createTrunk makes a trunk with its subports, or none: by two calls where the provider cannot do it by one. One of its Key that is there already gets
// those that it lacks.
func (s *server) createTrunk(ctx context.Context, spec trunkSpec) (sdn.Trunk, error) {
	if atomic, ok := s.p.(sdn.AtomicTrunks); ok {
		t, err := atomic.EnsureTrunkWith(ctx, spec.TrunkSpec, spec.subports)
		return t, s.asParent(ctx, err, spec.Parent, spec.subports)
	}
	t, err := s.p.EnsureTrunk(ctx, spec.TrunkSpec)
	if err != nil || len(spec.subports) == 0 {
		return t, s.asParent(ctx, err, spec.Parent, nil)
	}
	fresh := len(t.Subports) == 0
	if _, err := s.p.AttachSubports(ctx, t.ID, spec.subports); err != nil {
		if fresh && spec.Key.IsZero() {
			err = errors.Join(err, s.p.DeleteTrunk(context.WithoutCancel(ctx), t.ID))
		}
		return t, s.asParent(ctx, err, spec.Parent, spec.subports)
	}
	return s.p.Trunk(ctx, t.ID)
}

func (s *server) checkEnabled(ctx context.Context, id sdn.ID) error {
	if t, err := s.p.Trunk(ctx, id); err == nil && t.Disabled {
		return errTrunkDisabled(id)
	}
	return nil
}

// serveSubports adds the paths of a trunk's subports. What changes them answers with the trunk as it is then, without a name around it.
func (s *server) serveSubports() {
	t := s.trunks()
	s.read("/v2.0/trunks/{id}/get_subports", func(w http.ResponseWriter, c *call) error {
		trunk, err := t.need(c, c.target())
		if err == nil {
			writeJSON(w, http.StatusOK, map[string][]SubPort{"sub_ports": encodeSubports(trunk.Subports)})
		}
		return err
	})
	subports := func(read func(*body) *[]sdn.Subport, change func(*call, sdn.Trunk, []sdn.Subport) error) action[sdn.Trunk] {
		return action[sdn.Trunk]{locked: true, read: func(b *body) acting[sdn.Trunk] {
			asked := or(read(b))
			return func(c *call, trunk sdn.Trunk, _ int64) (any, error) {
				if err := change(c, trunk, asked); err != nil {
					return nil, err
				}
				trunk, err := s.p.Trunk(c.ctx(), trunk.ID)
				return json.RawMessage(appendObject(nil, t.resource().prepare().all, &trunk, view{admin: true})), err
			}
		}}
	}
	t.act(s, "add_subports", subports((*body).subports, func(c *call, t sdn.Trunk, added []sdn.Subport) error {
		if err := errors.Join(checkSubports(t, added), s.checkFree(c, added)); err != nil {
			return err
		}
		_, err := s.p.AttachSubports(c.ctx(), t.ID, added)
		return s.asParent(c.ctx(), err, t.Parent, added)
	}))
	t.act(s, "remove_subports", subports((*body).leaving, func(c *call, t sdn.Trunk, removed []sdn.Subport) error {
		ids := make([]sdn.ID, len(removed))
		for i, sub := range removed {
			ids[i] = sub.Port
		}
		if err := checkLeaving(t, ids); err != nil {
			return err
		}
		return s.p.DetachSubports(c.ctx(), t.ID, ids)
	}))
}

// leaving reads a list of subports of which the ports count.
func (b *body) leaving() *[]sdn.Subport {
	return objects(b, "sub_ports", func(b *body) sdn.Subport {
		out := sdn.Subport{Port: or(b.id("port_id"))}
		if out.Port == "" {
			b.fail(invalidInput("A valid port UUID must be specified"))
		}
		b.take("segmentation_type")
		b.take("segmentation_id")
		return out
	})
}
