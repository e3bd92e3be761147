package privatehost

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Service is a program that runs on a host besides its engine and Kuryr: a database, a switch, an SDN's server. It ends
// with the host at the latest, and with it what it started.
type Service struct{ *daemon }

// StartService starts argv on the host, with env added and its output in the log name.log, and returns when ready says
// yes; a nil ready is no wait. A service that ended before it was ready is an error that tells its name.
func (h *Host) StartService(
	ctx context.Context, name string, env, argv []string, ready func(context.Context) bool,
) (*Service, error) {
	d, err := h.spawn(name+".log", env, argv)
	if err != nil {
		return nil, err
	}
	s := &Service{d}
	h.mu.Lock()
	h.services = append(h.services, s)
	h.mu.Unlock()
	if ready == nil {
		return s, nil
	}
	if err := d.ready(ctx, ready); err != nil {
		return nil, fmt.Errorf("service %s: %w", name, err)
	}
	return s, nil
}

// Stop sends sig to the service and all it started, and waits for its end; what does not end within limit is killed,
// and that is an error. A service that has ended already is none.
func (s *Service) Stop(sig syscall.Signal, limit time.Duration) error {
	select {
	case <-s.gone:
		return nil
	default:
	}
	group := -s.cmd.Process.Pid
	if err := unix.Kill(group, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	select {
	case <-s.gone:
		return nil
	case <-time.After(limit):
		_ = unix.Kill(group, unix.SIGKILL)
		<-s.gone
		return fmt.Errorf("%s did not end within %s of %s", s.cmd.Args[0], limit, sig)
	}
}

// Pid is the service's process as the machine sees it.
func (s *Service) Pid() int { return s.cmd.Process.Pid }

// Gone is closed when the service has ended.
func (s *Service) Gone() <-chan struct{} { return s.gone }

// Signal is what ended the service, once Gone is closed; 0 where it ended by itself.
func (s *Service) Signal() syscall.Signal {
	if status, is := s.cmd.ProcessState.Sys().(syscall.WaitStatus); is && status.Signaled() {
		return status.Signal()
	}
	return 0
}
