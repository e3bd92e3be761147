// Command traffic measures the path between two containers: it is the only program, beside a shell, in the images that
// "make bench" runs. "traffic serve" answers; "traffic stream", "traffic connect" and "traffic rtt" ask and
// print one number.
//
// It owns its own little protocol and nothing else. It must stay free of dependencies, so that its static binary is small
// and starts at once.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"time"
)

const usage = `usage: traffic serve PORT            answer streams (TCP) and round trips (UDP) until killed
       traffic stream ADDR MEGABYTES   send that much over one TCP connection; prints bytes a second
       traffic connect ADDR COUNT      that many TCP connections, one after the other; prints connections a second
       traffic rtt ADDR COUNT          that many UDP round trips; prints the median in nanoseconds`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "traffic:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "serve" {
		return serve(":" + args[1])
	}
	if len(args) != 3 {
		return errors.New(usage)
	}
	n, err := strconv.Atoi(args[2])
	if err != nil || n < 1 {
		return fmt.Errorf("%q is not a positive number", args[2])
	}
	switch args[0] {
	case "stream":
		return stream(args[1], n)
	case "connect":
		return connect(args[1], n)
	case "rtt":
		return rtt(args[1], n)
	}
	return errors.New(usage)
}

func serve(addr string) error {
	udp, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(buf[:n], from)
		}
	}()
	for {
		conn, err := tcp.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			buf := make([]byte, 1<<18)
			for {
				if _, err := conn.Read(buf); err != nil {
					break
				}
			}
		}()
	}
}

// stream sends megabytes and then waits until the other end has closed, which it does when it has read them all.
func stream(addr string, megabytes int) error {
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	buf := make([]byte, 1<<20)
	start := time.Now()
	for range megabytes {
		if _, err := conn.Write(buf); err != nil {
			return err
		}
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		return err
	}
	fmt.Println(int64(float64(megabytes) * (1 << 20) / time.Since(start).Seconds()))
	return nil
}

// connect opens a connection, waits until the other end has closed it, and opens the next. Each ends with a reset, which leaves
// nothing that a later one would have to wait for.
func connect(addr string, count int) error {
	start := time.Now()
	for range count {
		conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			return err
		}
		tcp := conn.(*net.TCPConn)
		err = errors.Join(tcp.SetLinger(0), tcp.SetDeadline(time.Now().Add(5*time.Second)), tcp.CloseWrite())
		if err == nil {
			_, err = io.Copy(io.Discard, tcp)
		}
		if err = errors.Join(err, tcp.Close()); err != nil {
			return err
		}
	}
	fmt.Println(int64(float64(count) / time.Since(start).Seconds()))
	return nil
}

func rtt(addr string, count int) error {
	conn, err := net.DialTimeout("udp", addr, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	buf := make([]byte, 64)
	times := make([]time.Duration, 0, count)
	for range count + count/10 + 1 {
		if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return err
		}
		start := time.Now()
		if _, err := conn.Write(buf); err != nil {
			return err
		}
		if _, err := conn.Read(buf); err != nil {
			return err
		}
		times = append(times, time.Since(start))
	}
	times = times[len(times)-count:] // the first ones found the neighbours
	slices.Sort(times)
	fmt.Println(times[len(times)/2].Nanoseconds())
	return nil
}
