// Package config reads Kuryr's one configuration file and what the environment and flags
// lay over it.
//
// It owns the names, defaults and checks of all settings: one table (settings.go) serves
// the file, the environment, flags and the documented sample. It is strict: an unknown
// key, a repeated key or a bad value is an error that names the key and the line. It must
// not act on a setting; whether a path exists or a range is free is for others to find.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// DefaultPath is the file that is read if no other is named; it need not exist.
const DefaultPath = "/etc/kuryr/kuryr.yaml"

// PeerPath is the file of the Python kuryr-libnetwork, which is read if no other is
// named; it need not exist.
const PeerPath = "/etc/kuryr/kuryr.conf"

// Config is every setting. Its fields are described where they are declared as settings.
type Config struct {
	StateDir string
	RunDir   string
	Host     string // never "" after Load
	Provider string
	// Installation marks what this installation makes; "": one is made up and kept.
	Installation string

	Log     Log
	Docker  Docker
	Node    Node
	SDN     SDN
	Neutron Neutron
	Bind    Bind
	Admin   Admin
	Metrics Metrics

	Kubernetes Kubernetes
	Controller Controller
	Kurma      Kurma

	// Ignored are the options of the peer's file that mean nothing here, each with why, to
	// be warned of.
	Ignored []string
}

// Log is section log.
type Log struct {
	Level  slog.Level
	Format string
}

// Docker is section docker.
type Docker struct {
	Socket            string // "" only with Listen
	Listen            string // tcp://ADDR:PORT; "" is nowhere
	TLSCert           string // the files: never "" after Load where Listen is set
	TLSKey            string
	TLSClientCA       string
	TLSClientNames    []string // none allows each client of TLSClientCA
	CapabilityScope   string
	ConnectivityScope string // \"\": as CapabilityScope
	API               string
	DefaultPools      []netip.Prefix
	DefaultPoolLen    int
	DefaultPoolsV6    []netip.Prefix
	DefaultPoolLen6   int
	ForgetAfter       time.Duration // 0 is never

	DeleteEmptySubnets bool
	// ProcessExternalConnectivity lets exposed ports through the SDN's security groups.
	ProcessExternalConnectivity bool
	WaitActive                  time.Duration // 0: not at all
}

// Node is section node.
type Node struct {
	Socket   string // never "" after Load
	Conflist string // "" is none
	Network  string

	WaitActive time.Duration // 0: not at all

	Services          bool           // what of a cluster's Services nodes realise
	LoadBalancers     string         // LoadBalancersSDN or LoadBalancersNode
	NodePortAddresses []netip.Prefix // none is all
	ExternalIPs       []netip.Prefix // that are allowed
	LoadBalancerIPs   []netip.Prefix // that are allowed; none is all
	HealthListen      string         // host:port of the node's health; "" is nowhere
}

// Balancers of ClusterIPs.
const (
	LoadBalancersSDN  = "sdn"
	LoadBalancersNode = "node"
)

// Where Services of type LoadBalancer have their VIPs.
const (
	VIPPlacementCluster   = "cluster"
	VIPPlacementNamespace = "namespace"
)

// SDN is section sdn.
type SDN struct {
	UplinkRanges    []netip.Prefix
	PortsPerNetwork int

	Socket  string // never "" after Load
	Listen  string // host:port; "" is nowhere
	TLSCert string
	TLSKey  string
	Tokens  string
	Rate    int // 0 is no bound
}

// Admin is section admin.
type Admin struct {
	Socket string // never "" after Load
}

// Metrics is section metrics.
type Metrics struct {
	Listen string // host:port; "" is nowhere but the admin socket
}

// An Error is what is wrong with a setting and where it was made.
type Error struct {
	Where  string // "/etc/kuryr/kuryr.yaml:7", "environment KURYR_LOG_LEVEL", "flag --log-level"
	Key    string // "log.level"; "" where it is about no one key
	Detail string
}

func (e *Error) Error() string {
	if e.Key == "" {
		return e.Where + ": " + e.Detail
	}
	return e.Where + ": " + e.Key + ": " + e.Detail
}

// Source is where the settings come from, later fields over earlier ones.
type Source struct {
	Peer     string // the Python kuryr-libnetwork's file; "" is none, and it need not exist
	PeerMust bool   // that file was asked for: its absence is an error
	// the file of the Kubernetes controller in the form of kuryr-kubernetes; "" is none, and
	// it need not exist
	Raven     string
	RavenMust bool              // that file was asked for
	Path      string            // the file
	MustBe    bool              // the file was asked for: its absence is an error
	Environ   []string          // KEY=value, as os.Environ gives it
	Flags     map[string]string // by key, those given
}

// Parse reads the settings of a file's text alone, over the defaults. where names it in errors.
func Parse(where string, data []byte) (Config, error) {
	c := Default()
	err := parse(&c, where, data)
	return c, err
}

// Load reads the settings of all sources. An error is an *Error, or the file's when that
// cannot be read.
func Load(src Source) (Config, error) {
	c := Default()
	if err := loadPeer(&c, src); err != nil {
		return Config{}, err
	}
	if err := loadRaven(&c, src); err != nil {
		return Config{}, err
	}
	data, err := os.ReadFile(src.Path)
	switch {
	case src.Path == "", errors.Is(err, fs.ErrNotExist) && !src.MustBe:
	case err != nil:
		return Config{}, fmt.Errorf("configuration: %w", err)
	default:
		if err := parse(&c, src.Path, data); err != nil {
			return Config{}, err
		}
	}
	for _, variable := range src.Environ {
		name, value, _ := strings.Cut(variable, "=")
		if s := byName(name); s != nil {
			if err := s.apply(&c, "environment "+name, splitList(s, value)); err != nil {
				return Config{}, err
			}
		}
	}
	for _, s := range settings {
		if value, given := src.Flags[s.Key]; given {
			if err := s.apply(&c, "flag --"+s.Flag(), splitList(s, value)); err != nil {
				return Config{}, err
			}
		}
	}
	return c, c.complete()
}

// complete fills in what depends on other settings or on the machine.
func (c *Config) complete() error {
	if c.Host == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("configuration: host is not set and the machine's name cannot be read: %w", err)
		}
		c.Host = name
	}
	if c.Admin.Socket == "" {
		c.Admin.Socket = filepath.Join(c.RunDir, "kuryr.sock")
	}
	if c.Node.Socket == "" {
		c.Node.Socket = filepath.Join(c.RunDir, "node.sock")
	}
	if c.Kurma.Socket == "" {
		c.Kurma.Socket = filepath.Join(c.RunDir, "kurma.sock")
	}
	if c.SDN.Socket == "" {
		c.SDN.Socket = filepath.Join(c.RunDir, "sdn.sock")
	}
	if c.Provider == ProviderNeutron {
		if err := c.Neutron.consistent(); err != nil {
			return err
		}
	} else if c.Bind.Nested != "" {
		return &Error{
			Where: "configuration", Key: "bind.nested",
			Detail: "needs provider neutron: with " + c.Provider + " ports are plugged on the machine of " +
				"the SDN. From a virtual machine another machine's `kuryr sdn` is reached as a Neutron",
		}
	}
	if c.Node.Conflist != "" && c.Node.Network == "" {
		return &Error{
			Where: "configuration", Key: "node.network",
			Detail: "is needed with node.conflist: the network that the list is for",
		}
	}
	if err := c.Check(); err != nil {
		return err
	}
	return c.Docker.reachable()
}

// reachable checks that Docker can reach the plugin, and no other client.
func (d Docker) reachable() error {
	wrong := func(key, detail string) error { return &Error{Where: "configuration", Key: key, Detail: detail} }
	if d.Listen == "" {
		if d.Socket == "" {
			return wrong("docker.socket", "is empty, and so is docker.listen: Docker could not reach the plugin")
		}
		return nil
	}
	for _, file := range []struct{ key, path, what string }{
		{"docker.tls_cert", d.TLSCert, "the plugin's certificate"},
		{"docker.tls_key", d.TLSKey, "the plugin's private key"},
		{"docker.tls_client_ca", d.TLSClientCA, "the authority of Docker's certificate"},
	} {
		if file.path == "" {
			return wrong(
				file.key,
				"is needed with docker.listen: the file with "+file.what+"; over TCP, Docker is known by its certificate alone",
			)
		}
	}
	return nil
}

// UnknownEnv gives the names of variables that begin like ours but set nothing, so that a
// misspelt one can be warned of. Names that other parts read (KURYR_CONFIG,
// KURYR_FAILPOINT) and those that Kubernetes makes for a service called kuryr are not
// among them.
func UnknownEnv(environ []string) []string {
	var unknown []string
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		rest, ours := strings.CutPrefix(name, envPrefix)
		if !ours || byName(name) != nil || rest == "CONFIG" || rest == "FAILPOINT" ||
			strings.HasPrefix(rest, "SERVICE_") || strings.HasPrefix(rest, "PORT") {
			continue
		}
		unknown = append(unknown, name)
	}
	slices.Sort(unknown)
	return unknown
}

// splitList cuts the commas of a list's text; an empty text is the empty list.
func splitList(s *Setting, value string) []string {
	if !s.List {
		return []string{value}
	}
	if strings.TrimSpace(value) == "" {
		return nil
	}
	parts := strings.Split(value, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}
