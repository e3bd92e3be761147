package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// asker sends questions to one address.
type asker struct {
	network, address string
	from             int // port; 0 is any
	timeout          time.Duration
	keep             bool // one connection for all
	conn             net.Conn
	answers          *bufio.Reader
}

func ask(args []string) error {
	a := &asker{}
	var count int
	var every time.Duration
	rest := flags("ask", args, func(s *flag.FlagSet) {
		s.IntVar(&count, "n", 1, "")
		s.DurationVar(&every, "every", 0, "")
		s.DurationVar(&a.timeout, "timeout", 2*second, "")
		s.BoolVar(&a.keep, "keep", false, "")
		s.IntVar(&a.from, "from", 0, "")
	}).Args()
	if len(rest) != 2 {
		usage()
	}
	a.network, a.address = rest[0], rest[1]
	if count > 0 {
		for i := range count {
			if i > 0 {
				time.Sleep(every)
			}
			answer, err := a.ask(i)
			if err != nil {
				answer = "error " + word(err)
			}
			fmt.Println(answer)
		}
		return nil
	}
	return a.forever(every)
}

// forever asks until SIGTERM. What fails is told at once, and how many did not each second.
func (a *asker) forever(every time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	tell := time.NewTicker(second)
	defer tell.Stop()
	pace := time.NewTicker(max(every, time.Millisecond))
	defer pace.Stop()
	good := 0
	for i := 0; ; i++ {
		began := time.Now()
		if _, err := a.ask(i); err != nil {
			fmt.Printf(
				"failed %s after %s: %v\n", time.Now().UTC().Format("15:04:05.000"),
				time.Since(began).Round(time.Millisecond), err,
			)
		} else {
			good++
		}
		select {
		case <-ctx.Done():
			fmt.Println("good", good)
			return nil
		case <-tell.C:
			fmt.Println("good", good)
		default:
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
		}
	}
}

// ask sends one question and returns who answered, and whom he saw.
func (a *asker) ask(i int) (string, error) {
	if a.network == "sctp" {
		return a.associate()
	}
	if a.conn == nil {
		if err := a.dial(); err != nil {
			return "", err
		}
	}
	defer func() {
		if !a.keep {
			a.close()
		}
	}()
	question := fmt.Sprintf("question%d", i)
	if err := a.conn.SetDeadline(time.Now().Add(a.timeout)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(a.conn, question); err != nil {
		a.close()
		return "", err
	}
	answer, err := a.hear(question)
	if err != nil {
		a.close()
	}
	return answer, err
}

// hear waits for the answer to a question. By UDP the question is sent again each second,
// as every client of UDP does, and late answers to earlier ones are passed over.
func (a *asker) hear(question string) (string, error) {
	end := time.Now().Add(a.timeout)
	for {
		udp := a.network == "udp"
		if udp {
			if err := a.conn.SetReadDeadline(earlier(end, time.Now().Add(second))); err != nil {
				return "", err
			}
		}
		answer, err := a.answers.ReadString('\n')
		if udp && errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) {
			if _, err := fmt.Fprintln(a.conn, question); err != nil {
				return "", err
			}
			continue
		}
		if err != nil {
			return "", err
		}
		said, fits := strings.CutSuffix(strings.TrimSpace(answer), " "+question)
		if fits {
			return said, nil
		}
		if !udp {
			return "", fmt.Errorf("the answer to %s is %q", question, answer)
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (a *asker) dial() error {
	d := net.Dialer{Timeout: a.timeout}
	if a.from > 0 {
		d.LocalAddr = &net.UDPAddr{Port: a.from}
		if a.network == "tcp" {
			d.LocalAddr = &net.TCPAddr{Port: a.from}
		}
	}
	conn, err := d.Dial(a.network, a.address)
	if err != nil {
		return err
	}
	a.conn, a.answers = conn, bufio.NewReader(conn)
	return nil
}

func (a *asker) close() {
	if a.conn != nil {
		a.conn.Close()
		a.conn = nil
	}
}

// word is what went wrong, in one.
func word(err error) string {
	switch {
	// the latter where the own kernel's filter refuses what is being sent
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EPERM):
		return "refused"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "unreachable"
	}
	return err.Error()
}
