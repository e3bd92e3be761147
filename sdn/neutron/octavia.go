package neutron

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// octavia is what is known of the cloud's Octavia: the version of its API and its
// providers, which decide what its load balancers can do, and the load balancers as read
// last. Its client has a breaker and a budget of its own: an unavailable Octavia takes
// nothing from Neutron.
type octavia struct {
	extensions *extensions
	client     *client // paths are below /v2/lbaas
	root       *client // paths are below Octavia's own
	chosen     string  // provider that makes load balancers of which it is not said; "": see backend
	memory     balancerMemory
	usual      usualTimeouts

	lookup
	asked    bool     // what follows is of an Octavia, of now or of before it was unavailable
	minor    int      // of the API's version 2
	backends []string // its providers; nil where it does not tell (before 2.6)
}

// octaviaPath is version 2 below Octavia's address.
const octaviaPath = "/v2/lbaas"

// octaviaRoot returns Octavia's address, as the catalogue and users write it, without
// version and slash.
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
		endpoint := func(s *session) (string, error) {
			if s.octavia == "" {
				return "", sdn.Unsupported("load balancer", "there is no Octavia: Keystone's catalogue has "+
					"no load-balancer service, and load_balancer_endpoint does not say where one is")
			}
			return s.octavia + root, nil
		}
		made.of = &service{
			name: "Octavia", root: root, typed: "/v2/", judge: judgeOctavia, endpoint: endpoint,
		}
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

// ask reads versions and providers, each by one request: gophercloud's calls read pages.
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

// backend returns the provider that makes a load balancer: the one asked for, that of the
// configuration, or the only one there is. Octavia does not tell which of several is its
// default; it is amphora unless its operator changes that.
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

// needOctavia learns what there is, and refuses if there is none.
func (p *Provider) needOctavia(ctx context.Context) error {
	if err := p.extensions.learn(ctx, p.client); err != nil {
		return err
	}
	return p.octavia.learn(ctx)
}

// The providers of Octavia that are known here.
const (
	amphora    = "amphora"
	amphoraToo = "octavia" // another name of it
	ovn        = "ovn"
)

// isAmphora reports whether a provider is amphora, of which Octavia has several names
// (amphora, amphorav2, octavia).
func isAmphora(provider string) bool {
	return strings.HasPrefix(provider, amphora) || provider == amphoraToo
}

// The minor versions of Octavia's API since which it has something.
const (
	sinceTags      = 5
	sinceProviders = 6
	sinceSources   = 12
	sinceMixed     = 13
	sinceSCTP      = 23
	sinceVIPs      = 26
	sinceGroups    = 29
)

// backends are the capabilities of Octavia's providers with the newest API. What OVN
// accepts and ignores (timeouts, limits, affinity before its release of 2024) is none.
var backends = map[string]sdn.LoadBalancerCapabilities{
	amphora: {
		Protocols: []sdn.Protocol{sdn.TCP, sdn.UDP, sdn.SCTP}, Algorithms: []sdn.Algorithm{sdn.RoundRobin, sdn.LeastConns, sdn.SourceIP},
		Affinity: true, SourceRanges: true, HealthMonitors: true, MixedProtocols: true, TwoFamilies: true, Weights: true, Drain: true, Limits: true, Timeouts: true,
		ProxyProtocol: true, HTTP: true, Zones: true, Share: true, Groups: true, AnyMember: true, HairpinSource: "lb",
	},
	ovn: {
		Protocols: []sdn.Protocol{sdn.TCP, sdn.UDP, sdn.SCTP}, Algorithms: []sdn.Algorithm{sdn.SourceIPPort},
		ClientIPKept: true, HealthMonitors: true, MixedProtocols: true, Share: true, HairpinSource: "vip",
	},
}

// has reports whether the API has what came with a minor version.
func (o *octavia) has(since int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.minor >= since
}

// capabilities returns those of a provider with this Octavia. An unknown provider counts
// as amphora: it refuses itself what it cannot.
func (o *octavia) capabilities(backend string) sdn.LoadBalancerCapabilities {
	can, ok := backends[backend]
	if !ok {
		can = backends[amphora]
	}
	if !o.has(sinceSCTP) {
		can.Protocols = []sdn.Protocol{sdn.TCP, sdn.UDP}
	}
	can.SourceRanges = can.SourceRanges && o.has(sinceSources)
	can.MixedProtocols = can.MixedProtocols && o.has(sinceMixed)
	can.TwoFamilies = can.TwoFamilies && o.has(sinceVIPs)
	can.Groups = can.Groups && o.has(sinceGroups)
	return can
}

// balancerCapabilities returns those of the default provider; none before Octavia has
// answered once.
func (p *Provider) balancerCapabilities() sdn.LoadBalancerCapabilities {
	p.octavia.mu.Lock()
	asked := p.octavia.asked
	p.octavia.mu.Unlock()
	if !asked {
		return sdn.LoadBalancerCapabilities{}
	}
	backend, err := p.octavia.backend("")
	if err != nil {
		return sdn.LoadBalancerCapabilities{}
	}
	return p.octavia.capabilities(backend)
}

// backendCapabilities returns those of each known provider, if the default has some.
// Octavia refuses a provider that it does not have.
func (p *Provider) backendCapabilities(usual sdn.LoadBalancerCapabilities) map[string]sdn.LoadBalancerCapabilities {
	if len(usual.Protocols) == 0 {
		return nil
	}
	return map[string]sdn.LoadBalancerCapabilities{
		amphora: p.octavia.capabilities(amphora), amphoraToo: p.octavia.capabilities(amphora), ovn: p.octavia.capabilities(ovn),
	}
}

// lacking is the error of the first thing that a load balancer is to be and its provider cannot make, nil where it can all.
func lacking(backend string, can sdn.LoadBalancerCapabilities, spec sdn.LoadBalancerSpec) error {
	var err error
	need := func(can, wanted bool, field, what string, args ...any) {
		if err == nil && wanted && !can {
			err = &sdn.Error{Kind: sdn.KindUnsupported, Noun: "load balancer", Field: fmt.Sprintf(field, args...), Detail: what + ": Octavia's provider " + backend + ", by this Octavia's API, has no such thing"}
		}
	}
	need(can.TwoFamilies, len(spec.VIPs) > 1, "vips", "VIPs of both families in one load balancer")
	need(can.Groups, len(spec.Groups) > 0, "groups", "security groups of the VIP")
	need(can.Zones, spec.Flavor != "", "flavor", "a flavor")
	need(can.Zones, spec.Zone != "", "zone", "an availability zone")
	need(can.FreePools, len(spec.Pools) > 0, "pools", "a pool without a listener")
	ports := map[uint16]bool{}
	for i, l := range spec.Listeners {
		need(slices.Contains(can.Protocols, l.Protocol), true, "listeners[%d].protocol", protocolName(l.Protocol), i)
		need(can.MixedProtocols, ports[l.Port], "listeners[%d].protocol", "one port of two protocols", i)
		ports[l.Port] = true
		need(can.SourceRanges, len(l.Sources) > 0, "listeners[%d].sources", "who may connect", i)
		need(can.Limits, l.ConnectionLimit > 0, "listeners[%d].connection_limit", "a limit of connections", i)
		need(can.Timeouts, l.ClientTimeout > 0, "listeners[%d].client_timeout", "a timeout of clients", i)
		need(can.Timeouts, l.MemberTimeout > 0, "listeners[%d].member_timeout", "a timeout of members", i)
		need(can.Timeouts, l.ConnectTimeout > 0, "listeners[%d].connect_timeout", "a timeout of connecting", i)
		need(can.Timeouts, l.InspectTimeout > 0, "listeners[%d].inspect_timeout", "a timeout of inspection", i)
		need(can.ProxyProtocol, l.ProxyProtocol, "listeners[%d].proxy_protocol", "the PROXY protocol", i)
		need(can.HTTP, l.ForwardedFor, "listeners[%d].forwarded_for", "HTTP", i)
		need(can.HTTP, l.Certificate != "", "listeners[%d].certificate", "TLS", i)
		need(can.PartTags, len(l.Tags)+len(l.Pool.Tags) > 0, "listeners[%d].tags", "tags of listeners and pools", i)
		need(can.FreePools, l.WithoutPool, "listeners[%d].without_pool", "a listener without a pool", i)
		p := l.Pool
		need(slices.Contains(can.Algorithms, p.Algorithm), p.Algorithm != sdn.AnyAlgorithm, "listeners[%d].pool.algorithm", string(p.Algorithm), i)
		need(can.Affinity, p.Affinity.ClientIP, "listeners[%d].pool.affinity", "affinity", i)
		need(can.AffinityTCP, p.Affinity.Timeout > 0 && l.Protocol == sdn.TCP, "listeners[%d].pool.affinity.timeout", "a timeout of affinity with TCP", i)
		need(can.HealthMonitors, p.Health != nil, "listeners[%d].pool.health", "a health monitor", i)
		for j, m := range p.Members {
			need(can.PartTags, len(m.Tags) > 0, "listeners[%d].pool.members[%d].tags", "tags of a member", i, j)
			need(can.Drain, m.Drain, "listeners[%d].pool.members[%d].drain", "a member without new connections", i, j)
		}
	}
	return err
}

// octaviaSays are what Octavia's refusals mean, by what is in their text: they have no types, and their statuses mislead.
var octaviaSays = []struct {
	status int
	text   *regexp.Regexp
	means  meaning
}{
	{http.StatusForbidden, regexp.MustCompile(`Quota has been met`), meaning{sdn.KindExhausted, sdn.NoQuota, ""}},
	{http.StatusConflict, regexp.MustCompile(`is immutable and cannot be updated|Invalid state \S+ of loadbalancer`), meaning{sdn.KindPending, "", ""}},
	{http.StatusConflict, regexp.MustCompile(`(?i)\bvip\b|\bIP address\b.*\b(in use|allocated)`), meaning{sdn.KindConflict, sdn.AddressInUse, "vips[0].addr"}},
	{http.StatusConflict, regexp.MustCompile(`in use`), meaning{sdn.KindConflict, sdn.InUse, ""}},
	{http.StatusBadRequest, regexp.MustCompile(`(?i)has children|existing (listeners|pools)`), meaning{sdn.KindConflict, sdn.InUse, ""}},
	{http.StatusBadRequest, regexp.MustCompile(`(Subnet|Network|Port|Flavor|Availability Zone) \S+ (not found|could not be found)`), meaning{sdn.KindNotFound, "", ""}},
	{http.StatusBadRequest, regexp.MustCompile(`Provider .* is not enabled`), meaning{sdn.KindUnsupported, "", "backend"}},
	{http.StatusBadRequest, regexp.MustCompile(`Invalid flavor_id|selected flavor is not allowed`), meaning{sdn.KindInvalid, "", "flavor"}},
	{http.StatusBadRequest, regexp.MustCompile(`Invalid availability.zone|selected availability_zone is not allowed`), meaning{sdn.KindInvalid, "", "zone"}},
	{http.StatusBadRequest, regexp.MustCompile(`IP version incompatible with VIP`), meaning{sdn.KindInvalid, "", "sources"}},
	{http.StatusBadRequest, regexp.MustCompile(`Could not retrieve certificate|PKCS12`), meaning{sdn.KindInvalid, "", "certificate"}},
	{http.StatusNotImplemented, regexp.MustCompile(`Provider .* was not found`), meaning{sdn.KindUnsupported, "", "backend"}},
	{http.StatusNotImplemented, regexp.MustCompile(`allowed_cidrs`), meaning{sdn.KindUnsupported, "", "sources"}},
	{http.StatusNotImplemented, regexp.MustCompile(`algorithm`), meaning{sdn.KindUnsupported, "", "algorithm"}},
	{http.StatusNotImplemented, regexp.MustCompile(`(?i)health`), meaning{sdn.KindUnsupported, "", "health"}},
	{http.StatusNotImplemented, regexp.MustCompile(`Subnet is required|monitor options`), meaning{sdn.KindUnsupported, "", "members"}},
	{http.StatusNotImplemented, regexp.MustCompile(`protocol`), meaning{sdn.KindUnsupported, "", "protocol"}},
	// Drivers that make the VIP's port themselves pass on what Neutron said of it.
	{http.StatusInternalServerError, regexp.MustCompile(`already allocated in subnet`), meaning{sdn.KindConflict, sdn.AddressInUse, "vips[0].addr"}},
	{http.StatusInternalServerError, regexp.MustCompile(`No more IP addresses available`), meaning{sdn.KindExhausted, sdn.NoAddresses, "vips"}},
	{http.StatusInternalServerError, regexp.MustCompile(`not a valid IP for the specified subnet`), meaning{sdn.KindInvalid, "", "vips[0].addr"}},
	{http.StatusInternalServerError, regexp.MustCompile(`Quota exceeded for resources`), meaning{sdn.KindExhausted, sdn.NoQuota, ""}},
}

// invalidAttribute finds what a 400 is about: "Invalid input for field/attribute name. Value: …".
var invalidAttribute = regexp.MustCompile(`Invalid input for field/attribute (\w+)`)

// absentNoun finds what a refusal does not find.
var absentNoun = regexp.MustCompile(`^([A-Z]\w+(?: [A-Z]\w+)*) \S+ (?:not found|could not be found)`)

// judgeOctavia reads a refusal. A 404 that is not Octavia's own is a proxy's that does not reach it.
func judgeOctavia(status int, body []byte) (fault, meaning) {
	var said struct {
		Text string `json:"faultstring"`
	}
	_ = json.Unmarshal(body, &said)
	f := fault{Message: said.Text}
	if said.Text == "" {
		f = parseFault(body)
	}
	for _, s := range octaviaSays {
		if s.status == status && s.text.MatchString(f.Message) {
			if m := absentNoun.FindStringSubmatch(f.Message); m != nil && s.means.kind == sdn.KindNotFound {
				f.Type = strings.ReplaceAll(m[1], " ", "") + "NotFound" // for who names the noun
			}
			return f, s.means
		}
	}
	switch status {
	case http.StatusNotFound:
		if said.Text == "" {
			return f, meaning{kind: sdn.KindUnavailable}
		}
		return f, meaning{kind: sdn.KindNotFound}
	case http.StatusConflict:
		return f, meaning{sdn.KindConflict, sdn.Exists, ""}
	case http.StatusForbidden:
		return f, meaning{kind: sdn.KindDenied}
	case http.StatusBadRequest:
		field := ""
		if m := invalidAttribute.FindStringSubmatch(f.Message); m != nil {
			field = m[1]
		}
		return f, meaning{kind: sdn.KindInvalid, field: field}
	case http.StatusNotImplemented, http.StatusMethodNotAllowed:
		return f, meaning{kind: sdn.KindUnsupported}
	case http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong:
		return f, meaning{kind: sdn.KindInvalid}
	}
	return f, meaning{kind: sdn.KindUnavailable}
}
