//go:build linux

package main

import (
	"net"
	"path/filepath"
	"testing"
)

func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	if err := notify(notifyReady); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, err := manager.Read(buf)
	if err != nil || string(buf[:n]) != "READY=1" {
		t.Errorf("manager heard %q, %v", buf[:n], err)
	}
}

func TestNotifyWithoutManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := notify(notifyReady); err != nil {
		t.Error(err)
	}
}
