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
	"io"
	"net"
	"strconv"
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

// Do makes a call at the socket.
func Do(socket string, r Request) (Answer, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
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
