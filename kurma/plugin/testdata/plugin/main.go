// Command plugin is a network plugin that does what its entry says, so that tests see what becomes of it.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

type entry struct {
	Main string `json:"main"` // exit: at once; deaf: without an end by SIGTERM
	Do   string `json:"do"`   // what calls do
	Text string `json:"text"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "linger" {
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
		time.Sleep(time.Hour)
	}
	raw, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	var e entry
	if err := json.Unmarshal(raw, &e); err != nil {
		panic(err)
	}
	if len(os.Args) == 1 && filepath.Base(os.Args[0]) == "plugin" {
		fmt.Println("main has read", len(raw), "bytes")
		if e.Main == "exit" {
			fmt.Fprintln(os.Stderr, "cannot go on")
			os.Exit(7)
		}
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM, syscall.SIGUSR1)
		if s := <-stop; s == syscall.SIGUSR1 {
			fmt.Println("told to fail")
			os.Exit(5)
		}
		return
	}
	if filepath.Base(os.Args[0]) == "setup" {
		if err := os.WriteFile("/set-up", nil, 0o600); err != nil {
			panic(err)
		}
		return
	}
	switch e.Do {
	case "probe":
		status, _ := os.ReadFile("/proc/self/status")
		tells := map[string]any{"args": os.Args, "stdin": string(raw), "uid": os.Getuid(), "pid": os.Getpid(), "env": os.Environ()}
		for line := range strings.Lines(string(status)) {
			if k, v, _ := strings.Cut(line, ":"); strings.HasPrefix(k, "Cap") {
				tells[k] = strings.TrimSpace(v)
			}
		}
		if f, err := os.Open(os.Args[1]); err == nil {
			tells["namespace"] = syscall.Fstat(int(f.Fd()), &syscall.Stat_t{}) == nil
			_, _, errno := syscall.Syscall(308, f.Fd(), syscall.CLONE_NEWNET, 0) // setns
			tells["setns"] = errno == 0
		}
		tells["forward"] = writable("/proc/sys/net/ipv4/ip_forward")
		tells["kernel"] = writable("/proc/sys/kernel/core_pattern")
		tells["root"] = os.WriteFile("/written", nil, 0o600) == nil
		_, err := os.Stat("/volume/kept")
		tells["kept"] = err == nil
		_ = os.WriteFile("/volume/kept", nil, 0o600)
		text, _ := json.Marshal(tells)
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"code": 9, "msg": "probe", "details": string(text)})
		os.Exit(1)
	case "hang", "orphan":
		child := exec.Command("/plugin", "linger")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			panic(err)
		}
		if e.Do == "hang" {
			fmt.Fprintln(os.Stderr, "working on it")
			time.Sleep(time.Hour)
		}
		fmt.Print(e.Text)
	case "fail":
		fmt.Print(e.Text)
		fmt.Fprintln(os.Stderr, "and on stderr")
		os.Exit(3)
	case "flood":
		block := strings.Repeat("x", 1<<20)
		for range 3 {
			fmt.Print(block)
		}
	default:
		fmt.Fprintln(os.Stderr, "a warning that is no part of the answer")
		fmt.Print(e.Text)
	}
}

func writable(path string) bool {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_ = f.Close()
	}
	return err == nil
}
