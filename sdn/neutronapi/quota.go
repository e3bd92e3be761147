package neutronapi

import (
	"cmp"
	"context"
	"math"
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// counted are the nouns that a quota tells of, by Neutron's names. What the SDN does not count has no limit.
var counted = []sdn.Noun{
	sdn.NounNetwork, sdn.NounSubnet, sdn.NounSubnetPool, sdn.NounPort, sdn.NounRouter, sdn.NounFloatingIP, sdn.NounSecurityGroup, sdn.NounRule, sdn.NounTrunk,
	sdn.NounRBACPolicy,
	// Neutron has no quotas of these.
	sdn.NounAddressGroup, sdn.NounForward, sdn.NounQoSPolicy,
}

// nobody is a project that there is not: its limits are those of one that has none of its own.
const nobody = "kuryr-default-quota"

// serveQuotas adds the paths of quotas.
func (s *server) serveQuotas() {
	const path = "/v2.0/quotas"
	s.read(path, s.quotas)
	// What Neutron does not have: a caller of no project, root, asks by these for what belongs to none. Their paths name no project, which is the caller's then.
	s.handle(path+"/tenant", map[string]handler{http.MethodGet: s.whoami, http.MethodPut: s.setQuota})
	s.read(path+"/tenant/details", s.quotaDetails)
	s.read(path+"/project", s.whoami)
	s.handle(path+"/{project}", map[string]handler{http.MethodGet: s.quota, http.MethodPut: s.setQuota, http.MethodDelete: s.resetQuota})
	s.read(path+"/{project}/default", s.defaultQuota)
	s.read(path+"/{project}/details", s.quotaDetails)
}

// quotas is to list the projects that have limits of their own, which the contract does not tell: none is listed.
func (s *server) quotas(w http.ResponseWriter, c *call) error {
	if !c.caller.admin() {
		return c.adminRequired()
	}
	writeJSON(w, http.StatusOK, map[string]any{"quotas": []any{}})
	return nil
}

func (c *call) adminRequired() error {
	return refuse(http.StatusForbidden, "AdminRequired", "User does not have admin privileges: Only admin can view or configure quota.")
}

// whoami tells whose the caller's objects are.
func (s *server) whoami(w http.ResponseWriter, c *call) error {
	writeJSON(w, http.StatusOK, map[string]any{"tenant": map[string]string{"tenant_id": c.caller.Project, "project_id": c.caller.Project}})
	return nil
}

// project is the one in the path, which must be the caller's own but for administrators.
func (c *call) project() (string, error) {
	project := cmp.Or(c.PathValue("project"), c.caller.Project)
	if !c.caller.admin() && project != c.caller.Project {
		return "", c.adminRequired()
	}
	return project, nil
}

func (s *server) quota(w http.ResponseWriter, c *call) error {
	project, err := c.project()
	if err != nil {
		return err
	}
	return s.writeLimits(c.ctx(), w, project)
}

func (s *server) defaultQuota(w http.ResponseWriter, c *call) error {
	if _, err := c.project(); err != nil {
		return err
	}
	return s.writeLimits(c.ctx(), w, nobody)
}

// writeLimits answers with a project's limits.
func (s *server) writeLimits(ctx context.Context, w http.ResponseWriter, project string) error {
	usage, err := s.p.Usage(ctx, project)
	if err != nil {
		return err
	}
	quota := map[string]int64{}
	for _, noun := range counted {
		quota[string(noun)] = limit(usage, noun)
	}
	writeJSON(w, http.StatusOK, map[string]any{"quota": quota})
	return nil
}

func limit(usage map[sdn.Noun]sdn.Usage, noun sdn.Noun) int64 {
	if u, ok := usage[noun]; ok {
		return u.Limit
	}
	return -1
}

func (s *server) quotaDetails(w http.ResponseWriter, c *call) error {
	project, err := c.project()
	if err != nil {
		return err
	}
	usage, err := s.p.Usage(c.ctx(), project)
	if err != nil {
		return err
	}
	quota := map[string]any{}
	for _, noun := range counted {
		quota[string(noun)] = quotaDetail{Used: usage[noun].Used, Limit: limit(usage, noun), Default: usage[noun].Default}
	}
	writeJSON(w, http.StatusOK, map[string]any{"quota": quota})
	return nil
}

func (s *server) setQuota(w http.ResponseWriter, c *call) error {
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
	b := &body{call: c, noun: "quota", values: values}
	b.readOnly("tenant_id", "project_id")
	check := or(b.boolean("check_limit"))
	b.boolean("force") // the opposite, which is the default
	limits := map[sdn.Noun]int64{}
	for _, noun := range counted {
		if n := b.number(string(noun), -1, math.MaxInt32); n != nil {
			limits[noun] = *n
		}
	}
	if err := b.done(); err != nil {
		return err
	}
	project := cmp.Or(c.PathValue("project"), c.caller.Project)
	if check {
		if err := s.fits(c.ctx(), project, limits); err != nil {
			return err
		}
	}
	if len(limits) > 0 {
		if err := s.p.SetQuota(c.ctx(), project, limits); err != nil {
			return err
		}
	}
	return s.writeLimits(c.ctx(), w, project)
}

// quotaDetail is what there is of a noun.
type quotaDetail struct {
	Used     int64 `json:"used"`
	Reserved int64 `json:"reserved"`
	Limit    int64 `json:"limit"`
	Default  bool  `json:"kuryr:default"` // the limit is none that was set, and administrators have none
}

// fits refuses limits below what is used.
func (s *server) fits(ctx context.Context, project string, limits map[sdn.Noun]int64) error {
	usage, err := s.p.Usage(ctx, project)
	for _, noun := range counted {
		if limit, set := limits[noun]; set && limit >= 0 && limit < usage[noun].Used && err == nil {
			err = refuse(http.StatusConflict, "InvalidQuotaValue", "Change would make usage less than 0 for the following resources: %s.", noun)
		}
	}
	return err
}

func (s *server) resetQuota(w http.ResponseWriter, c *call) error {
	if !c.caller.admin() {
		return c.adminRequired()
	}
	return s.forgetQuota(w, c)
}

// forgetQuota takes back what was set of the project's limits of the nouns, or of all.
func (s *server) forgetQuota(w http.ResponseWriter, c *call, nouns ...sdn.Noun) error {
	resetter, ok := s.p.(sdn.QuotaReset)
	if !ok {
		return sdn.Unsupported("quota", "this SDN cannot forget a project's own limits")
	}
	if err := resetter.ResetQuota(c.ctx(), c.PathValue("project"), nouns...); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
