package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/internal/logging"
)

const envPrefix = "KURYR_"

// Setting is one thing that can be set. Its place in the file is Key; its environment variable and its flag follow from that.
type Setting struct {
	Key  string // "docker.capability_scope"
	Help string // one line
	List bool   // a sequence in the file, separated by commas elsewhere

	set func(c *Config, values []string) error // one value, unless List
	get func(c *Config) string                 // as it would be given in the environment
}

// Env is the name of the environment variable: KURYR_ and the key in capitals with underscores for dots.
func (s *Setting) Env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.Key, ".", "_"))
}

// Flag is the name of the flag: the key with hyphens for dots and underscores.
func (s *Setting) Flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(s.Key) }

// Default is the value without any source, as it would be given in the environment; "" is said of what is found out when it is needed.
func (s *Setting) Default() string {
	c := Default()
	return s.get(&c)
}

func (s *Setting) apply(c *Config, where string, values []string) error {
	if err := s.set(c, values); err != nil {
		return &Error{Where: where, Key: s.Key, Detail: err.Error()}
	}
	return nil
}

// Settings are all there are, in the order of the sample.
func Settings() []*Setting { return settings }

// Lookup finds a setting by its key, nil if there is none.
func Lookup(key string) *Setting {
	for _, s := range settings {
		if s.Key == key {
			return s
		}
	}
	return nil
}

func byName(env string) *Setting {
	for _, s := range settings {
		if s.Env() == env {
			return s
		}
	}
	return nil
}

// Default is what holds where nothing is set.
func Default() Config {
	return Config{
		StateDir: "/var/lib/kuryr",
		RunDir:   "/run/kuryr",
		Log:      Log{Format: logging.Text},
		Docker: Docker{
			Socket:          "/run/docker/plugins/kuryr.sock",
			CapabilityScope: "local",
			API:             "/var/run/docker.sock",
			DefaultPools:    []netip.Prefix{netip.MustParsePrefix("10.200.0.0/13"), netip.MustParsePrefix("100.72.0.0/13")},
			DefaultPoolLen:  24,
			DefaultPoolsV6:  []netip.Prefix{netip.MustParsePrefix("fd6b:7572:7972::/48")},
			DefaultPoolLen6: 64,
		},
		SDN: SDN{
			UplinkRanges: []netip.Prefix{
				netip.MustParsePrefix("100.64.0.0/16"),
				netip.MustParsePrefix("100.96.0.0/16"),
				netip.MustParsePrefix("198.18.0.0/16"),
				netip.MustParsePrefix("10.255.0.0/16"),
				netip.MustParsePrefix("192.168.240.0/20"),
			},
			PortsPerNetwork: 1023,
		},
	}
}

// MaxPortsPerNetwork is what the kernel's bridge holds (BR_MAX_PORTS).
const MaxPortsPerNetwork = 1023

var settings = []*Setting{
	text("state_dir", "folder of what must survive a restart (the store)", absolute, func(c *Config) *string { return &c.StateDir }),
	text("run_dir", "folder of sockets and namespaces", absolute, func(c *Config) *string { return &c.RunDir }),
	text("host", "name of this machine in the SDN; empty is the machine's own name", word, func(c *Config) *string { return &c.Host }),
	{
		Key: "log.level", Help: "least level that is logged: debug, info, warn or error",
		set: func(c *Config, values []string) (err error) {
			c.Log.Level, err = logging.ParseLevel(values[0])
			return err
		},
		get: func(c *Config) string { return strings.ToLower(c.Log.Level.String()) },
	},
	text("log.format", "form of log lines: text or json", oneOf(logging.Text, logging.JSON), func(c *Config) *string { return &c.Log.Format }),
	text("docker.socket", "socket on which the Docker engine calls the plugin", absolute, func(c *Config) *string { return &c.Docker.Socket }),
	text("docker.capability_scope", "scope of the networks: local, or global for a Swarm whose managers share this SDN", oneOf("local", "global"),
		func(c *Config) *string { return &c.Docker.CapabilityScope }),
	text("docker.api", "socket of the Docker engine's own interface, which is only asked for the names of containers; empty never asks", absoluteOrNone,
		func(c *Config) *string { return &c.Docker.API }),
	prefixes("docker.default_pools", "IPv4 ranges that networks without a --subnet are cut from", is4, func(c *Config) *[]netip.Prefix { return &c.Docker.DefaultPools }),
	number("docker.default_pool_size", "prefix length of an IPv4 subnet cut from a default pool", 8, 30, func(c *Config) *int { return &c.Docker.DefaultPoolLen }),
	prefixes("docker.default_pools_v6", "IPv6 ranges that networks with --ipv6 and without an IPv6 --subnet are cut from", is6, func(c *Config) *[]netip.Prefix { return &c.Docker.DefaultPoolsV6 }),
	number("docker.default_pool_size_v6", "prefix length of an IPv6 subnet cut from a default pool", 16, 126, func(c *Config) *int { return &c.Docker.DefaultPoolLen6 }),
	nonEmpty(prefixes("sdn.uplink_ranges", "IPv4 ranges, the first that the host has no route to is taken at the first start, for the links between routers and the host",
		is4, func(c *Config) *[]netip.Prefix { return &c.SDN.UplinkRanges })),
	number("sdn.ports_per_network", "most ports that one network holds; a Linux bridge takes 1023", 1, MaxPortsPerNetwork, func(c *Config) *int { return &c.SDN.PortsPerNetwork }),
	text("admin.socket", "socket of the kuryr command and of the API; empty is kuryr.sock in run_dir", absoluteOrNone, func(c *Config) *string { return &c.Admin.Socket }),
	text("metrics.listen", "host:port where /metrics, /healthz and /readyz are served besides the admin socket; empty is nowhere", listenAddr,
		func(c *Config) *string { return &c.Metrics.Listen }),
}

func text(key, help string, check func(string) error, field func(*Config) *string) *Setting {
	return &Setting{
		Key: key, Help: help,
		set: func(c *Config, values []string) error {
			if err := check(values[0]); err != nil {
				return err
			}
			*field(c) = values[0]
			return nil
		},
		get: func(c *Config) string { return *field(c) },
	}
}

func number(key, help string, least, most int, field func(*Config) *int) *Setting {
	return &Setting{
		Key: key, Help: help,
		set: func(c *Config, values []string) error {
			n, err := strconv.Atoi(values[0])
			if err != nil || n < least || n > most {
				return fmt.Errorf("want a number from %d to %d, not %q", least, most, values[0])
			}
			*field(c) = n
			return nil
		},
		get: func(c *Config) string { return strconv.Itoa(*field(c)) },
	}
}

func prefixes(key, help string, family func(netip.Addr) error, field func(*Config) *[]netip.Prefix) *Setting {
	return &Setting{
		Key: key, Help: help, List: true,
		set: func(c *Config, values []string) error {
			var all []netip.Prefix
			for _, v := range values {
				p, err := netip.ParsePrefix(v)
				if err != nil {
					return fmt.Errorf("%q is not a range such as 10.0.0.0/16", v)
				}
				if p != p.Masked() {
					return fmt.Errorf("%s has bits set beyond its length; the range is %s", p, p.Masked())
				}
				if err := family(p.Addr()); err != nil {
					return fmt.Errorf("%s: %w", p, err)
				}
				for _, other := range all {
					if other.Overlaps(p) {
						return fmt.Errorf("%s overlaps %s", p, other)
					}
				}
				all = append(all, p)
			}
			*field(c) = all
			return nil
		},
		get: func(c *Config) string {
			var out []string
			for _, p := range *field(c) {
				out = append(out, p.String())
			}
			return strings.Join(out, ",")
		},
	}
}

// nonEmpty refuses an empty list.
func nonEmpty(s *Setting) *Setting {
	set := s.set
	s.set = func(c *Config, values []string) error {
		if len(values) == 0 {
			return errors.New("want at least one")
		}
		return set(c, values)
	}
	return s
}

func absolute(s string) error {
	if !filepath.IsAbs(s) || filepath.Clean(s) != s {
		return fmt.Errorf("want a whole path from / on, without . and .., not %q", s)
	}
	return nil
}

func absoluteOrNone(s string) error {
	if s == "" {
		return nil
	}
	return absolute(s)
}

func word(s string) error {
	if len(s) > 255 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("want at most 255 printable characters without spaces, not %q", s)
	}
	return nil
}

func oneOf(choices ...string) func(string) error {
	return func(s string) error {
		for _, c := range choices {
			if s == c {
				return nil
			}
		}
		return fmt.Errorf("want %s, not %q", strings.Join(choices, " or "), s)
	}
}

func listenAddr(s string) error {
	if s == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("want host:port such as 127.0.0.1:9464, not %q", s)
	}
	return nil
}

func is4(a netip.Addr) error {
	if !a.Is4() {
		return errors.New("want IPv4")
	}
	return nil
}

func is6(a netip.Addr) error {
	if !a.Is6() || a.Is4In6() {
		return errors.New("want IPv6")
	}
	return nil
}
