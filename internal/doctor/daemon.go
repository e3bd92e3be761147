package doctor

import (
	"fmt"
	"time"
)

// Host is what the running Kuryr finds about the host.
type Host struct {
	What, Mend string
	Note       bool // packets pass all the same
}

// DaemonFacts are what the running Kuryr tells of itself.
type DaemonFacts struct {
	Err         error // it does not answer
	Managed     bool  // Docker has it as its managed plugin
	Version     string
	Here        string // version of this program
	Reasons     []string
	Differences []string     // between store and kernel, of a Kuryr that does not tell Kernel
	Kernel      []Difference // the same, taken apart
	Host        []Host
	CheckErr    error // store and kernel could not be compared
	Apart       bool  // the SDN runs by itself: it has neither here
	StoreOnly   bool  // there is the store and no kernel state to it
}

// fix is the mend for what --fix mends.
const fix = "`kuryr doctor --fix`"

// Daemon judges the running Kuryr, its kernel state and the host's firewall.
func Daemon(d DaemonFacts) []Finding {
	f := findings{check: "kuryr"}
	if d.Err != nil {
		start := "start `kuryr up`"
		if d.Managed {
			start = "let Docker run its managed plugin: see check \"docker plugin\", or Docker's log"
		}
		f.add(Problem, d.Err.Error(), start+"; what needs it is not checked")
		return f.list
	}
	for _, r := range d.Reasons {
		f.add(Problem, "it is not ready: "+r, "see its log")
	}
	if d.Version != d.Here {
		f.add(Warning, "the running kuryr is version "+d.Version+", this program "+d.Here, "restart it: `systemctl restart kuryr`; containers keep their traffic")
	}
	all := f.orOK("it runs, version " + d.Version)
	return append(append(all, kernelState(d)...), firewall(d)...)
}

func kernelState(d DaemonFacts) []Finding {
	f := findings{check: "store and kernel"}
	if d.Apart {
		return f.orOK("not compared: the SDN runs by itself, and has no store and no kernel state here")
	}
	if d.StoreOnly {
		return f.orOK("not compared: there is the store alone (--store-only), and no kernel state to it")
	}
	if d.CheckErr != nil {
		f.add(Problem, "they could not be compared: "+d.CheckErr.Error(), "see the log of kuryr")
	}
	for _, g := range GroupDifferences(d.Kernel) {
		f.add(Problem, g.Wrong(), fix)
		f.list[len(f.list)-1].Details = g.Details
	}
	if len(d.Kernel) == 0 {
		for _, diff := range d.Differences {
			f.add(Problem, diff, fix)
		}
	}
	return f.orOK("the kernel is as the store says")
}

func firewall(d DaemonFacts) []Finding {
	f := findings{check: "forwarding and firewalls"}
	if d.Apart {
		return f.orOK("not checked: they are the SDN's affair, which runs by itself")
	}
	if d.StoreOnly {
		return f.orOK("not checked: there is the store alone (--store-only), and no packet")
	}
	for _, h := range d.Host {
		verdict := Problem
		if h.Note {
			verdict = Warning
		}
		f.add(verdict, h.What, h.Mend)
	}
	return f.orOK("packets pass the host")
}

// Missing is something that Docker does not have and Kuryr keeps.
type Missing struct {
	Noun, Name, Why string
	Kept            string // why it is not removed by itself
	Engine          string // which had it
	Connected       bool
	Since, Due      time.Time
	Changed         time.Time
}

// MemoryFacts are what came of comparing Kuryr with Docker.
type MemoryFacts struct {
	Off     string // why nothing is compared
	Err     string // why nothing could be compared
	Engine  string
	Now     time.Time
	Missing []Missing
	Unknown []string // networks that Docker has by this driver and the SDN does not
	Broken  []Broken
}

// Broken is a container's place on a network that packets do not pass.
type Broken struct{ Container, Endpoint, State string }

// passing is how lately something was changed that may be a call of Docker's in progress.
const passing = 10 * time.Second

// Memory judges what Docker has forgotten, and what Kuryr has.
func Memory(m MemoryFacts) []Finding {
	f := findings{check: "docker's memory"}
	switch {
	case m.Off != "":
		return f.orOK("not compared: " + m.Off)
	case m.Err != "":
		f.add(Warning, "Kuryr could not compare with Docker: "+m.Err, "see that Docker answers; set docker.api if it listens elsewhere")
		return f.list
	}
	for _, x := range m.Missing {
		what := fmt.Sprintf("%s %s is forgotten: %s", x.Noun, x.Name, x.Why)
		if !x.Since.IsZero() {
			what += ", for " + m.Now.Sub(x.Since).Round(time.Second).String() + " at least"
		}
		switch {
		case x.Connected:
			f.add(Warning, what+"; it stays: "+x.Kept, "stop what runs in its network namespace: Docker does not know it")
		case x.Kept != "":
			name := x.Engine
			if name == "" {
				name = "unknown"
			}
			f.add(Warning, what+"; it stays: "+x.Kept, "nothing, if that engine comes back; if it is gone for good: `kuryr doctor --fix --forget-engine "+name+"`")
		case m.Now.Sub(x.Changed) < passing && x.Since.IsZero():
			// Docker may be at it this moment.
		case x.Due.IsZero():
			f.add(Warning, what, "`kuryr doctor --fix --now`")
		case x.Due.After(m.Now):
			f.add(Warning, what+"; it will be removed in "+x.Due.Sub(m.Now).Round(time.Second).String(), "wait, or `kuryr doctor --fix --now`")
		default:
			f.add(Problem, what+", and should be gone by now", fix)
		}
	}
	for _, b := range m.Broken {
		where := "container " + b.Container + " (endpoint " + b.Endpoint[:min(12, len(b.Endpoint))] + ") "
		restart := "`docker restart " + b.Container + "`"
		switch b.State {
		case "loose":
			f.add(Problem, where+"has its interface not on its bridge, or down", fix)
		case "absent":
			f.add(Problem, where+"runs, and its interface is gone", restart)
		default:
			f.add(Problem, where+"runs, and the SDN does not have its endpoint", restart)
		}
	}
	for _, name := range m.Unknown {
		f.add(Problem, "Docker has a network "+name+" of this driver that the SDN does not have", "`docker network rm "+name+"`, then create it anew; or restore a backup of the store")
	}
	return f.orOK("Docker and Kuryr know the same networks and endpoints")
}
