package main

import (
	"bufio"
	"cmp"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func serve(args []string) error {
	var tcp, udp, sctp int
	var name string
	var linger time.Duration
	flags("serve", args, func(s *flag.FlagSet) {
		s.IntVar(&tcp, "tcp", 0, "")
		s.IntVar(&udp, "udp", 0, "")
		s.IntVar(&sctp, "sctp", 0, "")
		s.StringVar(&name, "name", "", "")
		s.DurationVar(&linger, "linger", 0, "")
	})
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	name = cmp.Or(name, host)
	failed := make(chan error, 4)
	if tcp > 0 {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{Port: tcp})
		if err != nil {
			return err
		}
		go func() { failed <- serveTCP(l, name) }()
	}
	if udp > 0 {
		c, err := net.ListenUDP("udp", &net.UDPAddr{Port: udp})
		if err != nil {
			return err
		}
		go func() { failed <- serveUDP(c, name) }()
	}
	if sctp > 0 {
		for _, family := range []string{"ip4", "ip6"} {
			c, err := net.ListenIP(family+sctpNetwork, nil)
			if err != nil {
				return err
			}
			go func() { failed <- serveSCTP(c, uint16(sctp), name) }()
		}
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-failed:
		return err
	case <-ended:
		time.Sleep(linger)
		return nil
	}
}

func serveTCP(l *net.TCPListener, name string) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			for lines := bufio.NewScanner(c); lines.Scan(); {
				if _, err := fmt.Fprintln(c, name, client(c.RemoteAddr()), lines.Text()); err != nil {
					return
				}
			}
		}()
	}
}

func serveUDP(c *net.UDPConn, name string) error {
	// The answer goes out by the address that was asked: with several, the kernel would choose another.
	text, control := make([]byte, 2048), make([]byte, 256)
	if err := wantDestination(c); err != nil {
		return err
	}
	for {
		n, m, _, from, err := c.ReadMsgUDP(text, control)
		if err != nil {
			return err
		}
		answer := fmt.Sprintln(name, client(from), strings.TrimSpace(string(text[:n])))
		if _, _, err := c.WriteMsgUDP([]byte(answer), answerFrom(control[:m]), from); err != nil {
			fmt.Fprintln(os.Stderr, "talk:", err)
		}
	}
}

// client is an address as who has it writes it.
func client(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return net.JoinHostPort(strings.TrimPrefix(host, "::ffff:"), port)
}
