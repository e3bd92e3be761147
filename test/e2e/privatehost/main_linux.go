package privatehost

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// Main is the main function of a command of this name: it is Init, and ends with the
// status that run gives, or with 125 and its error.
func Main(name string, run func() (int, error)) {
	Init()
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		if code == 0 {
			code = 125
		}
	}
	os.Exit(code)
}

// Status is the exit status of a command that ended with err, which is another error where it did not end by itself.
func Status(err error) (int, error) {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}
