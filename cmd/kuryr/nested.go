//go:build linux

package main

import (
	"context"
	"net"
	"time"

	"github.com/kuryr/kuryr/docker"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron"
)

// nestedIn is the SDN as it is seen in a virtual machine of it, where the configuration says that this is one.
func nestedIn(p sdn.Provider, c config.Config) (sdn.Provider, error) {
	if c.Bind.Nested == "" {
		return p, nil
	}
	return neutron.NewNested(p, neutron.NestedConfig{Mode: neutron.NestedMode(c.Bind.Nested), Host: c.Host, Uncached: docker.Scope(c.Docker.CapabilityScope) == docker.Global,
		MACs: func() ([]net.HardwareAddr, error) { return linkMACs(c.Bind.LinkInterface) }})
}

// canNestTime bounds the question whether the SDN can serve nested ports.
const canNestTime = 5 * time.Second

// canNest refuses to begin where the SDN cannot serve nested ports. One that does not answer now refuses them when they are asked for.
func canNest(ctx context.Context, p sdn.Provider) error {
	if _, is := p.(*neutron.Nested); !is {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, canNestTime)
	defer cancel()
	if err := p.Ping(ctx); sdn.IsUnsupported(err) {
		return err
	}
	return nil
}

// linkMACs are the MACs that this machine's own port can have: that of the interface named, else those of all.
func linkMACs(name string) ([]net.HardwareAddr, error) {
	if name != "" {
		link, err := net.InterfaceByName(name)
		if err != nil {
			return nil, err
		}
		return []net.HardwareAddr{link.HardwareAddr}, nil
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var macs []net.HardwareAddr
	for _, l := range links {
		if len(l.HardwareAddr) == 6 && l.Flags&net.FlagLoopback == 0 {
			macs = append(macs, l.HardwareAddr)
		}
	}
	return macs, nil
}
