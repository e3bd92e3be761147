//go:build linux

package bind

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/kuryr/kuryr/bind/ovsdb"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// DefaultIntegrationBridge is the Open vSwitch bridge that OVN's controller and Neutron's
// agents wire.
const DefaultIntegrationBridge = "br-int"

// userSpace is the datapath_type of Open vSwitch bridges that forward in user space.
const userSpace = "netdev"

// maxAsks is how often the switch's database is asked: once, and again where the answer
// was lost or another was faster.
const maxAsks = 3

// askTime bounds all of that.
const askTime = 10 * time.Second

// followTime bounds the wait for a switch that is told of a removal. It takes
// milliseconds if its daemon runs.
const followTime = time.Second

// owner is what the peer's script writes too: who may remove the switch's port.
const owner = "kuryr"

// ovsSeat puts host ends on Open vSwitch's integration bridge: by one transaction in the
// switch's database, which the switch and the SDN's controller or agent on this host
// follow. The port's whole id is in it, by which they know the port.
type ovsSeat struct {
	socket string // of the database
	bridge string // where the VIF names none
	reaper *reaper
	log    *slog.Logger
}

// bridgeOf is the name of the port's Open vSwitch bridge.
func (o *ovsSeat) bridgeOf(port sdn.Port) string {
	if name := port.VIF.Details[sdn.DetailBridge]; name != "" {
		return name
	}
	return o.bridge
}

// hybrid reports whether the port has a Linux bridge of its own between its host end and
// the switch, for the agent's iptables.
func hybrid(port sdn.Port) bool {
	is, err := strconv.ParseBool(port.VIF.Details[sdn.DetailHybrid])
	return err == nil && is
}

// uplink is the name of the link that goes into the switch.
func uplink(port sdn.Port) string {
	if hybrid(port) {
		return hybridSwitchEnd + port.ID.Short()
	}
	return HostName(port.ID)
}

// externalIDs are what OVN's controller and Neutron's agents know the port by, and what
// the peer's script writes besides.
func externalIDs(port sdn.Port) map[string]string {
	ids := map[string]string{
		"iface-id":     string(port.ID),
		"iface-status": "active",
		"attached-mac": port.MAC.String(),
		"owner":        owner,
	}
	if port.DeviceID != "" {
		if hybrid(port) {
			ids["vm-id"] = port.DeviceID // as Nova's hybrid plug had it, and so the peer's
		} else {
			ids["vm-uuid"] = port.DeviceID
		}
	}
	return ids
}

// ask does something with the database, which must begin by looking: it is done again
// where an answer was lost, or where another did the same at the same time and the
// database, which keeps names unique, refused.
func (o *ovsSeat) ask(ctx context.Context, do func(context.Context, *ovsdb.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for n := 1; ; n++ {
		conn, err := ovsdb.Dial(ctx, o.socket)
		if err != nil {
			return err
		}
		err = do(ctx, conn)
		conn.Close()
		var refused *ovsdb.OpError
		again := sdn.IsUnavailable(err) || errors.As(err, &refused) && refused.Code == ovsdb.ConstraintViolation
		if !again || n == maxAsks || ctx.Err() != nil {
			return err
		}
	}
}

// find looks for the bridge in the switch's database before anything is made.
func (o *ovsSeat) find(ctx context.Context, s *socket, ns namespace, i Interface, make bool) (place, error) {
	now, err := o.look(ctx, i.Port)
	if err != nil {
		return place{}, err
	}
	if now.iface != "" && !now.belongs(i.Port) {
		return place{}, now.taken(uplink(i.Port))
	}
	p := place{name: now.name, wholeSums: now.datapath == userSpace, known: now.iface != ""}
	if !hybrid(i.Port) {
		return p, nil
	}
	p.name = hybridBridge + i.Port.ID.Short()
	if _, gone := s.index(uplink(i.Port)); p.known && make && errors.Is(gone, errNoLink) {
		if err := o.unjoin(ctx, i.Port); err != nil {
			return place{}, err
		}
	}
	p.known = false // of the link into the switch, not of the host end
	p.bridge, err = o.findHybrid(s, ns, i, make)
	return p, err
}

// look reads what the switch's database has of the port.
func (o *ovsSeat) look(ctx context.Context, port sdn.Port) (now inSwitch, err error) {
	err = o.ask(ctx, func(ctx context.Context, conn *ovsdb.Conn) error {
		now, err = look(ctx, conn, o.bridgeOf(port), uplink(port))
		return err
	})
	return now, err
}

// inSwitch is what the switch's database has of a bridge and of a link's name.
type inSwitch struct {
	bridge      ovsdb.UUID
	datapath    string
	port, iface ovsdb.UUID        // empty if none has the name
	only        bool              // the interface is the port's one and only
	on          bool              // the port is on the bridge
	ids         map[string]string // the interface's external ids
	name        string            // of the bridge
}

func noBridge(name string) error {
	return &sdn.Error{Kind: sdn.KindNotFound, Noun: "bridge", ID: name, Detail: "Open vSwitch has no bridge of this name"}
}

// look reads it. A bridge that is not there IsNotFound.
func look(ctx context.Context, conn *ovsdb.Conn, bridge, name string) (inSwitch, error) {
	named := func(n string) []ovsdb.Condition { return []ovsdb.Condition{ovsdb.Equals("name", n)} }
	got, err := conn.Transact(ctx,
		ovsdb.Select("Bridge", named(bridge), "_uuid", "datapath_type"),
		ovsdb.Select("Port", named(name), "_uuid", "interfaces"),
		ovsdb.Select("Interface", named(name), "_uuid", "external_ids"))
	if err != nil {
		return inSwitch{}, err
	}
	if len(got[0].Rows) == 0 {
		return inSwitch{}, noBridge(bridge)
	}
	now := inSwitch{name: bridge, bridge: got[0].Rows[0].UUID("_uuid"), datapath: got[0].Rows[0].Text("datapath_type")}
	if len(got[2].Rows) > 0 {
		now.iface, now.ids = got[2].Rows[0].UUID("_uuid"), got[2].Rows[0].Map("external_ids")
	}
	if len(got[1].Rows) == 0 {
		return now, nil
	}
	now.port = got[1].Rows[0].UUID("_uuid")
	of := got[1].Rows[0].UUIDs("interfaces")
	now.only = len(of) == 1 && of[0] == now.iface
	on, err := conn.Transact(ctx, ovsdb.Select(
		"Bridge", append(named(bridge), ovsdb.Includes("ports", now.port)), "_uuid",
	))
	if err != nil {
		return inSwitch{}, err
	}
	now.on = len(on[0].Rows) > 0
	return now, nil
}

// belongs reports whether the interface is the port's and Kuryr's.
func (n inSwitch) belongs(port sdn.Port) bool {
	return n.only && n.ids["owner"] == owner && n.ids["iface-id"] == string(port.ID)
}

func (n inSwitch) taken(name string) error {
	return &sdn.Error{
		Kind: sdn.KindConflict, Reason: sdn.Exists, Noun: "interface", ID: name, Field: "name",
		Detail: fmt.Sprintf(
			"Open vSwitch has an interface of this name that belongs to something else (iface-id %q, "+
				"owner %q)",
			n.ids["iface-id"], n.ids["owner"],
		),
	}
}

// holds reports whether the interface is on the bridge with these external ids.
func (n inSwitch) holds(ids map[string]string) bool {
	for k, v := range ids {
		if n.ids[k] != v {
			return false
		}
	}
	return n.on
}

// join puts the link that goes into the switch on the bridge: it does what is missing in
// one transaction. For a fresh link all is missing, as find has seen: should it not be,
// then the database refuses the name, and tells what has it.
func (o *ovsSeat) join(ctx context.Context, port sdn.Port, fresh bool) error {
	name, ids := uplink(port), externalIDs(port)
	return o.ask(ctx, func(ctx context.Context, conn *ovsdb.Conn) (err error) {
		now := inSwitch{name: o.bridgeOf(port)}
		if !fresh {
			if now, err = look(ctx, conn, now.name, name); err != nil {
				return err
			}
		}
		fresh = false // a second time anything may be there
		if (now.iface != "" || now.port != "") && !now.belongs(port) {
			return now.taken(name)
		}
		if now.holds(ids) {
			return nil
		}
		done, err := conn.Transact(ctx, now.joining(name, ids)...)
		failpoint.Here("bind.ovs.transacted")
		if err == nil && done[len(done)-1].Count == 0 {
			return noBridge(now.name) // and what no bridge has is gone with the transaction
		}
		return err
	})
}

// joining are the operations that put the interface on the bridge, and off any other. The
// last is done to the bridge.
func (n inSwitch) joining(name string, ids map[string]string) []ovsdb.Op {
	here := []ovsdb.Condition{ovsdb.Equals("name", n.name)}
	if n.port == "" {
		return []ovsdb.Op{
			ovsdb.Comment("kuryr: plug " + name),
			ovsdb.Insert("Interface", "interface", map[string]any{"name": name, "external_ids": ovsdb.Map(ids)}),
			ovsdb.Insert("Port", "port", map[string]any{"name": name, "interfaces": ovsdb.Set(ovsdb.Named("interface"))}),
			ovsdb.Mutate("Bridge", here, ovsdb.Mutation{"ports", "insert", ovsdb.Set(ovsdb.Named("port"))}),
		}
	}
	keys := make([]string, 0, len(ids))
	for k := range ids {
		keys = append(keys, k)
	}
	elsewhere := []ovsdb.Condition{ovsdb.Differs("name", n.name), ovsdb.Includes("ports", n.port)}
	return []ovsdb.Op{
		ovsdb.Comment("kuryr: plug " + name + " again"),
		ovsdb.Mutate("Interface", []ovsdb.Condition{ovsdb.Equals("_uuid", n.iface)},
			ovsdb.Mutation{"external_ids", "delete", ovsdb.Set(keys...)}, // an insert keeps the value that a key has
			ovsdb.Mutation{"external_ids", "insert", ovsdb.Map(ids)}),
		ovsdb.Mutate("Bridge", elsewhere, ovsdb.Mutation{"ports", "delete", n.port}),
		ovsdb.Mutate("Bridge", here, ovsdb.Mutation{"ports", "insert", n.port}),
	}
}

// joined looks.
func (o *ovsSeat) joined(ctx context.Context, port sdn.Port) (bool, error) {
	now, err := o.look(ctx, port)
	return err == nil && now.belongs(port) && now.holds(externalIDs(port)), err
}

// leave takes the port off the switch. Where the switch cannot be told, a hybrid port's
// own links go all the same.
func (o *ovsSeat) leave(ctx context.Context, s *socket, ns namespace, port sdn.Port) error {
	err := o.unjoin(ctx, port)
	failpoint.Here("bind.ovs.left")
	if hybrid(port) {
		err = errors.Join(err, o.retireHybrid(s, ns, port.ID))
	}
	return err
}

// unjoin takes off the switch whatever is Kuryr's and the port's, under whatever name and
// on whatever bridge.
func (o *ovsSeat) unjoin(ctx context.Context, port sdn.Port) error {
	return o.ask(ctx, func(ctx context.Context, conn *ovsdb.Conn) error { return o.remove(ctx, conn, port) })
}

func (o *ovsSeat) remove(ctx context.Context, conn *ovsdb.Conn, port sdn.Port) error {
	ours := ovsdb.Map(map[string]string{"iface-id": string(port.ID), "owner": owner})
	got, err := conn.Transact(ctx, ovsdb.Select(
		"Interface", []ovsdb.Condition{ovsdb.Includes("external_ids", ours)}, "_uuid",
	))
	if err != nil || len(got[0].Rows) == 0 {
		return err
	}
	var find []ovsdb.Op
	for _, row := range got[0].Rows {
		// The one and only of its port: a bond is not ours.
		find = append(find, ovsdb.Select(
			"Port", []ovsdb.Condition{ovsdb.Equals("interfaces", ovsdb.Set(row.UUID("_uuid")))}, "_uuid",
		))
	}
	if got, err = conn.Transact(ctx, find...); err != nil {
		return err
	}
	// Ports that no bridge has, and interfaces that no port has, are gone with the transaction.
	ops := []ovsdb.Op{ovsdb.Comment("kuryr: unplug " + HostName(port.ID))}
	for _, r := range got {
		for _, row := range r.Rows {
			id := row.UUID("_uuid")
			ops = append(ops, ovsdb.Mutate(
				"Bridge", []ovsdb.Condition{ovsdb.Includes("ports", id)}, ovsdb.Mutation{"ports", "delete", id},
			))
		}
	}
	return o.follow(ctx, conn, ops...)
}

// follow does a transaction, and waits until the switch has followed it: a link that is
// taken off and another put on under the same name before it looks would be one to it,
// and it would go on with the first. A switch that does not look has none of this
// trouble, and is not waited for.
func (o *ovsSeat) follow(ctx context.Context, conn *ovsdb.Conn, ops ...ovsdb.Op) error {
	// The daemon copies next_cfg to cur_cfg when it has done all that was written before
	// (ovs-vswitchd.conf.db(5)).
	if err := conn.Watch(ctx, "Open_vSwitch", nil, "cur_cfg"); err != nil {
		return err
	}
	got, err := conn.Transact(ctx, append(ops,
		ovsdb.Mutate("Open_vSwitch", nil, ovsdb.Mutation{"next_cfg", "+=", 1}),
		ovsdb.Select("Open_vSwitch", nil, "next_cfg"))...)
	if err != nil {
		return err
	}
	failpoint.Here("bind.ovs.removed")
	last := got[len(got)-1].Rows
	if len(last) == 0 {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	for {
		now, err := conn.Transact(bounded, ovsdb.Select("Open_vSwitch", nil, "cur_cfg"))
		if err == nil && (len(now[0].Rows) == 0 || now[0].Rows[0].Number("cur_cfg") >= last[0].Number("next_cfg")) {
			return nil
		}
		if err == nil {
			err = conn.Changed(bounded)
		}
		if err != nil {
			o.log.Warn("Open vSwitch does not follow its database", "socket", o.socket, "err", err)
			return nil // it is written, whether or not it is followed yet
		}
	}
}
