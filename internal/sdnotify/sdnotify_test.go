//go:build linux

package sdnotify

import (
	"net"
	"path/filepath"
	"testing"
)

func TestSend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	if err := Send(Ready); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, err := manager.Read(buf)
	if err != nil || string(buf[:n]) != "READY=1" {
		t.Errorf("manager heard %q, %v", buf[:n], err)
	}
}

func TestSendWithoutManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Send(Ready); err != nil {
		t.Error(err)
	}
}
