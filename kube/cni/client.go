package cni

import (
	"errors"
	"net"
	"time"
)

// ErrNoDaemon says that nobody answers on the socket.
var ErrNoDaemon = errors.New("the daemon (kuryr node) does not run")

// dialLimit bounds the wait for a place in the socket's queue.
const dialLimit = 5 * time.Second

// Ask has the daemon at the socket do the call, and gives what is to be written to standard output. The error is ErrNoDaemon where nothing was asked; another is the daemon's, or says that
// its answer has not come within the limit.
func Ask(socket string, c Call, limit time.Duration) ([]byte, error) {
	conn, err := net.DialTimeout("unix", socket, dialLimit)
	if err != nil {
		return nil, errors.Join(ErrNoDaemon, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return nil, IOFailure.Errorf("socket %s: %v", socket, err)
	}
	if err := WriteFrame(conn, NewRequest(c)); err != nil {
		return nil, lost(socket, err)
	}
	var r Reply
	if err := ReadFrame(conn, &r); err != nil {
		return nil, lost(socket, err)
	}
	if r.Least > Protocol {
		return nil, IncompatibleVersion.Errorf("the daemon speaks protocol %d, and kuryr-cni only %d: upgrade kuryr-cni", r.Protocol, Protocol)
	}
	if r.Error != nil {
		return nil, r.Error
	}
	return r.Output, nil
}

// lost says that the daemon has gone in the midst: whether the call was done is not known, and the runtime asks again.
func lost(socket string, err error) error {
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		return TimedOut.Errorf("the daemon at %s has not answered in time", socket)
	}
	return TryAgain.Errorf("the daemon at %s has ended before it answered: %v", socket, err)
}
