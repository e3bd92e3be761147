//go:build linux

package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dialLimit   = 5 * time.Second  // for a place in the socket's queue
	answerLimit = 10 * time.Minute // each network has a minute; a runtime's own limit may be shorter
	maxAnswer   = 1 << 20
)

// ask sends one request of HTTP 1.0, whose answer ends with the connection, and wants it answered 2xx.
func ask(socket, method, path string, body []byte) error {
	conn, err := dial(socket)
	if err != nil {
		return fmt.Errorf("kuryr kurma does not run: nothing answers at %s: %w", socket, err)
	}
	defer conn.Close()
	head := method + " " + path + " HTTP/1.0\r\nHost: kurma\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	if _, err := conn.Write(append([]byte(head), body...)); err != nil {
		return lost(err)
	}
	answer, err := io.ReadAll(io.LimitReader(conn, maxAnswer))
	if err != nil {
		return lost(err)
	}
	return judge(answer)
}

// lost says that it is not known what has been done. The next call settles it.
func lost(err error) error {
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("kuryr kurma has not answered within %s", answerLimit)
	}
	return fmt.Errorf("kuryr kurma has ended before it answered: %w", err)
}

// judge reads an answer.
func judge(answer []byte) error {
	head, body, whole := bytes.Cut(answer, []byte("\r\n\r\n"))
	status, _, _ := strings.Cut(string(head), "\r\n")
	words := strings.SplitN(status, " ", 3)
	if !whole || len(words) < 2 || !strings.HasPrefix(words[0], "HTTP/1.") {
		return lost(io.ErrUnexpectedEOF)
	}
	if len(words[1]) == 3 && words[1][0] == '2' {
		return nil
	}
	var failure struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &failure) == nil && failure.Error != "" {
		return errors.New(failure.Error)
	}
	return fmt.Errorf("kuryr kurma answered %s", status)
}

// dial connects by a socket that blocks. Package net's would be waited for by other threads, whose start costs more than the rest of the program's.
func dial(socket string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	conn := os.NewFile(uintptr(fd), socket)
	send, receive := unix.NsecToTimeval(dialLimit.Nanoseconds()), unix.NsecToTimeval(answerLimit.Nanoseconds())
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &send), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &receive))
	if err == nil {
		for {
			if err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
