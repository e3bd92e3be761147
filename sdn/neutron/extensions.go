package neutron

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// mandatory are the extensions that Kuryr requires, and why.
var mandatory = []struct{ alias, why string }{
	{"standard-attr-description", "the description is where Kuryr keeps what an object is for"},
}

// usual are the extensions that are assumed until Neutron was asked: those of ML2 with
// any driver since release 16. So a front end that starts while Neutron is unavailable
// offers what Neutron most probably has.
var usual = []string{
	"standard-attr-description", "standard-attr-revisions", "standard-attr-tag", "revision-if-match", "net-mtu", "net-mtu-writable", "external-net",
	"port-security", "binding", "provider", "security-group", "allowed-address-pairs", "subnet_allocation", "router", "ext-gw-mode", "extraroute",
	"quotas", "pagination", "sorting",
}

// A lookup is the answer to a question that a service gets before its first use, and again before the
// first use after it was unavailable: it may have come back as another release.
type lookup struct {
	mu     sync.Mutex // of the answer too
	fresh  bool
	asking locks
}

// forget makes the next learn ask again.
func (l *lookup) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fresh = false
}

func (l *lookup) known() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fresh
}

// learn calls ask unless the answer is known. Concurrent calls ask once.
func (l *lookup) learn(ctx context.Context, ask func(context.Context) error) error {
	if l.known() {
		return nil
	}
	unlock, err := l.asking.lock(ctx, "")
	if err != nil {
		return err
	}
	defer unlock()
	if l.known() {
		return nil
	}
	if err := ask(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fresh = true
	return nil
}

// extensions are what the Neutron can do, by the aliases that it lists.
type extensions struct {
	lookup
	log     *slog.Logger
	aliases map[string]bool // nil until asked
}

// has reports whether Neutron has the extension, or, before it was asked, whether that is
// usual.
func (e *extensions) has(alias string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.aliases == nil {
		return slices.Contains(usual, alias)
	}
	return e.aliases[alias]
}

// hasTags reports whether objects have tags.
func (e *extensions) hasTags() bool { return e.has("standard-attr-tag") || e.has("tag") }

// learn asks for them unless they are known. The error is Neutron's, or names the mandatory extension
// that it lacks.
func (e *extensions) learn(ctx context.Context, c *client) error {
	return e.lookup.learn(ctx, func(ctx context.Context) error { return e.ask(ctx, c) })
}

// ask reads the aliases by one request: gophercloud's call reads whole extensions, by
// pages.
func (e *extensions) ask(ctx context.Context, c *client) error {
	var answer struct {
		Extensions []struct {
			Alias string `json:"alias"`
		} `json:"extensions"`
	}
	if err := c.send(ctx, http.MethodGet, "/extensions?fields=alias", 0, nil, &answer); err != nil {
		return err
	}
	aliases := make(map[string]bool, len(answer.Extensions))
	for _, x := range answer.Extensions {
		aliases[x.Alias] = true
	}
	for _, m := range mandatory {
		if !aliases[m.alias] {
			return &sdn.Error{Kind: sdn.KindUnsupported, Noun: "Neutron", Detail: "it lacks the extension " + m.alias + ": " + m.why}
		}
	}
	e.mu.Lock()
	e.aliases = aliases
	e.mu.Unlock()
	lacking := slices.DeleteFunc(slices.Clone(usual), func(a string) bool { return aliases[a] })
	if len(lacking) > 0 {
		e.log.Info("Neutron lacks some usual extensions",
			"extensions", strings.Join(lacking, " "))
	}
	return nil
}

// needExtension refuses a noun that Neutron does not have without the extension.
func (p *Provider) needExtension(ctx context.Context, alias, noun, why string) error {
	if err := p.extensions.learn(ctx, p.client); err != nil {
		return err
	}
	if !p.extensions.has(alias) {
		return sdn.Unsupported(noun, "%s", why)
	}
	return nil
}

// Capabilities returns what the extensions promise, and the usual ones before Neutron was
// asked. Policy may forbid these credentials a part: then the error IsDenied.
func (p *Provider) Capabilities() sdn.Capabilities {
	has := p.extensions.has
	tagLen := 0
	if p.extensions.hasTags() {
		tagLen = maxTagLen
	}
	balancers := p.balancerCapabilities()
	return sdn.Capabilities{
		ChooseMAC:      true,
		ChooseAddress:  true,
		HostBinding:    has("binding"),
		MaxTagLen:      tagLen,
		MaxNameLen:     valid.MaxText,
		MaxBulk:        bulkSize,
		Segments:       has("provider"),
		AdminState:     true,
		AddressModes:   true,
		ServiceTypes:   has(serviceTypes),
		SubnetPools:    has("subnet_allocation"),
		Trunks:         has("trunk"),
		Routers:        has("router"),
		SharedNetwork:  has("router"),
		FloatingIPs:    has("router") && has("external-net"),
		PickFloatingIP: has("router"),
		Forwards:       has("floating-ip-port-forwarding"),
		ForwardRanges:  has("floating-ip-port-forwarding-port-ranges"),
		SecurityGroups: has("security-group"),
		Stateless:      has("stateful-security-group"),
		RemoteGroups:   has("security-group"),
		// A remote address group on ML2/OVN before release 26 opened the rule to everyone, under the
		// same alias; this one came with 26.
		AddressGroups: has("address-group") && has("security-groups-remote-address-group") && has("quota-check-limit-default"),
		QoS:           has("qos"),
		Quotas:        has("quotas"),
		LoadBalancer:  balancers,
		Backends:      p.backendCapabilities(balancers),
	}
}

const (
	maxTagLen = 60 // before release 19; 255 since, which no extension tells
	bulkSize  = 20 // ports in one request: Neutron takes 0.4 s a port and proxies cut at a minute; see pace
)
