//go:build linux

package main

import (
	"os"
	"os/user"
	"testing"
)

// A service of systemd has no HOME, by which credentials of registries are found.
func TestHomeOfAService(t *testing.T) {
	t.Setenv("HOME", "") // for what it is afterwards
	own, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if err := setHome(); err != nil || os.Getenv("HOME") != own.HomeDir {
		t.Errorf("HOME is %q, %v, want %q", os.Getenv("HOME"), err, own.HomeDir)
	}
	t.Setenv("HOME", "/elsewhere")
	if err := setHome(); err != nil || os.Getenv("HOME") != "/elsewhere" {
		t.Errorf("HOME is %q, %v", os.Getenv("HOME"), err)
	}
}
