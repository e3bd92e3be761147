//go:build linux

// Command kuryr-netplugin is /opt/network/add and /opt/network/del of the plugin image of its name: what it is called as says which. It hands the call to the image's main executable,
// "kuryr kurma plugin".
//
// It only hands on, so that it starts at once. It must know neither the SDN nor what an entry means.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kuryr/kuryr/kurma/netplugin/call"
)

func main() {
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, in io.Reader, out, errs io.Writer) int {
	if len(args) != 4 {
		fmt.Fprintf(errs, "usage: %s NAMESPACE UUID INTERFACE <ENTRY\n", args[0])
		return 2
	}
	entry, err := io.ReadAll(io.LimitReader(in, call.MaxRequest+1))
	if err != nil {
		fmt.Fprintln(errs, "the entry:", err)
		return 1
	}
	answer, err := call.Do(call.Socket, call.Request{Verb: filepath.Base(args[0]), Namespace: args[1], Pod: args[2], Interface: args[3], Entry: entry}, call.Patience)
	if err != nil {
		fmt.Fprintln(errs, err)
		return 1
	}
	if _, err := out.Write(answer.Output); err != nil {
		return 1
	}
	return answer.Status
}
