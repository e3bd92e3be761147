package neutron

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// octavia is what is known of the cloud's Octavia: its API's version and providers, which decide what its load balancers can do, and what its load
// balancers were when they were read last. Its client has a breaker and a budget of its own: an Octavia that is away takes nothing from Neutron.
type octavia struct {
	extensions *extensions
	client     *client // paths are below /v2/lbaas
	root       *client // paths are below Octavia's own
	chosen     string  // provider that makes load balancers of which it is not said; "": see backend
	memory     balancerMemory
	usual      usualTimeouts

	lookup
	asked    bool     // what follows is of an Octavia, of now or of before it was away
	minor    int      // of the API's version 2
	backends []string // its providers; nil where it does not tell (before 2.6)
}

// octaviaPath is where version 2 is below Octavia's address.
const octaviaPath = "/v2/lbaas"

// octaviaRoot is Octavia's address as the catalogue and people have it, without version and slash.
func octaviaRoot(endpoint string) string {
	endpoint = strings.TrimRight(endpoint, "/")
	for _, end := range []string{"/lbaas", "/v2", "/v2.0"} {
		endpoint = strings.TrimSuffix(endpoint, end)
	}
	return endpoint
}

func newOctavia(
	c Config, neutron *client, extensions *extensions, known *cache[balancerState],
	now func() time.Time,
) *octavia {
	o := &octavia{extensions: extensions, chosen: c.Backend, memory: balancerMemory{
		now: now, known: known, failed: map[string]map[string]setbacks{},
	}}
	make := func(root string) *client {
		made := *neutron
		made.budget = newBudget()
		made.before = func(context.Context) error { return nil }
		made.hasTags = func() bool { return true }
		made.of = &service{name: "Octavia", root: root, typed: "/v2/", judge: judgeOctavia, endpoint: func(s *session) (string, error) {
			if s.octavia == "" {
				return "", sdn.Unsupported("load balancer", "there is no Octavia: Keystone's catalogue has no load-balancer service, and load_balancer_endpoint does not say where one is")
			}
			return s.octavia + root, nil
		}}
		return &made
	}
	o.client, o.root = make(octaviaPath), make("")
	o.client.breaker = &breaker{what: "Octavia", now: now, closed: o.forget}
	o.root.breaker = o.client.breaker
	return o
}

// learn asks for versions and providers unless they are known. The error IsUnsupported without an
// Octavia.
func (o *octavia) learn(ctx context.Context) error { return o.lookup.learn(ctx, o.ask) }

func (o *octavia) ask(ctx context.Context) error {
	var versions struct {
		Versions []struct {
			ID string `json:"id"`
		} `json:"versions"`
	}
	if err := o.root.get(ctx, "/", nil, &versions); err != nil {
		return err
	}
	minor := -1
	for _, v := range versions.Versions {
		if n, err := strconv.Atoi(strings.TrimPrefix(v.ID, "v2.")); err == nil {
			minor = max(minor, n)
		}
	}
	if minor < 0 {
		return sdn.Unsupported("load balancer", "what the catalogue calls load-balancer has no Octavia API of version 2")
	}
	var backends []string
	if minor >= sinceProviders {
		var answer struct {
			Providers []struct {
				Name string `json:"name"`
			} `json:"providers"`
		}
		if err := o.client.send(ctx, http.MethodGet, "/providers", 0, nil, &answer); err != nil {
			return err
		}
		for _, p := range answer.Providers {
			backends = append(backends, p.Name)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.minor, o.backends, o.asked = minor, backends, true
	return nil
}

// backend is the provider that makes a load balancer: the one asked for, else the one that the configuration names, else the only one there is. Octavia does not
// tell which of several is its default; it is amphora unless its operator says otherwise.
func (o *octavia) backend(asked string) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	name := cmp.Or(asked, o.chosen)
	switch {
	case o.backends == nil, name != "" && slices.Contains(o.backends, name):
		return cmp.Or(name, amphora), nil
	case name != "":
		return "", &sdn.Error{Kind: sdn.KindUnsupported, Noun: "load balancer", Field: "backend", Detail: fmt.Sprintf("Octavia has no provider %q; it has %s", name, strings.Join(o.backends, ", "))}
	}
	different := slices.DeleteFunc(slices.Clone(o.backends), func(b string) bool { return b == amphoraToo })
	if len(different) == 1 {
		return different[0], nil
	}
	return amphora, nil
}

// needOctavia learns what there is, and refuses where there is none.
func (p *Provider) needOctavia(ctx context.Context) error {
	if err := p.extensions.learn(ctx, p.client); err != nil {
		return err
	}
	return p.octavia.learn(ctx)
}
