//go:build linux

// Command probe sends and answers the packets of the scenario tests, inside containers and on the neighbour.
//
//	probe serve PORT [NAME]                answers TCP and UDP, both families, with the caller's address and the name
//	probe listen PORT                      tells by its exit status whether serve could, and ends
//	probe tcp|udp HOST:PORT                asks once and prints the answer; exit status 1 where none comes
//	probe echo PORT                        answers each line of a TCP connection with the same
//	probe stream HOST:PORT                 sends lines to echo on one connection until its input ends, then prints their
//	                                       number; exit status 1 if the connection breaks
//	probe init ADDRESS:PORT                sends the first packet of an SCTP association, and awaits nothing
//	probe catch PORT                       prints each datagram that comes as "SOURCE TEXT", until a moment after its input ends
//	probe forge KIND flags…                sends one crafted frame: udp, arp, na (neighbour advertisement), ra (router
//	                                       advertisement), redirect, other
//
// It is static, so that it runs in any image, and does nothing but what its arguments say. It is no part of Kuryr.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: probe serve|listen|tcp|udp|echo|stream|init|catch|forge ARGUMENT…")
	}
	switch args[0] {
	case "serve":
		return serve(args[1], strings.Join(args[2:], " "))
	case "listen":
		return errors.Join(listens("tcp4", args[1]), listens("udp4", args[1]))
	case "tcp", "udp":
		return ask(args[0], args[1])
	case "echo":
		return echo(args[1])
	case "stream":
		return stream(args[1])
	case "init":
		return initiate(args[1])
	case "catch":
		return catch(args[1])
	case "forge":
		return forge(args[1], args[2:])
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// serve answers until it is killed. It opens sockets per family, since an answer from a
// wildcard socket of both families would show IPv4 callers as mapped addresses.
func serve(port, name string) error {
	failed := make(chan error)
	answer := func(a net.Addr) string { return strings.TrimSpace(host(a)+" "+name) + "\n" }
	for _, family := range []string{"4", "6"} {
		l, err := net.Listen("tcp"+family, net.JoinHostPort("", port))
		if err != nil && family == "6" {
			continue // a namespace without IPv6
		}
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					failed <- err
					return
				}
				_, _ = fmt.Fprint(c, answer(c.RemoteAddr()))
				_ = c.Close()
			}
		}()
		u, err := net.ListenPacket("udp"+family, net.JoinHostPort("", port))
		if err != nil {
			return err
		}
		go func() {
			buf := make([]byte, 2048)
			for {
				_, from, err := u.ReadFrom(buf)
				if err != nil {
					failed <- err
					return
				}
				_, _ = u.WriteTo([]byte(answer(from)), from)
			}
		}()
	}
	return <-failed
}

func listens(network, port string) error {
	if network == "udp4" {
		c, err := net.ListenPacket(network, net.JoinHostPort("", port))
		if err != nil {
			return err
		}
		return c.Close()
	}
	l, err := net.Listen(network, net.JoinHostPort("", port))
	if err != nil {
		return err
	}
	return l.Close()
}

func host(a net.Addr) string {
	h, _, _ := net.SplitHostPort(a.String())
	return h
}

func ask(network, addr string) error {
	c, err := net.DialTimeout(network, addr, 2*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	if network == "udp" {
		if _, err := c.Write([]byte("hello")); err != nil {
			return err
		}
	}
	buf := make([]byte, 2048)
	n, err := c.Read(buf)
	if err != nil {
		return err
	}
	fmt.Print(string(buf[:n]))
	return nil
}

func catch(port string) error {
	u, err := net.ListenPacket("udp", net.JoinHostPort("", port))
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = u.SetDeadline(time.Now().Add(500 * time.Millisecond)) // what was sent before may be on its way
	}()
	fmt.Println("ready")
	buf := make([]byte, 2048)
	for {
		n, from, err := u.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Println(host(from), string(buf[:n]))
	}
}
