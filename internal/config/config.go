// Package config reads Kuryr's one configuration file and what the environment and flags lay over it.
//
// It owns the names, defaults and checks of all settings: one table (settings.go) serves the file, the environment, flags
// and the documented sample. It is strict: an unknown key, a repeated key or a bad value is an error that names the key
// and the line. It must not act on a setting; whether a path exists or a range is free is for others to find.
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
)

// DefaultPath is the file that is read if no other is named; it need not exist.
const DefaultPath = "/etc/kuryr/kuryr.yaml"

// Config is every setting. Its fields are described where they are declared as settings.
type Config struct {
	StateDir string
	RunDir   string
	Host     string // never "" after Load

	Log     Log
	Docker  Docker
	SDN     SDN
	Admin   Admin
	Metrics Metrics
}

// Log is section log.
type Log struct {
	Level  slog.Level
	Format string
}

// Docker is section docker.
type Docker struct {
	Socket          string
	CapabilityScope string
	API             string
	DefaultPools    []netip.Prefix
	DefaultPoolLen  int
	DefaultPoolsV6  []netip.Prefix
	DefaultPoolLen6 int
}

// SDN is section sdn.
type SDN struct {
	UplinkRanges    []netip.Prefix
	PortsPerNetwork int
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
	Path    string            // the file
	MustBe  bool              // the file was asked for: its absence is an error
	Environ []string          // KEY=value, as os.Environ gives it
	Flags   map[string]string // by key, those given
}

// Load reads the settings of all sources. An error is an *Error, or the file's when that cannot be read.
func Load(src Source) (Config, error) {
	c := Default()
	data, err := os.ReadFile(src.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !src.MustBe:
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
	return nil
}

// UnknownEnv gives the names of variables that begin like ours but set nothing, so that a misspelt one can be warned of.
// Names that other parts read (KURYR_CONFIG, KURYR_FAILPOINT) and those that Kubernetes makes for a service called kuryr
// are not among them.
func UnknownEnv(environ []string) []string {
	var unknown []string
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		rest, ours := strings.CutPrefix(name, envPrefix)
		if !ours || byName(name) != nil || rest == "CONFIG" || rest == "FAILPOINT" || strings.HasPrefix(rest, "SERVICE_") || strings.HasPrefix(rest, "PORT") {
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
