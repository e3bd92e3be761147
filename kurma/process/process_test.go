//go:build linux

package process

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestProcess(t *testing.T) {
	t.Parallel()
	c := exec.Command("sleep", "600")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := Of(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p, err := id.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.SetDeadline(time.Unix(1, 0))
	if err := p.Wait(); !errors.Is(err, os.ErrDeadlineExceeded) || id.Ended() {
		t.Errorf("running: %v, ended %v", err, id.Ended())
	}
	p.SetDeadline(time.Time{})
	for name, other := range map[string]ID{
		"of another start": {id.PID, id.Start + "0", id.Boot}, "of another boot": {id.PID, id.Start, "other"},
	} {
		if _, err := other.Open(); !errors.Is(err, os.ErrNotExist) || !other.Ended() {
			t.Errorf("process %s: %v", name, err)
		}
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil || !id.Ended() { // it is not reaped yet
		t.Errorf("killed: %v, ended %v", err, id.Ended())
	}
	_ = c.Wait()
	if err := p.Signal(unix.SIGTERM); err != nil {
		t.Errorf("signal after its end: %v", err)
	}
	if _, err := id.Open(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reaped: %v", err)
	}
}
