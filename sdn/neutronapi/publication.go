package neutronapi

import (
	"encoding/json"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// Neutron forwards the ports of one floating IP by one request each. Kuryr's front ends publish
// many ports of several addresses of the host as one value.

// Publications is the alias of the extension that says so.
const Publications = "kuryr-publications"

// publicationsPath is where, by the Key in the description.
const publicationsPath = "/v2.0/kuryr-publications"

// maxPublished is how many ports one publication may have.
const maxPublished = 1 << 16

func encodePublication(p sdn.Publication) map[string]any {
	type P = sdn.PublishedPort
	fields := []field{{name: "host_ip_address", show: via(func(p *P) any { return p.Host.String() })}}
	for _, f := range forwardFields {
		fields = append(fields, field{name: f.name, show: func(port any) any { return f.show(&port.(*P).Forward) }})
	}
	ports := make([]json.RawMessage, len(p.Ports))
	for i := range p.Ports {
		ports[i] = appendObject(nil, fields, &p.Ports[i], view{admin: true})
	}
	return map[string]any{"publication": map[string]any{"description": p.Key.String(), "ports": ports}}
}

// servePublications adds publications, for administrators.
func (s *server) servePublications() {
	s.gate(func(c sdn.Capabilities) bool { return c.HostAddresses }, func(s *server) {
		methods := map[string]handler{http.MethodGet: s.showPublication, http.MethodPut: s.putPublication}
		s.handle(publicationsPath, methods)
	}, "kuryr-publications")
}

func (s *server) showPublication(w http.ResponseWriter, c *call) error {
	if err := c.adminsOnly("get_publication"); err != nil {
		return err
	}
	key, ok := sdn.ParseKey(c.URL.Query().Get("description"))
	if !ok {
		return badRequest("The query must have a description that is a Key")
	}
	p, err := s.p.Publication(c.ctx(), key)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, encodePublication(p))
	return nil
}

// putPublication makes the publication be the body. One without ports is deleted.
func (s *server) putPublication(w http.ResponseWriter, c *call) error {
	if err := c.adminsOnly("update_publication"); err != nil {
		return err
	}
	document, err := c.document()
	if err != nil {
		return err
	}
	values, ok := document["publication"].(map[string]any)
	if !ok {
		return badRequest("Unable to find 'publication' in request body")
	}
	b := &body{call: c, noun: "publication", values: values, post: true}
	b.required("description", "ports")
	spec := sdn.PublicationSpec{Project: b.project()}
	if spec.Key, ok = sdn.ParseKey(or(b.description(""))); !ok {
		b.invalid("description", "must be a Key")
	}
	fields := forwardFields
	ports := objectsUpTo(b, "ports", maxPublished, func(b *body) (out sdn.PublishedPort) {
		b.needs("host_ip_address")
		out.Host = or(b.addr("host_ip_address"))
		b.required(needed(fields)...)
		b.attributes(fields, &out.Forward)
		b.checkForward(&out.Forward)
		return out
	})
	if err := b.done(); err != nil {
		return err
	}
	p := sdn.Publication{Key: spec.Key}
	if spec.Ports = or(ports); len(spec.Ports) == 0 {
		err = s.p.Unpublish(c.ctx(), spec.Key)
	} else {
		p, err = s.p.Publish(c.ctx(), spec)
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, encodePublication(p))
	return nil
}
