package neutron

import (
	"cmp"
	"context"
	"net/url"

	"github.com/kuryr/kuryr/sdn"
)

// quotaNouns are the nouns that Neutron counts, by their names in its quotas. Octavia
// counts load balancers.
var quotaNouns = []sdn.Noun{
	sdn.NounNetwork, sdn.NounSubnet, sdn.NounSubnetPool, sdn.NounPort, sdn.NounTrunk, sdn.NounRouter, sdn.NounFloatingIP, sdn.NounSecurityGroup, sdn.NounRule,
}

// quotaPath returns the path of a project's quota, or of the provider's own.
func (p *Provider) quotaPath(ctx context.Context, project string) (string, error) {
	const path = "/quotas/"
	if project = cmp.Or(project, p.config.Project); project != "" {
		return path + url.PathEscape(project), nil
	}
	// Neutron knows whose the token is.
	const own = path + "tenant"
	var answer struct {
		Tenant struct {
			ID string `json:"tenant_id"`
		} `json:"tenant"`
	}
	if err := p.client.get(ctx, own, nil, &answer); err != nil || answer.Tenant.ID == "" {
		return own, err
	}
	return path + url.PathEscape(answer.Tenant.ID), nil
}

// Usage returns what a project may have and has. What Neutron reserves for requests in
// flight counts as used. gophercloud's QuotaDetailSet has a field for each noun; a map is
// one loop.
func (p *Provider) Usage(ctx context.Context, project string) (map[sdn.Noun]sdn.Usage, error) {
	path, err := p.quotaPath(ctx, project)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Quota map[sdn.Noun]struct {
			Used     int64 `json:"used"`
			Reserved int64 `json:"reserved"`
			Limit    int64 `json:"limit"`
		} `json:"quota"`
	}
	if err := p.client.get(ctx, path+"/details.json", nil, &answer); err != nil {
		return nil, err
	}
	out := map[sdn.Noun]sdn.Usage{}
	for _, noun := range quotaNouns {
		if q, counted := answer.Quota[noun]; counted {
			out[noun] = sdn.Usage{Used: q.Used + q.Reserved, Limit: q.Limit}
		}
	}
	return out, nil
}

// SetQuota sets limits. By Neutron's default policy only administrators may: IsDenied.
func (p *Provider) SetQuota(ctx context.Context, project string, limits map[sdn.Noun]int64) error {
	body := map[string]int64{}
	for noun, limit := range limits {
		known := false
		for _, n := range quotaNouns {
			known = known || n == noun
		}
		switch {
		case !known:
			return sdn.Invalid("quota", string(noun), "Neutron counts none of these")
		case limit < -1:
			return sdn.Invalid("quota", string(noun), "must be -1, for none, or more, not %d", limit)
		}
		body[string(noun)] = limit
	}
	if len(body) == 0 {
		return nil
	}
	path, err := p.quotaPath(ctx, project)
	if err != nil {
		return err
	}
	return p.client.put(ctx, path, 0, map[string]any{"quota": body}, nil)
}
