//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// echo returns every line of every connection to its sender.
func echo(port string) error {
	l, err := net.Listen("tcp", net.JoinHostPort("", port))
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}()
	}
}

// stream exchanges lines with echo on one connection until the standard input ends.
func stream(address string) error {
	c, err := dialEcho(address)
	if err != nil {
		return err
	}
	defer c.Close()
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	answers := bufio.NewReader(c)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		// The kernel repeats what is lost for some time, so only a broken connection takes longer.
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		sent := fmt.Sprintln("line", n)
		if _, err := io.WriteString(c, sent); err != nil {
			return err
		}
		got, err := answers.ReadString('\n')
		if err != nil {
			return fmt.Errorf("after %d lines: %w", n, err)
		}
		if got != sent {
			return fmt.Errorf("after %d lines: sent %q, received %q", n, sent, got)
		}
		select {
		case <-tick.C:
		case <-ended:
			fmt.Println(n + 1)
			return nil
		}
	}
}

// dialEcho connects to echo, which may be just starting.
func dialEcho(address string) (c net.Conn, err error) {
	for range 50 {
		if c, err = net.DialTimeout("tcp", address, 2*time.Second); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return c, err
}
