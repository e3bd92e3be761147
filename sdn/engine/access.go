package engine

import (
	"cmp"
	"context"
	"iter"
	"slices"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// accessRow is an access of a single project, or of all projects to an object whose row has no Shared. Shared and
// External of the other rows are shown as accesses of Everyone.
type accessRow struct{ sdn.Access }

func (r *accessRow) meta() *sdn.Meta { return &r.Meta }
func (r *accessRow) counted() bool   { return true }

var accesses = table[accessRow, *accessRow]{sdn.NounRBACPolicy, "RBAC policy", []index[accessRow]{
	{"key", true, func(r *accessRow) []string { return ident(r.Meta) }},
	{"object", false, func(r *accessRow) []string { return some(r.Object) }},
	{"project", false, func(r *accessRow) []string { return some(sdn.ID(r.Project)) }},
	{"target", false, func(r *accessRow) []string { return []string{r.Target} }},
	{"grant", true, func(r *accessRow) []string { return []string{grantKey(r.Object, r.External, r.Target)} }},
}}

func grantKey(object sdn.ID, external bool, target string) string {
	action := "shared"
	if external {
		action = "external"
	}
	return key(string(object), action, target)
}

// granted reports whether a project, or every project, was given access to an object.
func granted(b Tx, object sdn.ID, external bool, project string) bool {
	return accesses.ID(b, "grant", grantKey(object, external, project)) != "" ||
		accesses.ID(b, "grant", grantKey(object, external, sdn.Everyone)) != ""
}

// flagID is the id of the access that stands for an object's being Shared or External.
func flagID(object sdn.ID, external bool) sdn.ID {
	return sdn.ID(uuid.NewSHA1(uuid.NameSpaceOID, []byte(grantKey(object, external, sdn.Everyone))).String())
}

// flagged returns the accesses to objects of some nouns, or of all, that stand for Shared and External.
func flagged(b Tx, nouns []sdn.Noun) (list []sdn.Access, err error) {
	asked := func(noun sdn.Noun) bool { return len(nouns) == 0 || slices.Contains(nouns, noun) }
	add := func(m sdn.Meta, noun sdn.Noun, external bool) {
		list = append(list, sdn.Access{
			Meta: sdn.Meta{
				ID: flagID(m.ID, external), Base: sdn.Base{Project: m.Project}, Revision: 1, Created: m.Created, Updated: m.Created,
			},
			Noun: noun, Object: m.ID, External: external, Target: sdn.Everyone,
		})
	}
	if asked(Networks.Noun) {
		shared, err := Networks.All(b, "shared", "x")
		if err != nil {
			return nil, err
		}
		for _, n := range shared {
			add(n.Meta, Networks.Noun, false)
		}
		external, err := Networks.All(b, "external", "x")
		if err != nil {
			return nil, err
		}
		for _, n := range external {
			if !n.Restricted {
				add(n.Meta, Networks.Noun, true)
			}
		}
	}
	if asked(subnetPools.Noun) {
		shared, err := subnetPools.All(b, "shared", "x")
		if err != nil {
			return nil, err
		}
		for _, p := range shared {
			add(p.Meta, subnetPools.Noun, false)
		}
	}
	if asked(addressScopes.Noun) {
		shared, err := addressScopes.All(b, "shared", "x")
		if err != nil {
			return nil, err
		}
		for _, s := range shared {
			add(s.Meta, addressScopes.Noun, false)
		}
	}
	if !asked(QoSPolicies.Noun) {
		return list, nil
	}
	return list, QoSPolicies.Each(b, func(r *QoSPolicyRow) error {
		if r.Shared {
			add(r.Meta, QoSPolicies.Noun, false)
		}
		return nil
	})
}

func (e *Engine) showAccess(_ Tx, r *accessRow) (sdn.Access, error) {
	e.fillMeta(&r.Meta)
	return r.Access, nil
}

// CreateAccess gives a project, or all, access to an object.
func (e *Engine) CreateAccess(ctx context.Context, spec sdn.AccessSpec) (out sdn.Access, err error) {
	if err := valid.Base("RBAC policy", spec.Base); err != nil {
		return out, err
	}
	err = checkTarget(spec.Target)
	switch {
	case err != nil:
		return out, err
	case !slices.Contains(sdn.SharedNouns, spec.Noun):
		return out, sdn.Invalid("RBAC policy", "object_type", "%q cannot be shared", spec.Noun)
	case spec.External && spec.Noun != sdn.NounNetwork:
		return out, sdn.Invalid("RBAC policy", "action", "only networks can be external")
	}
	err = e.update(ctx, func(t *tx) error {
		r := &accessRow{sdn.Access{
			Meta: newMeta(spec.Base), Noun: spec.Noun, Object: spec.Object, External: spec.External, Target: spec.Target,
		}}
		if err := t.grant(r); err != nil {
			return err
		}
		out, err = e.showAccess(t.Tx, r)
		return err
	})
	return out, err
}

func checkTarget(target string) error {
	if target == "" {
		return sdn.Invalid("RBAC policy", "target_tenant", "is missing")
	}
	return valid.Text("RBAC policy", "target_tenant", target)
}

// hasFlag reports whether an access is stored as a flag of the object.
func hasFlag(a sdn.Access) bool {
	return a.Target == sdn.Everyone && (a.Noun == Networks.Noun || a.Noun == subnetPools.Noun ||
		a.Noun == QoSPolicies.Noun ||
		a.Noun == addressScopes.Noun)
}

// grant stores an access. One that stands for a flag gets the flag's id.
func (t *tx) grant(r *accessRow) error {
	if hasFlag(r.Access) {
		project, err := t.setFlag(r.Access, true)
		if err != nil {
			return err
		}
		r.ID, r.Project, r.Revision, r.Created, r.Updated = flagID(r.Object, r.External), project, 1, t.now, t.now
		return nil
	}
	if err := t.checkNew(r.Access); err != nil {
		return err
	}
	if r.External {
		n, err := Networks.Need(t.Tx, r.Object)
		if err != nil {
			return err
		}
		if !n.External {
			if err := t.setExternal(n, true); err != nil {
				return err
			}
			n.Restricted = true
			if err := t.checkNetwork(n); err != nil {
				return err
			}
			if err := Networks.put(t, n); err != nil {
				return err
			}
		}
	} else if _, err := t.sharedMeta(r.Noun, r.Object); err != nil {
		return err
	}
	return accesses.put(t, r)
}

func (t *tx) checkNew(a sdn.Access) error {
	if accesses.ID(t.Tx, "grant", grantKey(a.Object, a.External, a.Target)) != "" {
		return sdn.Conflict(sdn.Exists, accesses.title, "", "%s has this access to %s", a.Target, a.Object)
	}
	return nil
}

// setFlag makes an object Shared or External, or no longer, and returns its project.
func (t *tx) setFlag(a sdn.Access, on bool) (project string, err error) {
	twice := func(is bool) error {
		if is == on {
			return sdn.Conflict(sdn.Exists, "RBAC policy", "", "every project has this access to %s", a.Object)
		}
		return nil
	}
	switch a.Noun {
	case Networks.Noun:
		n, err := Networks.Need(t.Tx, a.Object)
		if err != nil {
			return "", err
		}
		if a.External {
			if err := twice(n.External && !n.Restricted); err != nil {
				return "", err
			}
			if a.Object == t.e.external {
				return "", builtIn("network", a.Object)
			}
			return n.Project, t.openExternal(n, on)
		}
		if err := twice(n.Shared); err != nil {
			return "", err
		}
		if a.Object == t.e.external {
			return "", builtIn("network", a.Object)
		}
		if err := t.setShared(n, on); err != nil {
			return "", err
		}
		return n.Project, Networks.put(t, n)
	case subnetPools.Noun:
		r, err := subnetPools.Need(t.Tx, a.Object)
		if err == nil {
			err = twice(r.Shared)
		}
		if err != nil {
			return "", err
		}
		r.Shared = on
		return r.Project, subnetPools.put(t, r)
	case addressScopes.Noun:
		r, err := addressScopes.Need(t.Tx, a.Object)
		if err == nil {
			err = twice(r.Shared)
		}
		if err != nil {
			return "", err
		}
		r.Shared = on
		return r.Project, addressScopes.put(t, r)
	default:
		r, err := QoSPolicies.Need(t.Tx, a.Object)
		if err == nil {
			err = twice(r.Shared)
		}
		if err != nil {
			return "", err
		}
		r.Shared = on
		return r.Project, QoSPolicies.put(t, r)
	}
}

// openExternal makes a network external for every project, or for those alone that have an access.
func (t *tx) openExternal(n *NetworkRow, open bool) error {
	switch {
	case open && n.External:
		n.Restricted = false
	case open:
		if err := t.setExternal(n, true); err != nil {
			return err
		}
		if err := t.checkNetwork(n); err != nil {
			return err
		}
	default:
		restricted, err := t.hasExternalAccess(n.ID)
		if err != nil {
			return err
		}
		if n.Restricted = restricted; restricted {
			break
		}
		if err := t.setExternal(n, false); err != nil {
			return err
		}
	}
	return Networks.put(t, n)
}

func (t *tx) hasExternalAccess(network sdn.ID) (bool, error) {
	rows, err := accesses.All(t.Tx, "object", string(network))
	return slices.ContainsFunc(rows, func(r *accessRow) bool { return r.External }), err
}

// sharedMeta is what every object has of one that can be shared.
func (t *tx) sharedMeta(noun sdn.Noun, id sdn.ID) (sdn.Meta, error) {
	switch noun {
	case Networks.Noun:
		return metaOf(t.Tx, Networks, id)
	case subnetPools.Noun:
		return metaOf(t.Tx, subnetPools, id)
	case AddressGroups.Noun:
		return metaOf(t.Tx, AddressGroups, id)
	case SecurityGroups.Noun:
		return metaOf(t.Tx, SecurityGroups, id)
	case addressScopes.Noun:
		return metaOf(t.Tx, addressScopes, id)
	}
	return metaOf(t.Tx, QoSPolicies, id)
}

func metaOf[T any, R row[T]](b Tx, of table[T, R], id sdn.ID) (sdn.Meta, error) {
	r, err := of.Need(b, id)
	if err != nil {
		return sdn.Meta{}, err
	}
	return *r.meta(), nil
}

// checkUsers refuses to remove an access whose target still uses the object and has no other one.
func (t *tx) checkUsers(a sdn.Access) error {
	m, err := t.sharedMeta(a.Noun, a.Object)
	if err != nil {
		return err
	}
	open, err := t.isOpen(a)
	if err != nil || open {
		return err
	}
	projects, err := t.usersOf(a)
	if err != nil {
		return err
	}
	for _, project := range projects {
		lost := project == a.Target || a.Target == sdn.Everyone && project != ""
		if lost && project != m.Project && !granted(t.Tx, a.Object, a.External, project) {
			return inUse("RBAC policy", a.ID, "project %s uses %s %s", project, a.Noun, a.Object)
		}
	}
	return nil
}

// isOpen reports whether every project has the access by a flag.
func (t *tx) isOpen(a sdn.Access) (bool, error) {
	switch a.Noun {
	case Networks.Noun:
		n, err := Networks.Need(t.Tx, a.Object)
		if err != nil {
			return false, err
		}
		if a.External {
			return n.External && !n.Restricted, nil
		}
		return n.Shared, nil
	case subnetPools.Noun:
		r, err := subnetPools.Need(t.Tx, a.Object)
		return err == nil && r.Shared, err
	case addressScopes.Noun:
		r, err := addressScopes.Need(t.Tx, a.Object)
		return err == nil && r.Shared, err
	case QoSPolicies.Noun:
		r, err := QoSPolicies.Need(t.Tx, a.Object)
		return err == nil && r.Shared, err
	}
	return false, nil
}

// usersOf lists the projects that use an object.
func (t *tx) usersOf(a sdn.Access) ([]string, error) {
	id := string(a.Object)
	switch {
	case a.External:
		users, err := projectsOf(t.Tx, Routers, "gateway", id)
		if err != nil {
			return nil, err
		}
		more, err := projectsOf(t.Tx, FloatingIPs, "network", id)
		return append(users, more...), err
	case a.Noun == Networks.Noun:
		var users []string
		rows, err := Ports.All(t.Tx, "network", id)
		for _, r := range rows {
			if r.counted() {
				users = append(users, r.Project)
			}
		}
		return users, err
	case a.Noun == subnetPools.Noun:
		return projectsOf(t.Tx, Subnets, "pool", id)
	case a.Noun == addressScopes.Noun:
		return projectsOf(t.Tx, subnetPools, "scope", id)
	case a.Noun == AddressGroups.Noun:
		return projectsOf(t.Tx, SecurityGroups, "set", id)
	case a.Noun == SecurityGroups.Noun:
		users, err := projectsOf(t.Tx, Ports, "group", id)
		if err != nil {
			return nil, err
		}
		more, err := projectsOf(t.Tx, SecurityGroups, "remote", id)
		return append(users, more...), err
	}
	users, err := projectsOf(t.Tx, Ports, "qos", id)
	if err != nil {
		return nil, err
	}
	more, err := projectsOf(t.Tx, Networks, "qos", id)
	return append(users, more...), err
}

func projectsOf[T any, R row[T]](b Tx, of table[T, R], index, k string) (projects []string, err error) {
	rows, err := of.All(b, index, k)
	for _, r := range rows {
		projects = append(projects, r.meta().Project)
	}
	return projects, err
}

// Access gets an access.
func (e *Engine) Access(ctx context.Context, id sdn.ID) (out sdn.Access, err error) {
	if err := ctx.Err(); err != nil {
		return out, err
	}
	err = e.view(func(b Tx) error {
		r, err := accessOf(b, id)
		if err == nil {
			out, err = e.showAccess(b, r)
		}
		return err
	})
	return out, err
}

// FindAccesses finds accesses, of which there are few.
func (e *Engine) FindAccesses(ctx context.Context, q sdn.AccessQuery) iter.Seq2[sdn.Access, error] {
	scans, err := e.scansOf(ctx, accesses.Noun, q.Match, byEach("object", q.Objects), byEach("target", q.Targets),
		byProject(q.Match))
	if err != nil {
		return broken[sdn.Access](err)
	}
	return func(yield func(sdn.Access, error) bool) {
		var list []sdn.Access
		if len(q.Targets) == 0 || slices.Contains(q.Targets, sdn.Everyone) {
			var flags []sdn.Access
			if err := e.view(func(b Tx) (err error) { flags, err = flagged(b, q.Nouns); return err }); err != nil {
				yield(sdn.Access{}, err)
				return
			}
			list = slices.DeleteFunc(flags, func(a sdn.Access) bool { return !q.Matches(a) })
		}
		for a, err := range search(ctx, e, accesses, scans, e.showAccess, q.Matches) {
			if err != nil {
				yield(sdn.Access{}, err)
				return
			}
			list = append(list, a)
		}
		slices.SortFunc(list, func(a, b sdn.Access) int { return cmp.Compare(a.ID, b.ID) })
		for _, a := range list {
			if !yield(a, nil) {
				return
			}
		}
	}
}

// UpdateAccess gives an access to another target.
func (e *Engine) UpdateAccess(ctx context.Context, id sdn.ID, target string, ifRevision int64) (out sdn.Access,
	err error) {
	if err := checkTarget(target); err != nil {
		return out, err
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := t.needAccess(id, ifRevision)
		if err != nil {
			return err
		}
		old, other := r.Access, &accessRow{r.Access}
		if other.Target = target; old.Target == target {
			out, err = e.showAccess(t.Tx, r)
			return err
		}
		switch {
		case hasFlag(old): // first the new one, so that its target keeps the access
			other.Meta = newMeta(sdn.Base{Project: old.Project})
			if err = t.grant(other); err == nil {
				_, err = t.setFlag(old, false)
			}
		case hasFlag(other.Access):
			if err = accesses.del(t, id); err == nil {
				err = t.grant(other)
			}
		default:
			if err = t.checkNew(other.Access); err == nil {
				err = accesses.put(t, other)
			}
		}
		if err != nil {
			return err
		}
		if out, err = e.showAccess(t.Tx, other); err != nil {
			return err
		}
		return t.checkUsers(old)
	})
	return out, err
}

// accessOf finds an access, stored or standing for a flag.
func accessOf(b Tx, id sdn.ID) (*accessRow, error) {
	r, err := accesses.Get(b, id)
	if r != nil || err != nil {
		return r, err
	}
	list, err := flagged(b, nil)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(list, func(a sdn.Access) bool { return a.ID == id }); i >= 0 {
		return &accessRow{list[i]}, nil
	}
	return nil, sdn.NotFound(accesses.title, id)
}

// needAccess finds an access to change.
func (t *tx) needAccess(id sdn.ID, ifRevision int64) (*accessRow, error) {
	r, err := accessOf(t.Tx, id)
	if err != nil {
		return nil, err
	}
	if ifRevision != 0 && ifRevision != r.Revision {
		return nil, stale(accesses.title, &r.Meta)
	}
	return r, nil
}

// DeleteAccess removes an access.
func (e *Engine) DeleteAccess(ctx context.Context, id sdn.ID, ifRevision int64) error {
	return e.update(ctx, func(t *tx) error {
		r, err := t.needAccess(id, ifRevision)
		if sdn.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if hasFlag(r.Access) {
			if _, err := t.setFlag(r.Access, false); err != nil {
				return err
			}
		} else if err := accesses.del(t, id); err != nil {
			return err
		}
		if err := t.checkUsers(r.Access); err != nil || !r.External {
			return err
		}
		n, err := Networks.Need(t.Tx, r.Object)
		if err != nil || !n.Restricted {
			return err
		}
		return t.openExternal(n, false)
	})
}

// dropAccess removes the accesses to a deleted object.
func (t *tx) dropAccess(object sdn.ID) error {
	for _, id := range accesses.IDs(t.Tx, "object", string(object)) {
		if err := accesses.del(t, id); err != nil {
			return err
		}
	}
	return nil
}

// dropExternalAccess removes the accesses to a network that is no longer external.
func (t *tx) dropExternalAccess(network sdn.ID) error {
	rows, err := accesses.All(t.Tx, "object", string(network))
	if err != nil {
		return err
	}
	for _, r := range rows {
		if !r.External {
			continue
		}
		if err := accesses.del(t, r.ID); err != nil {
			return err
		}
	}
	return nil
}
