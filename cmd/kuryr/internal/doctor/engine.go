package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

// Stopped is a container that should run, and does not.
type Stopped struct{ Name, Policy, Error string }

// EngineFacts are what the Docker engine tells.
type EngineFacts struct {
	Socket      string // "": it is not to be asked
	Err         error  // it does not answer
	Version     string
	LiveRestore bool
	Swarm       bool
	Managed     []Managed // Kuryr as managed plugin
	Stopped     []Stopped // by a failed start
}

// Engine judges the Docker engine.
func Engine(e EngineFacts) []Finding {
	f := findings{check: "docker"}
	switch {
	case e.Socket == "":
		f.add(OK, "it is not asked: docker.api is empty, or DOCKER_HOST names no Unix socket", "")
		return f.list
	case e.Err != nil:
		f.add(
			Problem, "the Docker engine does not answer at "+e.Socket+": "+e.Err.Error(),
			"start it; if it listens elsewhere, set docker.api",
		)
		return f.list
	}
	if major, minor, ok := release(e.Version); ok && (major < 20 || major == 20 && minor < 10) {
		f.add(Warning, "Docker "+e.Version+" is older than what Kuryr was tested with", "use 20.10 or later")
	}
	for _, s := range e.Stopped {
		f.add(
			Problem,
			fmt.Sprintf(
				"container %s should run (restart policy %s) and does not, since its network was not there: %s",
				s.Name, s.Policy, s.Error,
			),
			"`docker start "+s.Name+"`",
		)
	}
	restore := "its containers stop with it (live-restore is off)"
	if e.LiveRestore {
		restore = "its containers outlive it (live-restore is on)"
	}
	return f.orOK("version " + e.Version + "; " + restore)
}

// release reads the beginning of a version such as 20.10.24+dfsg1.
func release(version string) (major, minor int, ok bool) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return 0, 0, false
	}
	minor, err = strconv.Atoi(parts[1])
	return major, minor, err == nil
}

// FailedStart reports whether a container's error is that the plugin was not there, or failed.
func FailedStart(message string, plugins ...string) bool {
	for _, word := range append([]string{"plugin", "network ", "endpoint"}, plugins...) {
		if word != "" && strings.Contains(message, word) {
			return true
		}
	}
	return false
}
