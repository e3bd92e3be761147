//go:build linux

package pod

import (
	"context"

	current "github.com/containernetworking/cni/pkg/types/100"
)

// Plugins are the networks of the configuration and what runs for them. Its methods may be called
// concurrently.
type Plugins interface {
	// Networks returns those of the current configuration, in its order, also those that do not
	// run.
	Networks() []Network

	// Add has the network set up its interface in the pod's namespace. An error is in the
	// plugin's own words and names the network. Its work may be half done, and Del is
	// called for it. Add ends when ctx ends, and by itself within the minute that the
	// specification gives a plugin.
	//
	// The error may have a method Outcome() string, a word for metrics, and NotCalled() bool,
	// which says that the plugin was never called, so that there is nothing to undo.
	Add(ctx context.Context, on Ref, c Call) (*current.Result, error)

	// Del has the network remove what Add made. It is called for what was never whole, for what
	// is gone already, and for namespaces that are gone.
	Del(ctx context.Context, on Ref, c Call) error

	// Release says that this generation of the network has no pods left. One that is not of the
	// configuration may end. It may be called again.
	Release(on Ref)
}

// Ref names one generation of a network. The same name with another configuration is another
// generation, and a pod stays on the one it was attached to.
type Ref struct {
	Name       string `json:"name"`
	Generation string `json:"generation,omitempty"`
}

// Network is a network that pods can be attached to.
type Network struct {
	Ref
	Default bool // for pods that ask for no networks
	// InterfaceName renders the entry's containerInterface; nil or "" if it has none. An error
	// says that no name is free and valid in the kernel.
	InterfaceName func(Vars) (string, error)
}

// Vars are what the name of an interface is made of.
type Vars struct {
	Pod   string   // its UUID
	Num   int      // networks before this one
	Taken []string // names in its namespace, and those of earlier networks
}

// Call is what a plugin is told of a pod.
type Call struct {
	Pod string // its UUID
	// Namespace is the file of the namespace on the host. It may be gone when Del is called.
	Namespace string
	Interface string // "" if the entry names none
}
