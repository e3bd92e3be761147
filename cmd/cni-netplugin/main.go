//go:build linux

// Command cni-netplugin is the three executables of the plugin image of its name: called as add or del, /opt/network/add and /opt/network/del; as anything else the main executable, which looks
// at the entry and waits.
//
// It only wires package cniwrap to what Kurma's specification calls the executables with: arguments, the entry on standard input, the result or CNI's error on standard output. It must hold no logic of
// networks.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/kuryr/kuryr/kurma/cniwrap"
)

// maxEntry is the most bytes that an entry may have.
const maxEntry = 1 << 20

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr, cniwrap.New("", "")))
}

func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer, w cniwrap.Wrap) int {
	verb := filepath.Base(args[0])
	call := verb == "add" || verb == "del"
	if call && len(args) != 4 {
		fmt.Fprintf(errs, "usage: %s NAMESPACE UUID INTERFACE <ENTRY\n", args[0])
		return 2
	}
	entry, err := io.ReadAll(io.LimitReader(in, maxEntry))
	if err != nil {
		fmt.Fprintln(errs, "the entry:", err)
		return 1
	}
	if !call {
		return idle(ctx, entry, errs, w)
	}
	if err := do(ctx, verb, entry, cniwrap.Attachment{Namespace: args[1], Pod: args[2], Interface: args[3]}, out, w); err != nil {
		var told *types.Error
		if !errors.As(err, &told) || told.Error() != err.Error() {
			told = types.NewError(types.ErrInternal, err.Error(), "")
		}
		if err := json.NewEncoder(out).Encode(told); err != nil {
			return 2
		}
		return 1
	}
	return 0
}

// do runs the plugins, and prints what they made in the version of the configuration, which without one is that of Kurma's specification.
func do(ctx context.Context, verb string, entry []byte, a cniwrap.Attachment, out io.Writer, w cniwrap.Wrap) error {
	list, err := cniwrap.Parse(entry)
	if err != nil {
		return err
	}
	if verb == "del" {
		return w.Del(ctx, list, a)
	}
	result, err := w.Add(ctx, list, a)
	if err != nil {
		return err
	}
	return result.PrintTo(out)
}

// idle refuses an entry that no call could use, and then stands for the running plugin until it is told to end.
func idle(ctx context.Context, entry []byte, errs io.Writer, w cniwrap.Wrap) int {
	list, err := cniwrap.Parse(entry)
	if err == nil {
		err = w.Check(ctx, list)
	}
	if err != nil {
		fmt.Fprintln(errs, err)
		return 1
	}
	<-ctx.Done()
	return 0
}
