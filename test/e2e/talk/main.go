// Command talk is both ends of a conversation, for tests of what stands between them:
// static, so that it runs in a container as well as on a host.
//
// "talk serve" answers each line with its name, the client's address as it sees it, and
// the line; "talk ask" sends lines and prints what comes, one result a line, where an
// error is a word: refused, timeout, unreachable. It owns no state but one file, by which
// "talk ready" says whether the server is to be taken for ready. It must know nothing of
// who runs it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	var err error
	switch args := os.Args[2:]; os.Args[1] {
	case "serve":
		err = serve(args)
	case "ask":
		err = ask(args)
	case "get":
		err = get(args)
	case "look":
		err = look(args)
	case "ready":
		err = ready(args)
	default:
		usage()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "talk:", err)
		os.Exit(1)
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, `usage:
  talk serve [-tcp PORT] [-udp PORT] [-sctp PORT] [-name NAME] [-linger TIME]
                                                                   answers until SIGTERM, and so long after it
  talk ask [-n COUNT] [-every TIME] [-timeout TIME] [-keep] [-from PORT] tcp|udp|sctp ADDRESS:PORT
  talk get AUTHORITY URL                                           prints what an HTTPS server answers, certified by the authority in a file
  talk look NAME                                                   prints the addresses of a name
  talk ready [on|off]                                              says whether, or ends with 1 where it was said off`)
	os.Exit(2)
}

// look prints a name's addresses, sorted.
func look(args []string) error {
	if len(args) != 1 {
		usage()
	}
	found, err := net.LookupHost(args[0])
	if err != nil {
		return err
	}
	slices.Sort(found)
	fmt.Println(strings.Join(found, "\n"))
	return nil
}

// unready is there while the server is not to be taken for ready.
const unready = "/tmp/unready"

func ready(args []string) error {
	switch strings.Join(args, " ") {
	case "":
		if _, err := os.Stat(unready); err == nil {
			return errors.New("not ready")
		}
		return nil
	case "on":
		if err := os.Remove(unready); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	case "off":
		return os.WriteFile(unready, nil, 0o600)
	}
	usage()
	return nil
}

// flags reads those of a verb.
func flags(verb string, args []string, define func(*flag.FlagSet)) *flag.FlagSet {
	set := flag.NewFlagSet(verb, flag.ContinueOnError)
	define(set)
	if set.Parse(args) != nil {
		usage()
	}
	return set
}

// second is how long one thing may take, where nothing else is said.
const second = time.Second
