//go:build linux

// Command kuryr-vif is the executables that Kuryr ships for its folder of VIF types (/usr/libexec/kuryr): one program, called by the names bridge, ovs,
// tap, midonet and unbound. They are called, and call nothing, as the Python kuryr-lib's were, so that they serve both; they need neither brctl nor
// ovs-vsctl.
//
// It only reads arguments and wires; what wiring is, is package bind's. midonet alone starts another program, MidoNet's own mm-ctl.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

var version = "dev" // set at build time

// limit bounds a run; kuryr-lib had none.
const limit = 25 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := run(ctx, filepath.Base(os.Args[0]), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, filepath.Base(os.Args[0])+": "+err.Error())
		os.Exit(1) //nolint:gocritic // nothing is left to be done by the deferred calls
	}
}

const usage = `want to be called as bridge, ovs, tap, midonet or unbound:
  bind   PORT INTERFACE DEVICE MAC NETWORK PROJECT VIF_DETAILS
  unbind PORT INTERFACE DEVICE MAC VIF_DETAILS NETWORK`

// call is what the arguments say.
type call struct {
	unbind bool
	link   string
	port   sdn.Port
}

func parse(vif string, args []string) (call, error) {
	c := call{port: sdn.Port{VIF: sdn.VIF{Type: vif}}}
	var network, details string
	switch {
	case len(args) == 8 && args[0] == "bind":
		network, details = args[5], args[7]
		c.port.Project = args[6]
	case len(args) == 7 && args[0] == "unbind":
		c.unbind = true
		details, network = args[5], args[6]
	default:
		return c, errors.New("version " + version + "; " + usage)
	}
	var err error
	if c.port.MAC, err = net.ParseMAC(args[4]); err != nil {
		return c, fmt.Errorf("MAC: %w", err)
	}
	c.port.ID, c.link, c.port.DeviceID, c.port.Network = sdn.ID(args[1]), args[2], args[3], sdn.ID(network)
	if want := bind.HostName(c.port.ID); c.link != want {
		return c, fmt.Errorf("interface: %q is not port %s's, which is %s", c.link, c.port.ID, want)
	}
	c.port.VIF.Details = detailsOf(details)
	return c, nil
}

// The details are a Python dictionary's text; two of them matter.
var (
	hybridPlug = regexp.MustCompile(`'ovs_hybrid_plug': (True|'True'|'true')`)
	bridgeName = regexp.MustCompile(`'bridge_name': u?'([A-Za-z0-9_.:-]{1,15})'`)
)

func detailsOf(text string) map[string]string {
	details := map[string]string{}
	if hybridPlug.MatchString(text) {
		details[sdn.DetailHybrid] = "true"
	}
	if m := bridgeName.FindStringSubmatch(text); m != nil {
		details[sdn.DetailBridge] = m[1]
	}
	return details
}

func run(ctx context.Context, vif string, args []string, out io.Writer) error {
	if vif == "unbound" {
		return errors.New("binding:vif_type is invalid: the SDN has bound the port to no host")
	}
	c, err := parse(vif, args)
	if err != nil {
		return err
	}
	switch vif {
	case "tap":
		return nil // an agent of the SDN finds the interface by its name
	case "midonet":
		return midonet(ctx, c, out)
	case "bridge", "ovs":
	default:
		return fmt.Errorf("%q is no VIF type that is served; version %s, %s", vif, version, usage)
	}
	b, err := bind.New(bind.Config{OVSDB: os.Getenv("KURYR_BIND_OVSDB_SOCKET"), IntegrationBridge: os.Getenv("KURYR_BIND_INTEGRATION_BRIDGE")})
	if err != nil {
		return err
	}
	wire := b.Wire
	if c.unbind {
		wire = b.Unwire
	}
	return errors.Join(wire(ctx, c.port), b.Close())
}

func midonet(ctx context.Context, c call, out io.Writer) error {
	args := []string{"--bind-port", string(c.port.ID), c.link}
	if c.unbind {
		args = []string{"--unbind-port", string(c.port.ID)}
	}
	command := exec.CommandContext(ctx, "mm-ctl", args...)
	command.Stdout, command.Stderr = out, out
	return command.Run()
}
