//go:build linux

// Command neutronlab runs a command beside a lab: a real Neutron on OVN, and hosts with Docker and Open vSwitch.
//
//	neutronlab [-hosts N] [-docker=false] [-keystone] [-kuryr PATH] -- COMMAND [ARGUMENT…]
//
// The command runs in the central host's network, where Neutron answers at the address
// that OS_ENDPOINT tells, and the lab ends with it. KURYR_LAB_central, KURYR_LAB_h1, …
// are the hosts' first processes, so "nsenter -a -t $KURYR_LAB_h1" is a shell on h1. It
// only wires package neutronlab to the command line.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

func main() { privatehost.Main("neutronlab", run) }

func run() (int, error) {
	var opts neutronlab.Options
	flag.IntVar(&opts.Hosts, "hosts", 2, "compute hosts")
	flag.BoolVar(&opts.Docker, "docker", true, "they run a Docker engine")
	flag.BoolVar(&opts.Keystone, "keystone", false, "Neutron asks Keystone who is calling")
	flag.StringVar(&opts.Kuryr, "kuryr", "", "start this `program` on each host")
	flag.Parse()
	if flag.NArg() == 0 {
		return 0, errors.New("no command given")
	}
	if opts.Kuryr != "" {
		path, err := filepath.Abs(opts.Kuryr)
		if err != nil {
			return 0, err
		}
		opts.Kuryr = path
	}
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer cancel()
	signal.Ignore(unix.SIGINT) // it is for the command
	l, err := neutronlab.New(ctx, opts)
	if err != nil {
		return 0, err
	}
	defer l.Close()
	env := append(os.Environ(), "OS_AUTH_TYPE=none", "OS_ENDPOINT="+neutronlab.Endpoint)
	if opts.Keystone {
		env = append(os.Environ(), "OS_CLIENT_CONFIG_FILE="+l.CloudsFile(), "OS_CLOUD="+neutronlab.CloudPassword)
	}
	for _, h := range l.Hosts {
		env = append(env, fmt.Sprintf("KURYR_LAB_%s=%d", h.Name, h.Pid()))
		if opts.Kuryr == "" {
			continue
		}
		if err := h.StartKuryr(ctx); err != nil {
			return 0, fmt.Errorf("%w\n%s", err, l.Logs(30))
		}
	}
	env = append(env, fmt.Sprintf("KURYR_LAB_central=%d", l.Central.Pid()))
	cmd := exec.Command("nsenter", append([]string{"-t", fmt.Sprint(l.Central.Pid()), "-n", "--"}, flag.Args()...)...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	return privatehost.Status(err)
}
