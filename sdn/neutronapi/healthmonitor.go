package neutronapi

import (
	"context"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// HealthMonitors are served below /v2.0/lbaas/healthmonitors.
var HealthMonitors = Resource[HealthMonitor]{"healthmonitor", "healthmonitors"}

// HealthMonitor is a health monitor in Octavia's JSON.
type HealthMonitor struct {
	ID        string   `json:"id"`
	Name      string   `json:"name"`
	ProjectID string   `json:"project_id"`
	Tags      []string `json:"tags"`
	balancerStatus
	Type           string   `json:"type"`
	Delay          int64    `json:"delay"`   // seconds
	Timeout        int64    `json:"timeout"` // seconds
	MaxRetries     int      `json:"max_retries"`
	MaxRetriesDown int      `json:"max_retries_down"`
	URLPath        *string  `json:"url_path"`
	Method         *string  `json:"http_method"`
	Codes          *string  `json:"expected_codes"`
	Version        *float64 `json:"http_version"`
	Domain         *string  `json:"domain_name"`
	Pools          []ref    `json:"pools"`
}

// Octavia's defaults of a monitor of HTTP.
const (
	checkMethod, checkCodes, checkPath = "GET", "200", "/"
	checkFailures                      = 3
)

// monitors are Octavia's types of health monitors.
var monitors = []string{"HTTP", "HTTPS", "PING", "TCP", "TLS-HELLO", "UDP-CONNECT", "SCTP"}

// monitored is a health monitor with the pool it is of.
type monitored struct {
	sdn.HealthMonitor
	pool sdn.ID
}

func ofHTTP(h sdn.HealthMonitor) bool { return strings.HasPrefix(h.Type, "HTTP") }

func encodeHealthMonitor(p part[monitored]) HealthMonitor {
	h := p.value
	out := HealthMonitor{
		ID: string(h.ID), Name: h.Name, ProjectID: p.of.Project, Tags: list(h.Tags), balancerStatus: balancerState(p.of),
		Type: h.Type, Delay: int64(h.Interval / time.Second),
		Timeout: int64(h.Timeout / time.Second), MaxRetries: h.Rise, MaxRetriesDown: h.Fall, Pools: []ref{{string(h.pool)}}}
	if ofHTTP(h.HealthMonitor) {
		out.URLPath, out.Method, out.Codes = optional(h.Path), optional(checkMethod), optional(checkCodes)
	}
	return out
}

func monitorsOf(l sdn.LoadBalancer) []part[monitored] {
	var all []part[monitored]
	for _, p := range poolsOf(l) {
		if p.Health != nil {
			all = append(all, part[monitored]{monitored{*p.Health, p.ID}, l})
		}
	}
	return all
}

// monitorSpec asks for a health monitor of a pool.
type monitorSpec struct {
	sdn.HealthMonitor
	of, pool sdn.ID
}

// monitorPatch changes a health monitor.
type monitorPatch struct {
	ifRevision int64
	of, pool   sdn.ID
	change     func(*sdn.HealthMonitor)
}

func (s *server) healthMonitors() *definition[part[monitored], HealthMonitor, monitorSpec, monitorPatch] {
	type monitor = part[monitored]
	get := func(ctx context.Context, id sdn.ID) (monitor, error) {
		return needPart(ctx, s, "health monitor", id, monitorsOf, func(h monitored) sdn.ID { return h.ID })
	}
	remove := func(ctx context.Context, id sdn.ID, ifRevision int64) error {
		h, err := get(ctx, id)
		if err != nil {
			if sdn.IsNotFound(err) {
				err = nil
			}
			return err
		}
		_, err = s.changePool(ctx, h.of.ID, h.value.pool, ifRevision, func(p *sdn.Pool) error {
			p.Health = nil
			return nil
		})
		return err
	}
	return &definition[monitor, HealthMonitor, monitorSpec, monitorPatch]{
		Resource: HealthMonitors, title: "health monitor",
		meta: func(h monitor) sdn.Meta { return h.meta(h.value.ID, h.value.Name, h.value.Tags) },
		get:  get, encode: encodeHealthMonitor,
		find: func(ctx context.Context, f *filter) iter.Seq2[monitor, error] {
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
			return findParts(ctx, s, q, monitorsOf)
		},
		spec: s.specHealthMonitor,
		create: func(ctx context.Context, spec monitorSpec) (monitor, error) {
			l, err := s.changePool(ctx, spec.of, spec.pool, 0, func(p *sdn.Pool) error {
				if p.Health != nil {
					return refuse(http.StatusConflict, "DuplicateHealthMonitor", "This pool already has a health monitor")
				}
				made := spec.HealthMonitor
				p.Health = &made
				return nil
			})
			if err != nil {
				return monitor{}, err
			}
			for _, h := range monitorsOf(l) {
				if h.value.pool == spec.pool {
					return h, nil
				}
			}
			return monitor{}, sdn.Conflict(sdn.Stale, "health monitor", "", "it was taken away at once")
		},
		patch: func(_ *call, b *body, h monitor) monitorPatch {
			b.ofProject(h.of.Project)
			b.readOnly("type", "pool_id", "pools")
			given := maps.Clone(b.values)
			now := h.value.HealthMonitor
			b.healthMonitor(&now)
			return monitorPatch{b.ifRevision, h.of.ID, h.value.pool, func(h *sdn.HealthMonitor) {
				(&body{call: b.call, noun: b.noun, values: maps.Clone(given)}).healthMonitor(h)
			}}
		},
		update: func(ctx context.Context, id sdn.ID, by monitorPatch) (monitor, error) {
			_, err := s.changePool(ctx, by.of, by.pool, by.ifRevision, func(p *sdn.Pool) error {
				if p.Health == nil || p.Health.ID != id {
					return sdn.NotFound("health monitor", id)
				}
				now := *p.Health
				by.change(&now)
				p.Health = &now
				return nil
			})
			if err != nil {
				return monitor{}, err
			}
			return get(ctx, id)
		},
		remove: func(ctx context.Context, id sdn.ID) error { return remove(ctx, id, 0) }, removeIf: remove,
	}
}

// healthMonitor reads a health monitor's attributes into what it is so far; a new one is nothing so far.
func (b *body) healthMonitor(h *sdn.HealthMonitor) {
	if made := h.Type == ""; made {
		b.needs("type", "delay", "timeout", "max_retries")
		h.Type, h.Fall = or(b.oneOf("type", monitors...)), checkFailures
		if ofHTTP(*h) {
			h.Path = checkPath
		}
	}
	b.blank("name")
	if name := b.text("name"); name != nil {
		h.Name = *name
	}
	b.partTags(&h.Tags)
	seconds := func(name string, into *time.Duration) {
		if n := b.number(name, 1, most32); n != nil {
			*into = time.Duration(*n) * time.Second
		}
	}
	seconds("delay", &h.Interval)
	seconds("timeout", &h.Timeout)
	if n := b.integer("max_retries", 1, 10); n != nil {
		h.Rise = *n
	}
	if b.null("max_retries_down") {
		h.Fall = checkFailures
	} else if n := b.integer("max_retries_down", 1, 10); n != nil {
		h.Fall = *n
	}
	if b.null("url_path") {
		h.Path = ""
		if ofHTTP(*h) {
			h.Path = checkPath
		}
	} else if path := b.text("url_path"); path != nil {
		if h.Path = *path; *path != "" && !ofHTTP(*h) {
			b.invalid("url_path", "a monitor of the type %s has none", h.Type)
		}
	}
	b.unset([]any{checkMethod}, "http_method")
	b.unset([]any{checkCodes}, "expected_codes")
	b.unset(nil, "http_version", "domain_name")
}

func (s *server) specHealthMonitor(c *call, b *body) monitorSpec {
	out := monitorSpec{pool: b.parent("pool_id")}
	if b.err != nil {
		b.stop(b.err)
		return out
	}
	p, err := s.pools().own(c, out.pool)
	if err != nil {
		b.stop(err)
		return out
	}
	out.of = p.of.ID
	b.ofProject(p.of.Project)
	b.healthMonitor(&out.HealthMonitor)
	return out
}
