package neutron

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// Kuryr's own API has publications. Neutron has no floating IP that stands for an address of the
// host.
const (
	publicationsAlias = "kuryr-publications"
	publicationsPath  = "/kuryr-publications"
)

// publicationWire is the answer. A published port is a forwarding with an address of the host.
type publicationWire struct {
	Publication struct {
		Ports []struct {
			Host netip.Addr `json:"host_ip_address"`
			forwardWire
		} `json:"ports"`
	} `json:"publication"`
}

func (w *publicationWire) decode(key sdn.Key) sdn.Publication {
	p := sdn.Publication{Key: key}
	for i := range w.Publication.Ports {
		port := &w.Publication.Ports[i]
		p.Ports = append(p.Ports, sdn.PublishedPort{Host: port.Host, Forward: port.decode()})
	}
	return p
}

// needPublications refuses publications where the SDN has none.
func (p *Provider) needPublications(ctx context.Context) error {
	if err := p.extensions.learn(ctx, p.client); err != nil {
		return err
	}
	if p.extensions.has(publicationsAlias) {
		return nil
	}
	if host, _ := p.extensions.hostAddresses(); host {
		p.extensions.forget() // it may be upgraded and answer again
		return sdn.Unavailable(nil, p.client.who(), "it is of an earlier version, without %s", publicationsAlias)
	}
	return sdn.Unsupported("publication", "Neutron has no floating IPs that are the host's own addresses")
}

// Publish makes a publication be the spec, by one request. It is repeated if its answer is lost.
func (p *Provider) Publish(ctx context.Context, spec sdn.PublicationSpec) (sdn.Publication, error) {
	p.owner.note(spec.Project)
	if err := p.needPublications(ctx); err != nil {
		return sdn.Publication{}, err
	}
	if spec.Key.IsZero() {
		return sdn.Publication{}, sdn.Invalid("publication", "key", "is missing")
	}
	ports := make([]map[string]any, len(spec.Ports))
	for i, port := range spec.Ports {
		field := fmt.Sprintf("ports[%d]", i)
		if err := valid.Addr("publication", field+".host", port.Host); err != nil {
			return sdn.Publication{}, err
		}
		f, err := p.normalForward(port.Forward, field)
		if err != nil {
			return sdn.Publication{}, err
		}
		ports[i] = forwardBody(f)
		ports[i]["host_ip_address"] = port.Host
		if !f.Target.Addr.IsValid() {
			delete(ports[i], "internal_ip_address")
		}
	}
	return p.putPublication(ctx, spec, ports)
}

func (p *Provider) putPublication(
	ctx context.Context, spec sdn.PublicationSpec, ports []map[string]any,
) (sdn.Publication, error) {
	body := map[string]any{"description": spec.Key.String(), "ports": ports}
	if spec.Project != "" {
		body["project_id"] = spec.Project
	}
	var answer publicationWire
	err := p.client.put(ctx, publicationsPath, 0, map[string]any{"publication": body}, &answer)
	if err != nil {
		return sdn.Publication{}, inPublished(err)
	}
	out := answer.decode(spec.Key)
	if len(out.Ports) != len(ports) {
		return sdn.Publication{}, sdn.Unavailable(nil, p.client.who(),
			"it answers with %d of %d published ports", len(out.Ports), len(ports))
	}
	return out, nil
}

// position is what the answer says of the element of a list that it refuses.
var position = regexp.MustCompile(`Reason: (\[\d+\][\w.]*): `)

// inPublished completes the field of a refusal, of which the error type has the list's name alone.
func inPublished(err error) error {
	var e *sdn.Error
	if !errors.As(err, &e) || e.Field != "ports" {
		return err
	}
	if m := position.FindStringSubmatch(e.Detail); m != nil {
		named := *e
		named.Field += m[1]
		return &named
	}
	return err
}

// Publication gets what is published under a Key.
func (p *Provider) Publication(ctx context.Context, key sdn.Key) (sdn.Publication, error) {
	if err := p.needPublications(ctx); err != nil || key.IsZero() {
		return sdn.Publication{}, err
	}
	var answer publicationWire
	err := p.client.get(ctx, publicationsPath, url.Values{"description": {key.String()}}, &answer)
	if err != nil {
		return sdn.Publication{}, err
	}
	return answer.decode(key), nil
}

// Unpublish deletes a publication.
func (p *Provider) Unpublish(ctx context.Context, key sdn.Key) error {
	if err := p.needPublications(ctx); err != nil || key.IsZero() {
		return err
	}
	_, err := p.putPublication(ctx, sdn.PublicationSpec{Key: key}, []map[string]any{})
	return err
}
