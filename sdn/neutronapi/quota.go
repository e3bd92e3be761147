package neutronapi

import (
	"cmp"
	"math"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// countedNoun is a noun that quotas limit, with its names in bodies.
type countedNoun struct {
	noun  sdn.Noun
	names []string
}

// quotas serve the limits of projects. Neutron and Octavia have each their own nouns and form.
type quotas struct {
	*server
	nouns   []countedNoun
	octavia bool
}

// neutronQuotas are those of Neutron, and of nouns for which Neutron has none.
func (s *server) neutronQuotas() quotas {
	q := quotas{server: s}
	for _, noun := range []sdn.Noun{
		sdn.NounNetwork, sdn.NounSubnet, sdn.NounSubnetPool, sdn.NounPort, sdn.NounRouter, sdn.NounFloatingIP,
		sdn.NounSecurityGroup, sdn.NounRule, sdn.NounTrunk, sdn.NounRBACPolicy,
		sdn.NounAddressGroup, sdn.NounForward, sdn.NounQoSPolicy,
	} {
		q.nouns = append(q.nouns, countedNoun{noun, []string{string(noun)}})
	}
	return q
}

// balancerQuotas are those of Octavia. Some nouns have an older name, which comes first.
func (s *server) balancerQuotas() quotas {
	return quotas{server: s, octavia: true, nouns: []countedNoun{
		{sdn.NounLoadBalancer, []string{"loadbalancer", "load_balancer"}}, {sdn.NounListener, []string{"listener"}},
		{sdn.NounPool, []string{"pool"}}, {sdn.NounMember, []string{"member"}},
		{sdn.NounHealthMonitor, []string{"healthmonitor", "health_monitor"}},
		{sdn.NounL7Policy, []string{"l7policy"}}, {sdn.NounL7Rule, []string{"l7rule"}},
	}}
}

// defaults is a project that does not exist: its limits are those of a project without its own.
const defaults = "kuryr-default-quota"

// serveQuotas adds the paths of Neutron's quotas. Those without a project are the caller's: root,
// who has none, limits by them what belongs to no project. Neutron lacks them.
func (s *server) serveQuotas() {
	const path = "/v2.0/quotas"
	q := s.neutronQuotas()
	s.read(path, q.list)
	s.handle(path+"/tenant", map[string]handler{http.MethodGet: q.whoami, http.MethodPut: q.set})
	s.read(path+"/tenant/details", q.details)
	s.read(path+"/project", q.whoami)
	s.handle(path+"/{project}", map[string]handler{
		http.MethodGet: q.show, http.MethodPut: q.set, http.MethodDelete: q.reset,
	})
	s.read(path+"/{project}/default", q.showDefaults)
	s.read(path+"/{project}/details", q.details)
}

// serveBalancerQuotas adds the paths of Octavia's quotas. "tenant" is as with Neutron's.
func (s *server) serveBalancerQuotas() {
	const path = "/quotas"
	q := s.balancerQuotas()
	s.read(path, q.list)
	s.read(path+"/defaults", q.showDefaults)
	s.handle(path+"/tenant", map[string]handler{http.MethodGet: q.show, http.MethodPut: q.set})
	s.read(path+"/{project}/default", q.showDefaults)
	s.handle(path+"/{project}", map[string]handler{
		http.MethodGet: q.show, http.MethodPut: q.set, http.MethodDelete: q.reset,
	})
}

// list answers with no project: the contract does not say which have limits of their own.
func (q quotas) list(w http.ResponseWriter, c *call) error {
	if !c.caller.admin() {
		return c.adminRequired()
	}
	writeJSON(w, http.StatusOK, map[string]any{"quotas": []any{}})
	return nil
}

func (c *call) adminRequired() error {
	return refuse(http.StatusForbidden, "AdminRequired",
		"User does not have admin privileges: Only admin can view or configure quota.")
}

// whoami answers with the project of the caller.
func (q quotas) whoami(w http.ResponseWriter, c *call) error {
	project := map[string]string{"tenant_id": c.caller.Project, "project_id": c.caller.Project}
	writeJSON(w, http.StatusOK, map[string]any{"tenant": project})
	return nil
}

// named is the project in the path, or the caller's.
func (c *call) named() string { return cmp.Or(c.PathValue("project"), c.caller.Project) }

// project is the one in the path, which must be the caller's own but for administrators.
func (c *call) project() (string, error) {
	project := c.named()
	if !c.caller.admin() && project != c.caller.Project {
		return "", c.adminRequired()
	}
	return project, nil
}

func (q quotas) show(w http.ResponseWriter, c *call) error {
	project, err := c.project()
	if err != nil {
		return err
	}
	return q.write(w, c, http.StatusOK, project)
}

func (q quotas) showDefaults(w http.ResponseWriter, c *call) error {
	if _, err := c.project(); err != nil {
		return err
	}
	return q.write(w, c, http.StatusOK, defaults)
}

// write answers with a project's limits.
func (q quotas) write(w http.ResponseWriter, c *call, status int, project string) error {
	usage, err := q.p.Usage(c.ctx(), project)
	if err != nil {
		return err
	}
	quota := map[string]any{}
	if q.octavia && project != defaults {
		quota["project_id"] = project
	}
	for _, counted := range q.nouns {
		for _, name := range counted.names {
			quota[name] = limit(usage, counted.noun)
		}
	}
	writeJSON(w, status, map[string]any{"quota": quota})
	return nil
}

// limit is that of a noun. What the SDN does not count has none.
func limit(usage map[sdn.Noun]sdn.Usage, noun sdn.Noun) int64 {
	if u, ok := usage[noun]; ok {
		return u.Limit
	}
	return -1
}

// quotaDetail is how much of a noun's quota is used.
type quotaDetail struct {
	Used     int64 `json:"used"`
	Reserved int64 `json:"reserved"`
	Limit    int64 `json:"limit"`
	Default  bool  `json:"kuryr:default"` // nobody set the limit, and administrators have none
}

func (q quotas) details(w http.ResponseWriter, c *call) error {
	project, err := c.project()
	if err != nil {
		return err
	}
	usage, err := q.p.Usage(c.ctx(), project)
	if err != nil {
		return err
	}
	quota := map[string]any{}
	for _, counted := range q.nouns {
		is := usage[counted.noun]
		quota[counted.names[0]] = quotaDetail{Used: is.Used, Limit: limit(usage, counted.noun), Default: is.Default}
	}
	writeJSON(w, http.StatusOK, map[string]any{"quota": quota})
	return nil
}

func (q quotas) set(w http.ResponseWriter, c *call) error {
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
	usage, err := q.p.Usage(c.ctx(), c.named())
	if err != nil {
		return err
	}
	b := &body{call: c, noun: "quota", values: values}
	status, check := http.StatusAccepted, false
	if !q.octavia {
		b.readOnly("tenant_id", "project_id")
		status, check = http.StatusOK, or(b.boolean("check_limit"))
		b.boolean("force") // the opposite, which is the default
	}
	limits := q.limits(b, usage)
	if err := b.done(); err != nil {
		return err
	}
	if check {
		err = q.fits(usage, limits)
	}
	if err == nil && len(limits) > 0 {
		err = q.p.SetQuota(c.ctx(), c.named(), limits)
	}
	if err != nil {
		return err
	}
	return q.write(w, c, status, c.named())
}

// limits reads the limits in a body. In Octavia null is no limit, and of nouns that the SDN does
// not count no limit is all that can be said.
func (q quotas) limits(b *body, usage map[sdn.Noun]sdn.Usage) map[sdn.Noun]int64 {
	limits := map[sdn.Noun]int64{}
	for _, counted := range q.nouns {
		for _, name := range counted.names {
			if q.octavia && b.null(name) {
				limits[counted.noun] = -1
			} else if n := b.number(name, -1, math.MaxInt32); n != nil {
				limits[counted.noun] = *n
			}
		}
		limit, said := limits[counted.noun]
		if _, counts := usage[counted.noun]; q.octavia && said && !counts {
			if delete(limits, counted.noun); limit != -1 {
				b.unsupported(counted.names[0], "they are not counted")
			}
		}
	}
	return limits
}

// fits refuses limits below what is used.
func (q quotas) fits(usage map[sdn.Noun]sdn.Usage, limits map[sdn.Noun]int64) error {
	for _, counted := range q.nouns {
		if limit, set := limits[counted.noun]; set && limit >= 0 && limit < usage[counted.noun].Used {
			return refuse(http.StatusConflict, "InvalidQuotaValue",
				"Change would make usage less than 0 for the following resources: %s.", counted.noun)
		}
	}
	return nil
}

// reset forgets what was set of a project's limits: of all nouns, in Octavia of its own.
func (q quotas) reset(w http.ResponseWriter, c *call) error {
	if !c.caller.admin() {
		return c.adminRequired()
	}
	resetter, ok := q.p.(sdn.QuotaReset)
	if !ok {
		return sdn.Unsupported("quota", "this SDN cannot forget a project's own limits")
	}
	var nouns []sdn.Noun
	for _, counted := range q.nouns {
		if q.octavia {
			nouns = append(nouns, counted.noun)
		}
	}
	if err := resetter.ResetQuota(c.ctx(), c.PathValue("project"), nouns...); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
