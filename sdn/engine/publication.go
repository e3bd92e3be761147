package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// Publish makes a publication be the spec, in one transaction.
func (e *Engine) Publish(ctx context.Context, spec sdn.PublicationSpec) (out sdn.Publication, err error) {
	if err := checkPublication(spec); err != nil {
		return out, err
	}
	err = e.update(ctx, func(t *tx) error {
		e.projects.note(ctx, spec.Project)
		out = sdn.Publication{Key: spec.Key, Ports: make([]sdn.PublishedPort, len(spec.Ports))}
		pub, err := t.publicationOf(spec.Key)
		if err != nil {
			return err
		}
		return pub.become(spec, out.Ports)
	})
	if err != nil && !sdn.IsUnavailable(err) {
		return sdn.Publication{}, err
	}
	return out, err
}

func checkPublication(spec sdn.PublicationSpec) error {
	if spec.Key.IsZero() {
		return sdn.Invalid("publication", "key", "is missing")
	}
	if err := valid.Base("publication", sdn.Base{Key: spec.Key, Project: spec.Project}); err != nil {
		return err
	}
	for i, port := range spec.Ports {
		field := fmt.Sprintf("ports[%d].host", i)
		if err := valid.Addr("publication", field, port.Host); err != nil {
			return err
		}
		if port.Host.IsMulticast() {
			return sdn.Invalid("publication", field, "must be an address of the host")
		}
	}
	return nil
}

// Publication gets what is published under a Key.
func (e *Engine) Publication(ctx context.Context, k sdn.Key) (out sdn.Publication, err error) {
	out.Key = k
	return out, e.view(func(b Tx) error {
		faces, err := e.facesOf(ctx, b, k)
		if err != nil {
			return err
		}
		for _, face := range faces {
			rows, err := Forwards.All(b, "floatingip", string(face.ID))
			if err != nil {
				return err
			}
			for _, r := range rows {
				out.Ports = append(out.Ports, sdn.PublishedPort{Host: face.Address, Forward: r.Forward})
			}
		}
		return nil
	})
}

// Unpublish deletes a publication in one transaction.
func (e *Engine) Unpublish(ctx context.Context, k sdn.Key) error {
	var there []*FloatingIPRow
	err := e.view(func(b Tx) (err error) {
		there, err = e.facesOf(ctx, b, k)
		return err
	})
	if err != nil || len(there) == 0 {
		return err // nothing to delete, and no wait for the disk
	}
	return e.release(ctx, func(t *tx) error {
		faces, err := e.facesOf(ctx, t.Tx, k)
		if err != nil {
			return err
		}
		for _, face := range faces {
			if err := t.deleteFloatingIP(face.ID); err != nil {
				return err
			}
		}
		return nil
	})
}

// facesOf finds the floating IPs of a publication: their Keys have its name, a slash and a word.
func (e *Engine) facesOf(ctx context.Context, b Tx, k sdn.Key) ([]*FloatingIPRow, error) {
	if k.IsZero() {
		return nil, nil
	}
	var faces []*FloatingIPRow
	_, served := sdn.ClientOf(ctx)
	prefix := k.String() + "/"
	for _, id := range with(b, FloatingIPs.indexTable("key"), prefix) {
		r, err := FloatingIPs.Need(b, sdn.ID(id))
		if err != nil {
			return nil, err
		}
		word := strings.TrimPrefix(r.Key.String(), prefix)
		if r.OfHost() && !strings.Contains(word, "/") && (served || e.projects.owns(ctx, r.Project)) {
			faces = append(faces, r)
		}
	}
	return faces, nil
}

// publication is one that a transaction changes.
type publication struct {
	t     *tx
	key   sdn.Key
	faces []*FloatingIPRow
	there map[publishedAt]*ForwardRow
	dead  map[sdn.ID]bool // forwardings that are to go
}

// publishedAt are transport ports of an address of the host.
type publishedAt struct {
	host     netip.Addr
	protocol sdn.Protocol
	external sdn.PortRange
}

func (t *tx) publicationOf(k sdn.Key) (*publication, error) {
	faces, err := t.e.facesOf(t.ctx, t.Tx, k)
	if err != nil {
		return nil, err
	}
	pub := &publication{t: t, key: k, faces: faces}
	pub.there, pub.dead = map[publishedAt]*ForwardRow{}, map[sdn.ID]bool{}
	for _, face := range faces {
		rows, err := Forwards.All(t.Tx, "floatingip", string(face.ID))
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			pub.there[publishedAt{face.Address, r.Protocol, r.External}] = r
			pub.dead[r.Meta.ID] = true
		}
	}
	return pub, nil
}

// become makes the publication be the spec. It answers in out.
func (pub *publication) become(spec sdn.PublicationSpec, out []sdn.PublishedPort) error {
	wanted := make([]sdn.Forward, len(spec.Ports))
	leads := make([]resolved, len(spec.Ports))
	kept := make([]*ForwardRow, len(spec.Ports))
	targets := targets{}
	for i, port := range spec.Ports {
		field := fmt.Sprintf("ports[%d]", i)
		want, err := normal(port.Forward, field)
		if err != nil {
			return err
		}
		if leads[i], err = targets.resolve(pub.t, want.Target, port.Host, field); err != nil {
			return inPort(err, field)
		}
		want.Target = leads[i].Target
		wanted[i] = want
		r := pub.there[publishedAt{port.Host, want.Protocol, want.External}]
		if r != nil && alike(r.Forward, want) {
			kept[i] = r
			delete(pub.dead, r.Meta.ID)
		}
	}
	// What goes makes room first: a port may move from one address of the host to another.
	for _, r := range pub.there {
		if pub.dead[r.Meta.ID] {
			if err := pub.drop(r); err != nil {
				return err
			}
		}
	}
	for i, want := range wanted {
		r := kept[i]
		if r != nil {
			Forwards.touch(pub.t, r)
		} else {
			face, err := pub.face(spec, spec.Ports[i].Host)
			if err != nil {
				return err
			}
			base := sdn.Base{Project: face.Project}
			r, err = pub.t.ensureForward(face, want, leads[i], newMeta(base), fmt.Sprintf("ports[%d]", i))
			if err != nil {
				return err
			}
		}
		out[i] = sdn.PublishedPort{Host: spec.Ports[i].Host, Forward: r.Forward}
	}
	for _, face := range pub.faces {
		end := pub.t.putForwarded
		if face.Forwards == 0 {
			end = func(face *FloatingIPRow) error { return pub.t.deleteFloatingIP(face.ID) }
		}
		if err := end(face); err != nil {
			return err
		}
	}
	return nil
}

// inPort names the port of a spec in an error about its target.
func inPort(err error, field string) error {
	var e *sdn.Error
	if errors.As(err, &e) && e.Field != "" && !strings.HasPrefix(e.Field, field) {
		named := *e
		named.Field = field + "." + e.Field
		return &named
	}
	return err
}

// alike reports whether two forwardings differ at most in id and description.
func alike(a, b sdn.Forward) bool {
	b.ID, b.Description = a.ID, a.Description
	return a == b
}

// drop deletes a forwarding. become writes the floating IP.
func (pub *publication) drop(r *ForwardRow) error {
	for _, face := range pub.faces {
		if face.ID != r.FloatingIP {
			continue
		}
		if face.Forwards--; face.Forwards == 0 {
			face.Router = ""
		}
	}
	return Forwards.del(pub.t, r.Meta.ID)
}

// face gives the floating IP for an address of the host, and adds it if it is missing.
func (pub *publication) face(spec sdn.PublicationSpec, host netip.Addr) (*FloatingIPRow, error) {
	words := map[string]bool{}
	for _, face := range pub.faces {
		if face.Address == host {
			return face, nil
		}
		words[face.Key.Name] = true
	}
	name := ""
	for n := 0; name == "" || words[name]; n++ {
		switch {
		case n > 0 || !host.IsUnspecified():
			name = fmt.Sprintf("%s/at%d", pub.key.Name, n+1)
		case host.Is4():
			name = pub.key.Name + "/4"
		default:
			name = pub.key.Name + "/6"
		}
	}
	key := pub.key
	key.Name = name
	if err := key.Validate(); err != nil {
		return nil, err
	}
	face, err := pub.t.makeFloatingIP(sdn.FloatingIPSpec{
		Base: sdn.Base{Key: key, Project: spec.Project}, Network: pub.t.e.external, Address: host, OfHost: true,
	})
	if err != nil {
		return nil, err
	}
	pub.faces = append(pub.faces, face)
	return face, nil
}
