package privatehost

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
)

// EngineEnv names the engine's program for every host whose Options do not.
const EngineEnv = "KURYR_E2E_DOCKERD"

// newestEngine is taken for an engine that does not tell its version: such were built from a source that has none.
const newestEngine = 29

// engineFlags are what engines from a major version on need to run with Debian's containerd, runc and docker-proxy.
var engineFlags = []struct {
	from  int
	flags []string
}{
	{29, []string{
		"--feature", "time-namespaces=false", // runc before 1.2 refuses a container that has one
		"--userland-proxy=false", // another engine's proxy takes other arguments
	}},
}

// engine is a Docker engine's program.
type engine struct {
	program string
	major   int
}

var (
	engineVersion = regexp.MustCompile(`version ([0-9]+)[.-]`)
	engines       sync.Map // program to func() (engine, error)
)

// findEngine takes the program asked for, else the environment's, else Debian's, and asks it once for its version.
func findEngine(program string) (engine, error) {
	if program == "" {
		program = os.Getenv(EngineEnv)
	}
	if program == "" {
		program = "dockerd"
	}
	ask, _ := engines.LoadOrStore(program, sync.OnceValues(func() (engine, error) {
		out, err := exec.CommandContext(context.Background(), lookPath(program), "--version").Output()
		if err != nil {
			return engine{}, fmt.Errorf("ask the engine %s for its version: %w", program, err)
		}
		e := engine{program: program, major: newestEngine}
		if m := engineVersion.FindSubmatch(out); m != nil {
			e.major, err = strconv.Atoi(string(m[1]))
		}
		return e, err
	}))
	return ask.(func() (engine, error))()
}

func (e engine) flags() (all []string) {
	for _, f := range engineFlags {
		if e.major >= f.from {
			all = append(all, f.flags...)
		}
	}
	return all
}

// EngineMajor is the major version of the engine that a host with these Options has.
func EngineMajor(opts Options) (int, error) {
	e, err := findEngine(opts.Dockerd)
	return e.major, err
}
