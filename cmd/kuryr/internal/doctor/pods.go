package doctor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// PodFacts are how the pods of a cluster's node are served.
type PodFacts struct {
	There       bool // the node's daemon is here, or was
	Err         error
	Version     string
	Here        string   // version of this program
	Reasons     []string // for not being ready
	Host        []Host   // what it does not do, or not all of, though it is ready
	Differences []string // between its journal, the API server and the kernel
	CheckErr    error    // they could not be compared
	Waiting     int      // pods that wait for a port
	Pools       []PodPool
	Stale       []string // installed plugins that are not this program's
	First       string   // the list that container runtimes take instead of Kuryr's; "" for none
	Conflist    string   // Kuryr's
}

// PodPool is how full a pool of the node is.
type PodPool struct {
	Name, Network               string
	Ports, Free, Waiting, Limit int    // a Limit of 0 is none
	Why                         string // it is not filled
}

// Pods judges the daemon of a cluster's node, its pods' ports and its pools. Where there
// never was one it finds nothing.
func Pods(p PodFacts) []Finding {
	if !p.There {
		return nil
	}
	f := findings{check: "pods"}
	if p.Err != nil {
		f.add(
			Problem, "the daemon of the node does not answer: "+p.Err.Error(),
			"`kubectl -n kuryr-system get pods -l app.kubernetes.io/name=kuryr-node -o wide`, and its "+
				"log; pods that run keep their traffic",
		)
		return f.list
	}
	for _, r := range p.Reasons {
		f.add(Problem, "the daemon of the node is not ready: "+r, "see its log; it needs the API server once")
	}
	for _, h := range p.Host {
		f.add(Warning, h.What, h.Remediation)
	}
	if p.Version != p.Here {
		f.add(
			Warning, "the daemon of the node is version "+p.Version+", this program "+p.Here,
			"nothing, while the cluster is being upgraded",
		)
	}
	for _, path := range p.Stale {
		f.add(
			Warning, path+" is not the plugin of this version",
			"`kuryr install cni`, or restart the daemon's pod, which installs it",
		)
	}
	if p.First != "" {
		f.add(
			Problem, "container runtimes take the network of "+p.First+", which comes before "+p.Conflist,
			"remove it: pods that are started now have no port of Kuryr's",
		)
	}
	all := f.orOK("the daemon of the node runs, version " + p.Version)
	return append(append(all, podPorts(p)...), podPools(p)...)
}

func podPorts(p PodFacts) []Finding {
	f := findings{check: "ports of pods"}
	if p.CheckErr != nil {
		f.add(Problem, "they could not all be looked at: "+p.CheckErr.Error(), "see the log of the node's daemon")
	}
	for _, d := range p.Differences {
		f.add(Problem, d, "look again: what is under way differs for a moment; else delete the pod, which is then made anew")
	}
	return f.orOK("journal, API server and kernel agree")
}

func podPools(p PodFacts) []Finding {
	f := findings{check: "pools"}
	in := 0
	for _, o := range p.Pools {
		in += o.Waiting
		name := o.Name + " (network " + o.Network + ")"
		switch {
		case o.Waiting > 0 && o.Limit > 0 && o.Ports >= o.Limit:
			f.add(
				Problem,
				fmt.Sprintf(
					"%d pods wait for a port of the pool %s, which has its maximum of %d", o.Waiting, name,
					o.Limit,
				),
				"a higher maximum: annotation openstack.org/kuryr-pool of the namespace or the node",
			)
		case o.Waiting > 0 && o.Why != "":
			f.add(
				Problem, fmt.Sprintf("%d pods wait for a port of the pool %s: %s", o.Waiting, name, o.Why),
				"`kubectl describe kuryrportpool "+o.Name+"`",
			)
		case o.Waiting > 0:
			f.add(
				Warning, fmt.Sprintf("%d pods wait for a port of the pool %s", o.Waiting, name),
				"Raven fills it; if it does not, see the log of `kuryr controller`",
			)
		case o.Why != "":
			f.add(
				Warning,
				fmt.Sprintf("the pool %s, which has %d free ports, is not filled: %s", name, o.Free, o.Why),
				"`kubectl describe kuryrportpool "+o.Name+"`",
			)
		}
	}
	if others := p.Waiting - in; others > 0 {
		f.add(
			Warning,
			fmt.Sprintf(
				"%d pods wait for the network of their namespace or for a port of their own", others,
			),
			"`kubectl describe pod` tells for what; see the log of `kuryr controller`",
		)
	}
	free := 0
	for _, o := range p.Pools {
		free += o.Free
	}
	return f.orOK(fmt.Sprintf("%d pools have %d free ports", len(p.Pools), free))
}

// StalePlugins are those of the files that are not as the plugin beside this program.
// Files that are not there, or a program without a plugin, say nothing.
func StalePlugins(own string, files ...string) (stale []string) {
	plugin, err := os.ReadFile(own)
	if err != nil {
		return nil
	}
	for _, path := range files {
		if there, err := os.ReadFile(path); err == nil && !bytes.Equal(there, plugin) {
			stale = append(stale, path)
		}
	}
	return stale
}

// FirstNetwork is the file that a container runtime takes for the network of pods instead
// of this list: the first of its folder in the order of names. "" is none.
func FirstNetwork(conflist string) string {
	all, err := os.ReadDir(filepath.Dir(conflist)) // sorted
	if err != nil {
		return ""
	}
	for _, e := range all {
		if !e.IsDir() && slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			if e.Name() < filepath.Base(conflist) {
				return filepath.Join(filepath.Dir(conflist), e.Name())
			}
			return ""
		}
	}
	return ""
}
