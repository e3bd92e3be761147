//go:build linux

package ferry

import "syscall"

// feed makes standard input what was read of it: a pipe that holds all.
func feed(input []byte) bool {
	var ends [2]int
	if syscall.Pipe2(ends[:], syscall.O_CLOEXEC) != nil {
		return false
	}
	if len(input) > 64<<10 { // what a pipe holds from the beginning, and MaxInput is what each may hold (pipe(7))
		if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(ends[1]), syscall.F_SETPIPE_SZ, uintptr(len(input))); errno != 0 {
			return false
		}
	}
	return syscall.SetNonblock(ends[1], true) == nil && writeAll(ends[1], input) && syscall.Dup3(ends[0], 0, 0) == nil && syscall.Close(ends[1]) == nil
}

// become runs the other program as this process, with these arguments. It returns only where that cannot be.
func (f Ferry) become(args ...string) int {
	path := make([]byte, 4<<10)
	n, err := syscall.Readlink("/proc/self/exe", path)
	if err == nil {
		for n > 0 && path[n-1] != '/' {
			n--
		}
		err = syscall.Exec(string(path[:n])+f.Whole, append([]string{f.Whole}, args...), syscall.Environ())
	}
	return fail(exitLater, `"code": 11, "msg": "try again later", "details": "the daemon (kuryr node) did not do it, and `+f.Whole+`, which does without it what can be done, cannot be run from the folder of this program: `+err.Error()+`"`)
}

func failInput(why string) int {
	return fail(exitInput, `"code": 5, "msg": "input or output failed", "details": "standard input: `+why+`"`)
}

// fail writes an error as CNI wants it. Of the call nothing is known here, so it is of the oldest version.
func fail(status int, fields string) int {
	_ = writeAll(1, []byte(`{"cniVersion": "0.1.0", `+fields+"}\n")) // the exit status says it too
	return status
}
