//go:build linux

package hook

import "encoding/json"

// DefaultProgram is where the program is installed.
const DefaultProgram = "/usr/libexec/kuryr/kuryr-oci-hook"

// command is a hook as config.json and hooks.d have it.
type command struct {
	Path string   `json:"path"`
	Args []string `json:"args"`
}

func commandFor(stage, program, socket string) command {
	c := command{Path: program, Args: []string{"kuryr-oci-hook", stage}}
	if socket != "" && socket != DefaultSocket {
		c.Args = append(c.Args, "--socket", socket)
	}
	return c
}

// Bundle is the part of a bundle's config.json that has a runtime run the hook.
func Bundle(program, socket string) ([]byte, error) {
	return indent(map[string]any{"hooks": map[string]any{
		CreateRuntime: []command{commandFor(CreateRuntime, program, socket)},
		PostStop:      []command{commandFor(PostStop, program, socket)},
	}})
}

// Stages are the stages, for each of which Folder gives a file.
var Stages = []string{CreateRuntime, PostStop}

// File is the name of a stage's file in a folder of hooks.
func File(stage string) string { return "kuryr-" + stage + ".json" }

// Folder is a stage's file for a folder of hooks (oci-hooks(5) of podman and CRI-O). Containers without AnnotationNetworks are left alone.
func Folder(stage, program, socket string) ([]byte, error) {
	type when struct {
		Annotations map[string]string `json:"annotations"`
	}
	return indent(struct {
		Version string   `json:"version"`
		Hook    command  `json:"hook"`
		When    when     `json:"when"`
		Stages  []string `json:"stages"`
	}{"1.0.0", commandFor(stage, program, socket), when{map[string]string{`^kurma\.io/networks$`: ".*"}}, []string{stage}})
}

func indent(v any) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	return append(text, '\n'), err
}
