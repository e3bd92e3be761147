package neutron

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Provider is a Neutron as an sdn.Provider.
type Provider struct {
	config     Config
	owner      *owner
	log        *slog.Logger
	client     *client
	extensions *extensions
	octavia    *octavia
	cache      *caches
	posting    turns // of ports
	pace       pace  // of making them
	locks      locks // by collection and Key, by "subnets of" and network, …
	http       http.Client
}

// Open checks the configuration, with the form of credentials and the certificate files.
// The error IsInvalid and names the field. Open asks neither Keystone nor Neutron.
func Open(c Config, log *slog.Logger) (*Provider, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	resolved, err := c.resolve()
	if err != nil {
		return nil, err
	}
	if resolved.tls.InsecureSkipVerify {
		log.Warn("certificates of Keystone and Neutron are not verified")
	}
	if resolved.none {
		c.Project = c.unasked()
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Observe == nil {
		c.Observe = func(Request) {}
	}
	p := &Provider{
		config: c, log: log, extensions: &extensions{log: log},
		posting: make(turns, postsAtOnce), http: newHTTPClient(resolved.tls),
	}
	p.client = &client{
		of: neutronService, http: p.http,
		auth: &authenticator{
			config: c, http: p.http, now: time.Now, observe: c.Observe, log: log,
			breaker: &breaker{what: "Keystone", now: time.Now},
		},
		budget: newBudget(), timeout: c.Timeout, now: time.Now, observe: c.Observe, backoff: awaitRetry,
	}
	p.owner = &owner{installation: c.Installation, project: p.ownProject}
	p.cache = newCaches(c, p.owner, time.Now)
	p.client.breaker = &breaker{what: p.client.who(), now: time.Now, closed: p.extensions.forget}
	p.client.before = func(ctx context.Context) error { return p.extensions.learn(ctx, p.client) }
	p.client.hasTags = p.extensions.hasTags
	p.octavia = newOctavia(c, p.client, p.extensions, p.cache.balancers, time.Now)
	return p, nil
}

// Installation is Config.Installation.
func (p *Provider) Installation() string { return p.config.Installation }

// Host is Config.Host.
func (p *Provider) Host() string { return p.config.Host }

// Ping asks for one network's id, which every role that can use Kuryr may read. Until
// Octavia has answered once, Ping also asks it what it can do, and ignores the result.
func (p *Provider) Ping(ctx context.Context) error {
	err := p.client.get(ctx, "/networks", url.Values{"limit": {"1"}, "fields": {"id"}}, nil)
	if err == nil {
		limited, cancel := context.WithTimeout(ctx, askedBeside)
		defer cancel()
		if err := p.octavia.learn(limited); err != nil && !sdn.IsUnsupported(err) {
			p.log.Debug("no load balancers until Octavia answers", "err", err)
		}
	}
	return err
}

// askedBeside is how long Ping waits for Octavia.
const askedBeside = 3 * time.Second

// Close closes the idle connections. Calls in flight continue.
func (p *Provider) Close() error {
	p.http.CloseIdleConnections()
	return nil
}
