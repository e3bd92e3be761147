//go:build linux

package pod

import (
	"context"

	current "github.com/containernetworking/cni/pkg/types/100"
)

// Plugins are the networks of the configuration and what runs for them. Its methods may be called in parallel.
type Plugins interface {
	// Networks are those of the configuration as it is now, in its order, whether they run or not.
	Networks() []Network

	// Add has the network set up its interface in the pod's namespace. An error says why in the plugin's own words; what it did before may be half done,
	// and Del is called for it. It ends when ctx ends, and by itself within the minute that the specification gives a plugin. The error of a
	// network that is known but does not run says the reason. Errors name
	// the network, and may have a method Outcome() string, a word for metrics, and NotCalled() bool, which says that the plugin was never called, so that
	// there is nothing to undo.
	Add(ctx context.Context, on Ref, c Call) (*current.Result, error)

	// Del has the network take away what Add made. It is called for what was never whole, for what is gone already, and for namespaces that are gone.
	Del(ctx context.Context, on Ref, c Call) error

	// Release says that no pod is on this generation of the network any more. One that is not the configuration's may end. It may be called again.
	Release(on Ref)
}

// Ref names one generation of a network: the same name with another configuration is another one, and a pod stays on the one it was attached to.
type Ref struct {
	Name       string `json:"name"`
	Generation string `json:"generation,omitempty"`
}

// Network is a network that pods can be attached to.
type Network struct {
	Ref
	Default bool // for pods that ask for no networks
	// InterfaceName renders the entry's containerInterface, "" where it has none. An error says that there is no name that is free and that the kernel can have.
	InterfaceName func(Vars) (string, error)
}

// Vars are what the name of an interface is made of.
type Vars struct {
	Pod   string   // its UUID
	Num   int      // networks that the pod is attached to already
	Taken []string // names in its namespace, lo among them
}

// Call is what a plugin is told of a pod.
type Call struct {
	Pod       string // its UUID
	Namespace string // file of the namespace on the host, below the folder of the pins; it may be gone when Del is called
	Interface string // "" where the entry names none
}
