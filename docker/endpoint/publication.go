package endpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/publish"
	"github.com/kuryr/kuryr/docker/publish/portproxy"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

type mode string

const (
	modeNone     mode = ""
	modeHost     mode = "host"     // at the host's addresses, by the SDN
	modeFloating mode = "floating" // by forwardings of a floating IP
	modeProxy    mode = "proxy"    // by a proxy of this process
)

// PublicationSpec is what an endpoint publishes, and what of it is opened by a security group.
type PublicationSpec struct {
	Port      sdn.ID
	Addresses []sdn.Address     `json:",omitempty"`
	Binding   netip.Addr        `json:",omitzero"`
	Mode      mode              `json:",omitempty"`
	Ports     []publish.Port    `json:",omitempty"`
	Without4  bool              `json:",omitempty"` // another endpoint of the container publishes IPv4
	Without6  bool              `json:",omitempty"`
	Sandbox   string            `json:",omitempty"`
	External  sdn.ID            `json:",omitempty"` // the external network of an own floating IP
	At        netip.Addr        `json:",omitzero"`  // of the floating IP; invalid: any
	Existing  sdn.ID            `json:",omitempty"` // the floating IP if it is an existing one
	Exposed   []api.ExposedPort `json:",omitempty"`
}

// PublicationLast is what is published.
type PublicationLast struct {
	Ports      []sdn.PublishedPort `json:",omitempty"`
	Proxied    []portproxy.Forward `json:",omitempty"`
	FloatingIP sdn.ID              `json:",omitempty"`
	Group      sdn.ID              `json:",omitempty"` // of exposed ports
	// Unknown says that there may be more: the row was made for an endpoint without one.
	Unknown bool `json:",omitempty"`
}

func (p PublicationSpec) without(six bool) PublicationSpec {
	if six {
		p.Without6 = true
	} else {
		p.Without4 = true
	}
	return p
}

// startPublication listens again for what a process that was killed has not stored, and forgets
// proxies that a start of the kernel has ended with their containers.
func startPublication(r publicationRow, rebooted bool) reconcile.Action {
	switch {
	case !rebooted && r.Spec.Mode == modeProxy && !r.Done:
		return reconcile.Ensure
	case !rebooted:
		return reconcile.Keep
	case r.Spec.Mode == modeProxy && len(r.Spec.Exposed) == 0:
		return reconcile.Drop
	}
	return reconcile.Delete
}

type publicationTarget struct{ *Service }

func (s *Service) publisher() *publish.Publisher {
	return &publish.Publisher{SDN: s.SDN, Ports: s.HostPorts, Proxy: s.Proxy, Log: s.Log}
}

func (s *Service) published(id string, key sdn.Key, p PublicationSpec) publish.Endpoint {
	port := sdn.Port{Meta: sdn.Meta{ID: p.Port}, Addresses: p.Addresses}
	return publish.Endpoint{ID: id, Key: key, Port: port, Binding: p.Binding}
}

func (s *Service) publishKey(o reconcile.Object) sdn.Key {
	return s.Names.Key(identity.KindPublish, o.Key, o)
}

// forwardKey is the Key of an endpoint's own floating IP that forwards.
func (s *Service) forwardKey(o reconcile.Object) sdn.Key {
	return s.Names.Key(identity.KindPublish, o.Key+"/4", o)
}

// Ensure implements reconcile.Target. After an error the caller withdraws what is left.
func (t publicationTarget) Ensure(
	ctx context.Context, o reconcile.Object, p PublicationSpec, last PublicationLast,
) (PublicationLast, error) {
	if len(p.Exposed) > 0 {
		group, err := t.openExposed(ctx, o, p)
		if err != nil {
			return last, identity.Outcome(err, true)
		}
		last.Group = group
	}
	var err error
	e, ports := t.published(o.Key, t.publishKey(o), p), slices.Clone(p.Ports)
	switch p.Mode {
	case modeHost:
		without := map[bool]bool{false: p.Without4, true: p.Without6}
		last.Ports, err = t.publisher().AtHost(ctx, e, ports, without)
	case modeFloating:
		last.FloatingIP, err = t.forward(ctx, o, p, ports)
	case modeProxy:
		err = t.publisher().ByProxy(ctx, e, p.Sandbox, last.Proxied, ports)
		last.Proxied = t.Proxy.Forwards(o.Key)
	}
	return last, identity.Outcome(err, true)
}

func (t publicationTarget) forward(
	ctx context.Context, o reconcile.Object, p PublicationSpec, ports []publish.Port,
) (sdn.ID, error) {
	f := sdn.FloatingIP{Meta: sdn.Meta{ID: p.Existing}, Address: p.At}
	if p.Existing == "" {
		var err error
		spec := sdn.FloatingIPSpec{Base: sdn.Base{Key: t.forwardKey(o)}, Network: p.External, Address: p.At}
		if f, err = t.SDN.EnsureFloatingIP(ctx, spec); err != nil {
			return "", err
		}
	}
	target, _ := floatingTarget(p.Port, p.Addresses, "") // Program checked it
	return f.ID, t.publisher().AtFloatingIP(ctx, o.Key, f, target, ports)
}

// Delete implements reconcile.Target. What the row has decides what is deleted: the SDN's
// capabilities may be unknown before its first answer.
func (t publicationTarget) Delete(
	ctx context.Context, o reconcile.Object, p PublicationSpec, last PublicationLast,
) error {
	if !t.isReplaced(o) {
		t.Proxy.StopAll(o.Key)
	}
	host, floating := p.Mode == modeHost, p.Mode == modeFloating
	group := len(p.Exposed) > 0 || last.Group != ""
	if last.Unknown {
		var err error
		if p, err = t.search(ctx, o, p); err != nil {
			return err
		}
		can := t.SDN.Capabilities()
		host, floating = can.Forwards && can.HostAddresses, can.Forwards && !can.HostAddresses
		group = group || can.SecurityGroups
	}
	var parts []func() error
	if group {
		parts = append(parts, func() error { return t.closeExposed(ctx, o, last.Group) })
	}
	if host {
		parts = append(parts, func() error { return t.withdraw(ctx, o, p, last) })
	}
	if floating {
		parts = append(parts, func() error { return t.endForwards(ctx, o, p, last) })
	}
	// Any part that was not found may be what the SDN may still make.
	var missing error
	for _, end := range parts {
		switch err := absent(end()); {
		case errors.Is(err, reconcile.ErrAbsent):
			missing = err
		case err != nil:
			return err
		}
	}
	return missing
}

// isReplaced reports whether the endpoint publishes again while what a call without an answer may
// have made for it is looked for. Only what has a Key differs between the two.
func (s *Service) isReplaced(o reconcile.Object) bool {
	now, ok := s.publications.Get(o.Key)
	return ok && now.Object != o
}

// search completes the spec of an endpoint without one, if the SDN has its port. After it the SDN's
// capabilities are known. It returns reconcile.ErrAbsent if another host has the port.
func (t publicationTarget) search(
	ctx context.Context, o reconcile.Object, p PublicationSpec,
) (PublicationSpec, error) {
	if err := t.SDN.Ping(ctx); err != nil {
		return p, err
	}
	port, found, err := t.LookUp(ctx, o.Key)
	switch {
	case err != nil || !found:
		return p, err
	case identity.Elsewhere(port, t.Host):
		return p, reconcile.ErrAbsent
	}
	p.Port = port.ID
	if p.Existing == "" {
		p.Existing, err = t.existingForwarder(ctx, port)
	}
	return p, err
}

// withdraw ends what the endpoint publishes at the host. It returns reconcile.ErrAbsent if there is
// nothing.
func (t publicationTarget) withdraw(
	ctx context.Context, o reconcile.Object, p PublicationSpec, last PublicationLast,
) error {
	e, ports, host := t.published(o.Key, t.publishKey(o), p), last.Ports, t.publisher()
	if t.isReplaced(o) {
		host.Ports = nil
	}
	if len(ports) == 0 {
		there, err := t.SDN.Publication(ctx, e.Key)
		if err != nil {
			return err
		}
		ports = there.Ports
	}
	if err := host.Withdraw(ctx, e); err != nil {
		return err
	}
	if len(ports) == 0 {
		return reconcile.ErrAbsent
	}
	return nil
}

// endForwards deletes the endpoint's own floating IP, or the forwardings of an existing one. A port
// of Kuryr's would take these along when it is deleted, an existing port stays. It returns
// reconcile.ErrAbsent if an own floating IP is not found. Forwardings have no Key and are not looked
// for later: those that appear may be another endpoint's.
func (t publicationTarget) endForwards(
	ctx context.Context, o reconcile.Object, p PublicationSpec, last PublicationLast,
) error {
	if p.Existing != "" {
		if t.isReplaced(o) {
			return nil
		}
		query := sdn.ForwardQuery{FloatingIPs: []sdn.ID{p.Existing}, Ports: []sdn.ID{p.Port}}
		forwards, err := sdn.All(t.SDN.FindForwards(ctx, query))
		if err != nil || len(forwards) == 0 {
			return identity.IgnoreAbsent(err)
		}
		var ids []sdn.ID
		for _, f := range forwards {
			ids = append(ids, f.ID)
		}
		return identity.IgnoreAbsent(t.SDN.DeleteForwards(ctx, p.Existing, ids))
	}
	if last.FloatingIP != "" {
		return identity.IgnoreAbsent(t.SDN.DeleteFloatingIP(ctx, last.FloatingIP))
	}
	return t.deleteOwnFloatingIP(ctx, t.forwardKey(o))
}

// restoreProxies starts the proxies of earlier processes again. One whose container is gone has no
// port, which another container may have now.
func (s *Service) restoreProxies(ctx context.Context) {
	for r := range s.publications.Rows() {
		if r.Phase != reconcile.Wanted {
			continue
		}
		if slices.ContainsFunc(r.Last.Proxied, isGone) {
			if err := s.publications.RemoveLater(ctx, r.Key); err != nil {
				s.Log.WarnContext(ctx, "publication of a container that is gone not deleted", "endpoint", r.Key, "err", err)
			}
			continue
		}
		for _, f := range r.Last.Proxied {
			if err := s.Proxy.Start(r.Key, f); err != nil {
				s.Log.WarnContext(ctx, "published port not restored", "endpoint", r.Key, "listen", f.Listen, "err", err,
					"used_by", s.publisher().Users(hostports.Port{Protocol: f.Protocol, Address: f.Listen}))
			}
		}
	}
}

// isGone reports whether the namespace of a forward's container does not exist.
func isGone(f portproxy.Forward) bool {
	_, err := os.Stat(f.Namespace)
	return errors.Is(err, os.ErrNotExist)
}

// RestoreHostPorts reserves the host ports of all publications again, after a restart. A
// publication without a row gets one.
func (s *Service) RestoreHostPorts(ctx context.Context) error {
	// An SDN in another process tells its capabilities with its first answer.
	if err := s.SDN.Ping(ctx); err != nil {
		return err
	}
	if can := s.SDN.Capabilities(); !can.Forwards || !can.HostAddresses {
		return nil
	}
	if err := s.importPublications(ctx); err != nil {
		return err
	}
	var errs []error
	for r := range s.publications.Rows() {
		if r.Phase != reconcile.Wanted || r.Spec.Mode != modeHost && !r.Last.Unknown {
			continue
		}
		ports := r.Last.Ports
		if len(ports) == 0 {
			p, err := s.SDN.Publication(ctx, s.publishKey(r.Object))
			if err != nil {
				errs = append(errs, err)
				continue
			}
			ports = p.Ports
			s.publications.Note(r.Key, func(l PublicationLast) PublicationLast { l.Ports = ports; return l })
		}
		s.publisher().Restore(ctx, r.Key, ports)
		s.releaseGone(r.Key)
	}
	return errors.Join(errs...)
}

// releaseGone gives up the host ports of a publication that was deleted after its row was read. One
// that was set again may have reserved its own: they stay.
func (s *Service) releaseGone(id string) {
	now, ok := s.publications.Get(id)
	if s.HostPorts != nil && (!ok || now.Phase != reconcile.Wanted) {
		s.HostPorts.ReleaseAll(id)
	}
}

// importPublications makes rows of publications that have none: docker.db was lost.
func (s *Service) importPublications(ctx context.Context) error {
	match := sdn.Match{Owner: s.Names.Owner, Kind: identity.KindPublish}
	var rows []publicationRow
	for f, err := range s.SDN.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: match}) {
		if err != nil {
			return err
		}
		id, _, _ := strings.Cut(f.Key.Name, "/")
		if _, known := s.publications.Get(id); known || strings.Contains(id, "~") {
			continue
		}
		rows = append(rows, s.parts(id, sdn.Port{}).publications...)
	}
	if len(rows) == 0 {
		return nil
	}
	return s.publications.Import(ctx, rows)
}

// Publication is a port of the host that a proxy publishes.
type Publication struct {
	Endpoint string // the engine's id
	Port     sdn.ID
	portproxy.Forward
}

// Publications returns what proxies publish, from the rows of a database (reconcile.Store.Rows).
func Publications(rows map[string]json.RawMessage) []Publication {
	var list []Publication
	for name, text := range rows {
		id, ok := strings.CutPrefix(name, "publication/")
		var r struct {
			Spec PublicationSpec `json:"spec"`
			Last PublicationLast `json:"last"`
		}
		if !ok || json.Unmarshal(text, &r) != nil {
			continue
		}
		for _, f := range r.Last.Proxied {
			list = append(list, Publication{id, r.Spec.Port, f})
		}
	}
	sortslice.Func(list, func(a, b Publication) int {
		return cmp.Or(strings.Compare(a.Endpoint, b.Endpoint), a.Listen.Compare(b.Listen))
	})
	return list
}

// exposedGroupSuffix follows the port's id in the name of its security group, as kuryr-libnetwork
// names it.
const exposedGroupSuffix = "-exposed_ports"

// exposedRules let in what is exposed, of both families. What leaves is for the other groups.
func exposedRules(ports []api.ExposedPort) []sdn.Rule {
	var rules []sdn.Rule
	for _, r := range exposedRanges(ports) {
		for _, v6 := range []bool{false, true} {
			rules = append(rules, sdn.Rule{
				Direction: sdn.Ingress, IPv6: v6, Protocol: r.first.Proto,
				Ports: sdn.PortRange{First: r.first.Port, Last: r.last},
			})
		}
	}
	return rules
}

// openExposed gives the port a security group that lets in what its container exposes.
func (t publicationTarget) openExposed(
	ctx context.Context, o reconcile.Object, p PublicationSpec,
) (sdn.ID, error) {
	group, err := t.SDN.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{
		Base: sdn.Base{
			Key: t.Names.Key(identity.KindExposed, o.Key, o), Name: string(p.Port) + exposedGroupSuffix,
		},
		Rules: exposedRules(p.Exposed),
	})
	if err != nil {
		return "", err
	}
	return group.ID, t.SDN.AddGroups(ctx, p.Port, []sdn.ID{group.ID})
}

// closeExposed deletes the security group, which is found by its Key if its id is unknown. It
// returns reconcile.ErrAbsent if it is not found. The setting may have been switched off since.
func (t publicationTarget) closeExposed(ctx context.Context, o reconcile.Object, group sdn.ID) error {
	if group == "" {
		match := identity.ByKey(t.Names.Key(identity.KindExposed, o.Key, o))
		found, ok, err := sdn.First(t.SDN.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{Match: match}))
		if err != nil {
			return err
		}
		if !ok {
			return reconcile.ErrAbsent
		}
		group = found.ID
	}
	ports, err := sdn.All(t.SDN.FindPorts(ctx, sdn.PortQuery{Groups: []sdn.ID{group}}))
	if err != nil {
		return err
	}
	for _, port := range ports {
		if err := t.SDN.RemoveGroups(ctx, port.ID, []sdn.ID{group}); identity.IgnoreAbsent(err) != nil {
			return err
		}
	}
	return identity.IgnoreAbsent(t.SDN.DeleteSecurityGroup(ctx, group))
}
