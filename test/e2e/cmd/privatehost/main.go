//go:build linux

// Command privatehost runs a command on a private host with a Docker engine, and with Kuryr if asked.
//
//	privatehost [-kuryr PATH] [-docker=false] [-dockerd PATH] [-dir DIR] [-keep] -- COMMAND [ARGUMENT…]
//	privatehost -in DIR -- COMMAND…   runs one more command in a kept host
//	privatehost -stop DIR             ends a kept host
//
// It ends with the command's exit status, and the host ends with it unless -keep is given. It only wires package
// privatehost to the command line.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

func main() { privatehost.Main("privatehost", run) }

func run() (int, error) {
	var opts privatehost.Options
	var flags, in, stop string
	flag.BoolVar(&opts.Docker, "docker", true, "start a Docker engine")
	flag.StringVar(&opts.Dockerd, "dockerd", "", "the engine's `program`")
	flag.StringVar(&flags, "dockerd-flags", "", "more `flags` for the engine, separated by spaces")
	flag.StringVar(&opts.Kuryr, "kuryr", "", "start this `program` with \"up\" before the engine")
	flag.StringVar(&opts.Dir, "dir", "", "`folder` for the host's state")
	flag.BoolVar(&opts.Keep, "keep", false, "leave the host running")
	flag.StringVar(&in, "in", "", "run the command in the kept host of this `folder`")
	flag.StringVar(&stop, "stop", "", "end the kept host of this `folder`")
	flag.Parse()
	if stop != "" {
		return 0, privatehost.End(stop)
	}
	if flag.NArg() == 0 {
		return 0, errors.New("no command given")
	}
	opts.DockerFlags = strings.Fields(flags)
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer cancel()
	if in != "" {
		h, err := privatehost.Attach(in)
		if err != nil {
			return 0, err
		}
		return command(ctx, h, flag.Args())
	}
	if opts.Kuryr != "" {
		path, err := filepath.Abs(opts.Kuryr)
		if err != nil {
			return 0, err
		}
		opts.Kuryr = path
	}
	h, err := privatehost.New(ctx, opts)
	if err != nil {
		return 0, err
	}
	code, err := command(ctx, h, flag.Args())
	if (code != 0 || err != nil) && opts.Kuryr != "" {
		fmt.Fprint(os.Stderr, h.Logs(20))
	}
	if opts.Keep {
		fmt.Fprintf(
			os.Stderr,
			"the host is kept: a shell in it is `nsenter -a -t %d`, its end is `privatehost "+
				"-stop %s`\n",
			h.Pid(), h.Dir(),
		)
		return code, errors.Join(err, h.Detach())
	}
	h.Close()
	return code, err
}

func command(ctx context.Context, h *privatehost.Host, argv []string) (int, error) {
	cmd := h.Command(ctx, argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The terminal's keys must reach the command, and its size and foreground belong to our group.
	cmd.SysProcAttr = nil
	cmd.Cancel = nil
	var err error
	if cmd.Dir, err = os.Getwd(); err != nil {
		return 0, err
	}
	if err := h.StartCommand(cmd); err != nil {
		return 0, err
	}
	err = cmd.Wait()
	return privatehost.Status(err)
}
