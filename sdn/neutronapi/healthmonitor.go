package neutronapi

import (
	"context"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Octavia's defaults of monitors.
const (
	checkMethod, checkCodes, checkPath = "GET", "200", "/"
	checkFailures                      = 3
)

// monitors are Octavia's types of health monitors.
var monitors = []string{"HTTP", "HTTPS", "PING", "TCP", "TLS-HELLO", "UDP-CONNECT", "SCTP"}

func ofHTTP(h *sdn.HealthMonitor) bool { return strings.HasPrefix(h.Type, "HTTP") }

func commonOfMonitor(h *sdn.HealthMonitor) partCommon { return partCommon{&h.ID, &h.Name, &h.Tags} }

var monitorNoun = partNoun[sdn.HealthMonitor]{
	title: "health monitor", common: commonOfMonitor, all: monitorsOf,
	at: func(all *sdn.LoadBalancerSpec, id sdn.ID) *sdn.HealthMonitor {
		for p := range eachPool(all) {
			if p.Health != nil && p.Health.ID == id {
				now := *p.Health // the provider's own may not be changed
				p.Health = &now
				return &now
			}
		}
		return nil
	},
}

func monitorsOf(l sdn.LoadBalancer) []part[sdn.HealthMonitor] {
	var all []part[sdn.HealthMonitor]
	for _, p := range poolsOf(l) {
		all = append(all, monitorOf(&p)...)
	}
	return all
}

// monitorOf returns the health monitor of a pool, if it has one.
func monitorOf(p *part[sdn.Pool]) []part[sdn.HealthMonitor] {
	if p.value.Health == nil {
		return nil
	}
	return []part[sdn.HealthMonitor]{{value: *p.value.Health, of: p.of, pool: p.value.ID}}
}

// isSeconds takes a time in seconds, a time.Duration.
func isSeconds(b *body, name string) (any, bool) {
	n, given := isNumber(1, most32)(b, name)
	if !given {
		return nil, false
	}
	return time.Duration(n.(int64)) * time.Second, true
}

var monitorAttributes = monitorFields

// monitorFields are the attributes of health monitors.
var monitorFields = append(partFields(commonOfMonitor, online), []field{
	{name: "pool_id", access: hookPost},
	{name: "pools", show: via(func(p *part[sdn.HealthMonitor]) any { return []ref{{string(p.pool)}} })},
	{name: "type", is: isWord(monitors...), show: via(func(p *part[sdn.HealthMonitor]) any { return p.value.Type }),
		post: edits(func(h *sdn.HealthMonitor, kind string) { h.Type = kind })},
	changeable("delay", isSeconds, func(p *part[sdn.HealthMonitor]) any { return int(p.value.Interval / time.Second) },
		func(h *sdn.HealthMonitor, d time.Duration) { h.Interval = d }),
	changeable("timeout", isSeconds, func(p *part[sdn.HealthMonitor]) any { return int(p.value.Timeout / time.Second) },
		func(h *sdn.HealthMonitor, d time.Duration) { h.Timeout = d }),
	changeable("max_retries", isInt(1, 10), func(p *part[sdn.HealthMonitor]) any { return p.value.Rise },
		func(h *sdn.HealthMonitor, n int) { h.Rise = n }),
	changeable("max_retries_down", nullIs(checkFailures, isInt(1, 10)), func(p *part[sdn.HealthMonitor]) any { return p.value.Fall },
		func(h *sdn.HealthMonitor, n int) { h.Fall = n }),
	{name: "url_path", access: hooked, show: via(func(p *part[sdn.HealthMonitor]) any { return ifHTTP(p, p.value.Path) })},
	{name: "http_method", is: isUnset(checkMethod), why: noSuchThing,
		show: via(func(p *part[sdn.HealthMonitor]) any { return ifHTTP(p, checkMethod) })},
	{name: "expected_codes", is: isUnset(checkCodes), why: noSuchThing,
		show: via(func(p *part[sdn.HealthMonitor]) any { return ifHTTP(p, checkCodes) })},
	{name: "http_version", is: isUnset(), show: null, why: noSuchThing},
	{name: "domain_name", is: isUnset(), show: null, why: noSuchThing},
}...)

// ifHTTP shows an attribute that only monitors of HTTP have.
func ifHTTP(p *part[sdn.HealthMonitor], text string) any {
	if !ofHTTP(&p.value) {
		return nil
	}
	return some(text)
}

func (s *server) healthMonitors() tableOf[part[sdn.HealthMonitor]] {
	t := monitorNoun.table(s)
	t.member, t.collection, t.fields = "healthmonitor", "healthmonitors", monitorFields
	t.find = sought(func(ctx context.Context, f *filter) iter.Seq2[part[sdn.HealthMonitor], error] {
		q := partQuery(f)
		if pools := f.ids("pool_id"); len(pools) > 0 {
			f.wants = append(f.wants, want{"pools", func(value any) bool {
				of, _ := value.([]any)
				return slices.ContainsFunc(of, func(p any) bool {
					named, _ := p.(map[string]any)
					return slices.Contains(pools, sdn.ID(text(named["id"])))
				})
			}})
		}
		return monitorNoun.find(ctx, s, q)
	})
	t.beforePost = hook(s.beforeMonitor)
	t.checkPost = hook(func(_ *call, b *body, e *partEdit[sdn.HealthMonitor]) { b.urlPath(e) })
	t.checkPut = hookOn(func(_ *call, b *body, _ *part[sdn.HealthMonitor], e *partEdit[sdn.HealthMonitor]) { b.urlPath(e) })
	t.create = creates(func(ctx context.Context, e partEdit[sdn.HealthMonitor]) (part[sdn.HealthMonitor], error) {
		return monitorNoun.add(ctx, s, e.of.ID, func(all *sdn.LoadBalancerSpec) error {
			p, _ := poolAt(all, e.pool)
			switch {
			case p == nil:
				return sdn.NotFound("pool", e.pool)
			case p.Health != nil:
				return refuse(http.StatusConflict, "DuplicateHealthMonitor", "This pool already has a health monitor")
			}
			p.Health = &e.value
			return nil
		}, func(p *part[sdn.HealthMonitor]) bool { return p.pool == e.pool })
	})
	t.remove, t.removeIf = monitorNoun.remover(s, func(all *sdn.LoadBalancerSpec, id sdn.ID) {
		for p := range eachPool(all) {
			if p.Health != nil && p.Health.ID == id {
				p.Health = nil
			}
		}
	})
	return t
}

// beforeMonitor reads the pool that a new health monitor is of.
func (s *server) beforeMonitor(c *call, b *body, e *partEdit[sdn.HealthMonitor]) {
	e.pool = b.parent("pool_id")
	if b.err == nil {
		p, err := s.pools().own(c, e.pool)
		b.fail(err)
		e.of = p.of
	}
	if b.err != nil {
		b.stop(b.err)
		return
	}
	b.beginMonitor(e)
}

// beginMonitor reads what a new health monitor needs, before its attributes.
func (b *body) beginMonitor(e *partEdit[sdn.HealthMonitor]) {
	b.ofProject(e.of.Project)
	b.needs("type", "delay", "timeout", "max_retries")
	e.value.Fall = checkFailures
}

// newMonitor reads a health monitor in the tree of a load balancer.
func (b *body) newMonitor(project string) *sdn.HealthMonitor {
	var e partEdit[sdn.HealthMonitor]
	e.of.Project = project
	b.beginMonitor(&e)
	b.attributes(monitorAttributes, &e)
	b.urlPath(&e)
	return &e.value
}

// urlPath reads the path that a monitor of HTTP asks for. Its default is "/".
func (b *body) urlPath(e *partEdit[sdn.HealthMonitor]) {
	if !b.post && !b.has("url_path") {
		return
	}
	path := ""
	if ofHTTP(&e.value) {
		path = checkPath
	}
	if !b.null("url_path") && b.has("url_path") {
		if path = or(b.text("url_path")); path != "" && !ofHTTP(&e.value) {
			b.invalid("url_path", "a monitor of the type %s has none", e.value.Type)
		}
	}
	e.edit(func(h *sdn.HealthMonitor) { h.Path = path })
}
