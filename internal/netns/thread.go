//go:build linux

package netns

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Do runs f with the OS thread of its goroutine in the network namespace ns, and returns
// f's error. f must not start goroutines that rely on the namespace: those run on other
// threads. The thread goes back to the pool only if it came home.
func Do(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.GetFromPath("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("current network namespace: %w", err)
			return
		}
		defer home.Close()
		if err := netns.Set(ns); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		err = f()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		// Otherwise the goroutine ends with its thread locked, and the runtime ends the thread.
		done <- err
	}()
	return <-done
}

// OnOwnThread runs f on a thread that never serves anything else, so f may leave it in
// any namespace, and returns f's error. The thread ends with f, and a namespace that it
// made and no other process holds with it. It is never the process's first thread: the runtime
// cannot end that one, and its namespaces are what /proc/self and /proc/net show to
// all threads, as long as the process lives.
func OnOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// This goroutine holds the first thread while another, which is bound to get a
			// different one, does the work.
			done <- OnOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}
