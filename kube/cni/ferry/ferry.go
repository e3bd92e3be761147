//go:build linux

package ferry

import "syscall"

// Ferry is the executable's surroundings.
type Ferry struct {
	Socket string // of the daemon, where the configuration names none
	Whole  string // the name of the program, in the folder of this one, that does what the ferry does not
}

// The longest answer in bytes, and the longest waits in seconds: for a place in the socket's queue, and for each part of the answer.
const (
	maxAnswer  = 2 << 20
	dialLimit  = 5
	replyLimit = 90
)

// What the ferry itself fails with: rows of the table of errors, by their exit status (package cni).
const (
	exitInput = 15
	exitLater = 21
)

// Lost is the other program's argument where the daemon was asked and has not answered: it was killed, or takes too long. What it has done is not known, so nobody else may do it now.
const Lost = "lost"

// Run does what the environment and standard input ask, and gives the exit status. Where it is not for the daemon at the socket, or that does not answer, or not in the plain form, this
// process becomes the other program, which has the same environment and standard input: to ask the daemon twice is as good as once.
func (f Ferry) Run() int {
	var c Call
	for _, v := range [...]struct {
		name  string
		value *string
	}{{"CNI_COMMAND", &c.Verb}, {"CNI_CONTAINERID", &c.Container}, {"CNI_NETNS", &c.Namespace}, {"CNI_IFNAME", &c.Interface}, {"CNI_ARGS", &c.Args}} {
		*v.value, _ = syscall.Getenv(v.name)
	}
	if c.Verb == "" || c.Verb == "VERSION" { // which needs no daemon
		return f.become()
	}
	var how []string
	const frame = 4
	message := c.head(make([]byte, frame, 8<<10))
	at := len(message)
	message, ok := readAll(0, message, at+MaxInput+1)
	input := message[at:]
	switch {
	case !ok:
		return failInput("cannot be read")
	case len(input) > MaxInput:
		return failInput("has more than 1048576 bytes")
	}
	if usual(input) {
		put32(message, len(message)-frame)
		answer, asked, answered := ask(f.Socket, message)
		if status, output, ok := parseAnswer(answer); answered && ok {
			if !writeAll(1, output) {
				return exitInput
			}
			return status
		}
		if asked && !answered {
			how = []string{Lost}
		}
	}
	if !feed(input) {
		return failInput("cannot be given to " + f.Whole)
	}
	return f.become(how...)
}

// usual tells whether a configuration cannot name another socket: keys are compared without regard to case, also by letters beyond ASCII, and may be escaped.
func usual(config []byte) bool {
	const key = "socket"
	for i, b := range config {
		if b >= 0x80 || b == '\\' {
			return false
		}
		n := 0
		for n < len(key) && i+n < len(config) && config[i+n]|0x20 == key[n] {
			n++
		}
		if n == len(key) {
			return false
		}
	}
	return true
}

// ask sends a frame to the daemon, and gives what the frame of its answer has in it. It was not asked where nobody listens.
func ask(socket string, message []byte) (answer []byte, asked, answered bool) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, false, false
	}
	bound(fd, syscall.SO_SNDTIMEO, dialLimit)
	bound(fd, syscall.SO_RCVTIMEO, replyLimit)
	for {
		if err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}); err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		return nil, false, false
	}
	// Where it does not take all it may have said why.
	_ = writeAll(fd, message)
	answer, answered = readFrame(fd)
	return answer, true, answered // the process's end closes the socket, and so does its becoming another program
}

func bound(fd, option int, seconds int64) {
	wait := syscall.NsecToTimeval(seconds * 1e9)
	_ = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, option, &wait) // a socket takes it
}

// readFrame reads a number of bytes, and so many of them.
func readFrame(fd int) (body []byte, ok bool) {
	head, ok := readAll(fd, make([]byte, 0, 4), 4)
	if !ok || len(head) < 4 {
		return nil, false
	}
	size := get32(head)
	if size > maxAnswer {
		return nil, false
	}
	body, ok = readAll(fd, make([]byte, 0, size), size)
	return body, ok && len(body) == size
}

// readAll appends what comes until the end, but not beyond so many bytes.
func readAll(fd int, b []byte, most int) ([]byte, bool) {
	for len(b) < most {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := syscall.Read(fd, b[len(b):min(cap(b), most)])
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return b, false
		case n == 0:
			return b, true
		default:
			b = b[:len(b)+n]
		}
	}
	return b, true
}

func writeAll(fd int, b []byte) bool {
	for len(b) > 0 {
		n, err := syscall.Write(fd, b)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return false
		}
		b = b[n:]
	}
	return true
}

// put32 and get32 are a number in network order.
func put32(b []byte, n int) {
	b[0], b[1], b[2], b[3] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
}

func get32(b []byte) int { return int(b[0])<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3]) }
