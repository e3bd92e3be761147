package neutronapi

import (
	"cmp"
	"context"
	"math"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// balancerCounted are the nouns that Octavia's quotas tell of, each with its names, an older one first. Two of them there are none of here.
var balancerCounted = []struct {
	noun  sdn.Noun
	names []string
}{
	{sdn.NounLoadBalancer, []string{"loadbalancer", "load_balancer"}}, {sdn.NounListener, []string{"listener"}}, {sdn.NounPool, []string{"pool"}}, {sdn.NounMember, []string{"member"}},
	{sdn.NounHealthMonitor, []string{"healthmonitor", "health_monitor"}},
	{sdn.NounL7Policy, []string{"l7policy"}}, {sdn.NounL7Rule, []string{"l7rule"}},
}

// serveBalancerQuotas adds the paths of quotas.
func (s *server) serveBalancerQuotas() {
	const path = "/quotas"
	s.read(path, s.quotas)
	s.read(path+"/defaults", s.defaultBalancerQuota)
	// What Octavia does not have, as beside Neutron's quotas: a caller of no project, root, limits by this what belongs to none. The path names no project, which is the caller's then.
	s.handle(path+"/tenant", map[string]handler{http.MethodGet: s.balancerQuota, http.MethodPut: s.setBalancerQuota})
	s.read(path+"/{project}/default", s.defaultBalancerQuota)
	s.handle(path+"/{project}", map[string]handler{http.MethodGet: s.balancerQuota, http.MethodPut: s.setBalancerQuota, http.MethodDelete: s.resetBalancerQuota})
}

func (s *server) balancerQuota(w http.ResponseWriter, c *call) error {
	project, err := c.project()
	if err != nil {
		return err
	}
	return s.writeBalancerQuota(c.ctx(), w, http.StatusOK, project)
}

func (s *server) defaultBalancerQuota(w http.ResponseWriter, c *call) error {
	if _, err := c.project(); err != nil {
		return err
	}
	return s.writeBalancerQuota(c.ctx(), w, http.StatusOK, nobody)
}

func (s *server) writeBalancerQuota(ctx context.Context, w http.ResponseWriter, status int, project string) error {
	usage, err := s.p.Usage(ctx, project)
	if err != nil {
		return err
	}
	quota := map[string]any{}
	if project != nobody {
		quota["project_id"] = project
	}
	for _, counted := range balancerCounted {
		for _, name := range counted.names {
			quota[name] = limit(usage, counted.noun)
		}
	}
	writeJSON(w, status, map[string]any{"quota": quota})
	return nil
}

func (s *server) setBalancerQuota(w http.ResponseWriter, c *call) error {
	if !c.caller.admin() {
		return c.adminRequired()
	}
	document, err := c.document()
	if err != nil {
		return err
	}
	values, ok := document["quota"].(map[string]any)
	if !ok {
		return badRequest("Unable to find 'quota' in request body")
	}
	project := cmp.Or(c.PathValue("project"), c.caller.Project)
	usage, err := s.p.Usage(c.ctx(), project)
	if err != nil {
		return err
	}
	b := &body{call: c, noun: "quota", values: values}
	limits := map[sdn.Noun]int64{}
	for _, counted := range balancerCounted {
		for _, name := range counted.names {
			if b.null(name) {
				limits[counted.noun] = -1
			} else if n := b.number(name, -1, math.MaxInt32); n != nil {
				limits[counted.noun] = *n
			}
		}
		if limit, said := limits[counted.noun]; said && usage[counted.noun] == (sdn.Usage{}) {
			if _, counts := usage[counted.noun]; !counts {
				if delete(limits, counted.noun); limit != -1 {
					b.unsupported(counted.names[0], "they are not counted")
				}
			}
		}
	}
	if err := b.done(); err != nil {
		return err
	}
	if len(limits) > 0 {
		if err := s.p.SetQuota(c.ctx(), project, limits); err != nil {
			return err
		}
	}
	return s.writeBalancerQuota(c.ctx(), w, http.StatusAccepted, project)
}

// resetBalancerQuota makes a project's limits of load balancers those of one that has none of its own; those of Neutron's nouns stay.
func (s *server) resetBalancerQuota(w http.ResponseWriter, c *call) error {
	if !c.caller.admin() {
		return c.adminRequired()
	}
	var nouns []sdn.Noun
	for _, counted := range balancerCounted {
		nouns = append(nouns, counted.noun)
	}
	return s.forgetQuota(w, c, nouns...)
}
