//go:build linux

package main

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netlink"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

const (
	portID  = "b5b1f2a0-1111-4000-8000-000000000001"
	tap     = "tapb5b1f2a0-11"
	network = "0f0e0d0c-2222-4000-8000-000000000002"
	mac     = "fa:16:3e:00:00:01"
)

func bindArgs(details string) []string {
	return []string{"bind", portID, tap, "endpoint", mac, network, "project", details}
}

func unbindArgs(details string) []string {
	return []string{"unbind", portID, tap, "endpoint", mac, details, network}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{bindArgs(`"{'bridge_name': 'br-x', 'ovs_hybrid_plug': True}"`), unbindArgs(`"{u'ovs_hybrid_plug': True, u'bridge_name': u'br-x'}"`)} {
		c, err := parse("ovs", args)
		if err != nil {
			t.Fatal(err)
		}
		if c.unbind != (args[0] == "unbind") || c.port.ID != portID || c.port.Network != network || c.port.MAC.String() != mac || c.port.DeviceID != "endpoint" ||
			c.port.VIF.Type != "ovs" || c.port.VIF.Details[sdn.DetailBridge] != "br-x" || c.port.VIF.Details[sdn.DetailHybrid] != strings.ToLower("True") {
			t.Errorf("%q is %+v", args, c)
		}
	}
	for _, args := range [][]string{
		nil, {"bind"}, {"help"}, append(bindArgs(""), "more"), unbindArgs("")[:6],
		{"bind", portID, "eth0", "endpoint", mac, network, "project", ""},
		{"bind", portID, tap, "endpoint", "no mac", network, "project", ""},
	} {
		if c, err := parse("bridge", args); err == nil {
			t.Errorf("%q is taken for %+v", args, c)
		}
	}
}

// The peer's bridge: made when it is missing, the tap on it, and never removed.
func TestBridge(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	nstest.Do(t, ns, func() {
		for _, name := range []string{tap} {
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "t_cb5b1f2a0-11"}); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := run(context.Background(), "bridge", bindArgs(""), io.Discard); err != nil {
				t.Fatal(err)
			}
		}
		bridge, err := netlink.LinkByName("brq0f0e0d0c-22")
		if err != nil {
			t.Fatal(err)
		}
		l, err := netlink.LinkByName(tap)
		if err != nil || l.Attrs().MasterIndex != bridge.Attrs().Index {
			t.Errorf("the tap is %+v, %v, want it on the bridge", l, err)
		}
		for range 2 {
			if err := run(context.Background(), "bridge", unbindArgs(""), io.Discard); err != nil {
				t.Fatal(err)
			}
		}
		if l, err = netlink.LinkByName(tap); err != nil || l.Attrs().MasterIndex != 0 {
			t.Errorf("the tap is %+v, %v, want it off the bridge, and there", l, err)
		}
		if _, err = netlink.LinkByName("brq0f0e0d0c-22"); err != nil {
			t.Errorf("the bridge has gone: %v", err)
		}
	})
}

func TestOthers(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), "unbound", bindArgs(""), io.Discard); err == nil || !strings.Contains(err.Error(), "binding:vif_type is invalid") {
		t.Errorf("unbound: %v", err)
	}
	if err := run(t.Context(), "tap", bindArgs(""), io.Discard); err != nil {
		t.Errorf("tap: %v", err)
	}
	if err := run(t.Context(), "iovisor", bindArgs(""), io.Discard); err == nil {
		t.Error("a VIF type that is not served is taken")
	}
}

// Called by MidoNet's own words.
func TestMidonet(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/mm-ctl", []byte("#!/bin/sh\necho \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for want, args := range map[string][]string{"--bind-port " + portID + " " + tap: bindArgs(""), "--unbind-port " + portID: unbindArgs("")} {
		var out strings.Builder
		if err := run(t.Context(), "midonet", args, &out); err != nil || strings.TrimSpace(out.String()) != want {
			t.Errorf("mm-ctl was told %q, %v, want %q", out.String(), err, want)
		}
	}
}
