//go:build linux

// Package call hands a call of /opt/network/add or /opt/network/del to the plugin's main process, at its socket.
//
// It owns what is said there, on both sides. It must not know what a call does, and it stands in every pod's way: it imports next to nothing, so that the executable starts at once.
//
// A caller writes the verb and its arguments, each ended by a zero byte, then the entry, and closes its half. It is answered with the exit status, a line, and with what is to be written
// to standard output.
package call

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Socket is where the plugin's main process listens, inside the container.
const Socket = "/run/kuryr-netplugin.sock"

// MaxRequest is the most bytes that a call may have.
const MaxRequest = 1 << 20

// arguments is how many follow the verb: the path of the namespace, the pod's UUID, the interface's name.
const arguments = 3

// Request is one call.
type Request struct {
	Verb                      string // add or del
	Namespace, Pod, Interface string
	Entry                     []byte
}

// Answer is what becomes of a call.
type Answer struct {
	Status int // the exit status
	Output []byte
}

// Patience is how long a call waits for the main process to listen, which first opens the SDN.
const Patience = 30 * time.Second

// Do makes a call at the socket, for which it waits as long as patience says.
func Do(socket string, r Request, patience time.Duration) (Answer, error) {
	conn, err := dial(socket, patience)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = conn.Close() }()
	var b bytes.Buffer
	for _, text := range []string{r.Verb, r.Namespace, r.Pod, r.Interface} {
		b.WriteString(text)
		b.WriteByte(0)
	}
	b.Write(r.Entry)
	if _, err := conn.Write(b.Bytes()); err != nil {
		return Answer{}, err
	}
	if err := conn.CloseWrite(); err != nil {
		return Answer{}, err
	}
	reply, err := io.ReadAll(conn)
	if err != nil {
		return Answer{}, err
	}
	line, output, whole := bytes.Cut(reply, []byte("\n"))
	status, err := strconv.Atoi(string(line))
	if !whole || err != nil {
		return Answer{}, errors.New("the plugin's main process ended before it answered")
	}
	return Answer{Status: status, Output: output}, nil
}

// dial connects to the socket, at once or when it comes (inotify(7)).
func dial(socket string, patience time.Duration) (*net.UnixConn, error) {
	addr := &net.UnixAddr{Name: socket, Net: "unix"}
	if conn, err := net.DialUnix("unix", nil, addr); err == nil {
		return conn, nil
	}
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("wait for the plugin's main process: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	if _, err := syscall.InotifyAddWatch(fd, filepath.Dir(socket), syscall.IN_CREATE|syscall.IN_MOVED_TO); err != nil {
		return nil, fmt.Errorf("wait for the plugin's main process: %w", err)
	}
	if err := events.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, fmt.Errorf("wait for the plugin's main process: %w", err)
	}
	for {
		conn, err := net.DialUnix("unix", nil, addr)
		if err == nil {
			return conn, nil
		}
		if _, late := events.Read(make([]byte, 4096)); late != nil {
			return nil, fmt.Errorf("the plugin's main process does not listen after %s: %w", patience, err)
		}
	}
}

// Read reads a call, of at most MaxRequest bytes.
func Read(from io.Reader) (Request, error) {
	data, err := io.ReadAll(io.LimitReader(from, MaxRequest+1))
	if err != nil {
		return Request{}, err
	}
	if len(data) > MaxRequest {
		return Request{}, errors.New("the call is too long")
	}
	parts := bytes.SplitN(data, []byte{0}, arguments+2)
	if len(parts) != arguments+2 {
		return Request{}, errors.New("the call is not whole")
	}
	return Request{Verb: string(parts[0]), Namespace: string(parts[1]), Pod: string(parts[2]), Interface: string(parts[3]), Entry: parts[4]}, nil
}

// Write answers a call.
func Write(to io.Writer, a Answer) error {
	_, err := to.Write(append(strconv.AppendInt(nil, int64(a.Status), 10), append([]byte{'\n'}, a.Output...)...))
	return err
}
