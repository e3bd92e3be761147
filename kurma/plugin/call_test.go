//go:build linux

package plugin

import (
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/nstest"
	"golang.org/x/sys/unix"
)

// What cannot be killed holds both streams; the call ends nevertheless.
func TestStreamsHeld(t *testing.T) {
	cmd := &exec.Cmd{}
	wait, err := stream(cmd, io.Discard, io.Discard, 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []io.Writer{cmd.Stdout, cmd.Stderr} {
		held, err := unix.Dup(int(w.(*os.File).Fd()))
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(held)
	}
	ended := make(chan struct{})
	go func() {
		wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("it waits on")
	}
}

// Root's capabilities in a plugin are no more where the daemon was started with inheritable ones.
func TestInheritableCapabilities(t *testing.T) {
	nstest.Require(t)
	err := netns.OnOwnThread(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var sets [2]unix.CapUserData
		if err := unix.Capget(&header, &sets[0]); err != nil {
			return err
		}
		sets[0].Inheritable, sets[1].Inheritable = sets[0].Permitted, sets[1].Permitted
		if err := unix.Capset(&header, &sets[0]); err != nil {
			return err
		}
		if err := boundCapabilities(); err != nil {
			return err
		}
		err := unix.Capget(&header, &sets[0])
		if sets[0].Inheritable|sets[1].Inheritable != 0 || sets[0].Permitted == 0 {
			t.Errorf("%+v", sets)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
