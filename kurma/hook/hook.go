//go:build linux

package hook

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// The annotations of a container that are read.
const (
	// AnnotationNetworks names networks, separated by commas or spaces, in the order they are called. Without it, or if it is empty, the container is on the networks
	// that are the default, and NoNetworks is none of them.
	AnnotationNetworks = "kurma.io/networks"
	// AnnotationUUID is the pod's UUID, which the daemon takes under a grant alone. Without it
	// the UUID follows from the container's id.
	AnnotationUUID = "kurma.io/pod-uuid"
)

// NoNetworks is the value of AnnotationNetworks for a container that is on none.
const NoNetworks = "none"

// DefaultSocket is where the daemon is asked.
const DefaultSocket = "/run/kuryr/kurma.sock"

// The stages that it is run at.
const (
	CreateRuntime = "createRuntime" // the namespace is there, and the container's program does not run yet
	PostStop      = "poststop"      // the container is gone
)

// Exit statuses.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

const usage = "usage: kuryr-oci-hook createRuntime|poststop [--socket PATH] <STATE"

// maxState bounds what a runtime writes.
const maxState = 1 << 20

// Run is the program. What went wrong is one line on errors, which the runtime shows; a runtime takes a failed createRuntime for the container's.
func Run(args []string, stdin io.Reader, errors io.Writer) int {
	stage, socket, ok := parse(args)
	if !ok {
		_, _ = io.WriteString(errors, usage+"\n")
		return exitUsage
	}
	if err := run(stage, socket, stdin); err != nil {
		_, _ = io.WriteString(errors, "kuryr-oci-hook: "+strings.ReplaceAll(err.Error(), "\n", "; ")+"\n")
		return exitError
	}
	return exitOK
}

func parse(args []string) (stage, socket string, ok bool) {
	socket = DefaultSocket
	for i := 0; i < len(args); i++ {
		switch value, is := strings.CutPrefix(args[i], "--socket="); {
		case is:
			socket = value
		case args[i] == "--socket" && i+1 < len(args):
			i++
			socket = args[i]
		case stage == "" && (args[i] == CreateRuntime || args[i] == PostStop):
			stage = args[i]
		default:
			return "", "", false
		}
	}
	return stage, socket, stage != "" && socket != ""
}

// state is what a runtime tells of a container.
type state struct {
	ID          string            `json:"id"`
	PID         int               `json:"pid"`
	Annotations map[string]string `json:"annotations"`
}

// request is the body of POST /v1/pods; package api tells what it means.
type request struct {
	UUID      string    `json:"uuid,omitempty"`
	Networks  *[]string `json:"networks,omitempty"`
	PID       int       `json:"pid"`
	Container string    `json:"container"`
}

func run(stage, socket string, stdin io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(stdin, maxState+1))
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if len(text) > maxState {
		return fmt.Errorf("state: it has more than %d bytes", maxState)
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if s.ID == "" {
		return fmt.Errorf("state: it has no id")
	}
	if stage == PostStop {
		return ask(socket, "DELETE", "/v1/containers/"+escape(s.ID), nil)
	}
	if s.PID <= 0 {
		return fmt.Errorf("state: container %s has no pid", s.ID)
	}
	networks, err := networksOf(s.Annotations[AnnotationNetworks])
	if err != nil {
		return err
	}
	body, err := json.Marshal(request{UUID: s.Annotations[AnnotationUUID], Networks: networks, PID: s.PID, Container: s.ID})
	if err != nil {
		return err
	}
	return ask(socket, "POST", "/v1/pods", body)
}

// networksOf reads the annotation; nil stands for the defaults.
func networksOf(annotation string) (*[]string, error) {
	annotation = strings.TrimSpace(annotation)
	list := []string{}
	switch annotation {
	case "":
		return nil, nil
	case NoNetworks:
		return &list, nil
	}
	for part := range strings.SplitSeq(annotation, ",") {
		names := strings.Fields(part)
		if len(names) == 0 {
			return nil, fmt.Errorf("annotation %s: %q has an empty name", AnnotationNetworks, annotation)
		}
		list = append(list, names...)
	}
	return &list, nil
}

// escape writes a container's id as a part of a path.
func escape(id string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(id) {
		c := id[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' && id != "." && id != ".." {
			b.WriteByte(c)
			continue
		}
		b.WriteString("%" + string(hex[c>>4]) + string(hex[c&15]))
	}
	return b.String()
}
