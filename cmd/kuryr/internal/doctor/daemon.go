package doctor

import (
	"cmp"
	"fmt"
	"time"
)

// Host is what the running Kuryr finds about the host.
type Host struct {
	What, Remediation string
	Note              bool // packets pass all the same
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

// fix is the remedy for what --fix repairs.
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
		f.add(
			Warning, "the running kuryr is version "+d.Version+", this program "+d.Here,
			"restart it: `systemctl restart kuryr`; containers keep their traffic",
		)
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
		f.add(verdict, h.What, h.Remediation)
	}
	return f.orOK("packets pass the host")
}

// Orphan is something that Docker does not have and Kuryr keeps.
type Orphan struct {
	Noun, Name, Why string
	Kept            string // why it is not deleted
	Engine          string // that had it
	Connected       bool
	Since, Due      time.Time
	Changed         time.Time
}

// OrphanFacts are what Docker and Kuryr do not both have.
type OrphanFacts struct {
	Off     string // why nothing is compared
	Err     string // why nothing could be compared
	Engine  string
	Now     time.Time
	Orphans []Orphan
	Unknown []string // networks that Docker has by this driver and Kuryr does not
	Broken  []Broken
}

// Broken is a container's place on a network that packets do not pass.
type Broken struct{ Container, Endpoint, State string }

// passing is how lately something was changed that may be a call of Docker's in progress.
const passing = 10 * time.Second

// Orphans judges what Docker has forgotten, and what Kuryr has.
func Orphans(o OrphanFacts) []Finding {
	f := findings{check: "docker's memory"}
	switch {
	case o.Off != "":
		return f.orOK("not compared: " + o.Off)
	case o.Err != "":
		f.add(
			Warning, "Kuryr could not compare with Docker: "+o.Err,
			"see that Docker answers; set docker.api if it listens elsewhere",
		)
		return f.list
	}
	for _, x := range o.Orphans {
		f.orphan(x, o.Now)
	}
	for _, b := range o.Broken {
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
	for _, name := range o.Unknown {
		f.add(
			Problem, "Docker has a network "+name+" of this driver that the SDN does not have",
			"`docker network rm "+name+"`, then create it anew; or restore a backup of the store",
		)
	}
	return f.orOK("Docker and Kuryr know the same networks and endpoints")
}

func (f *findings) orphan(o Orphan, now time.Time) {
	what := fmt.Sprintf("%s %s is forgotten: %s", o.Noun, o.Name, o.Why)
	if !o.Since.IsZero() {
		what += ", for " + now.Sub(o.Since).Round(time.Second).String() + " at least"
	}
	switch {
	case o.Connected:
		f.add(Warning, what+"; it stays: "+o.Kept, "stop what runs in its network namespace: Docker does not know it")
	case o.Kept != "":
		name := cmp.Or(o.Engine, "unknown")
		f.add(
			Warning, what+"; it stays: "+o.Kept,
			"nothing, if that engine comes back; if it is gone for good: `kuryr doctor --fix --forget-engine "+name+"`",
		)
	case now.Sub(o.Changed) < passing && o.Since.IsZero():
		// A call of Docker's can be in progress.
	case o.Due.IsZero():
		f.add(Warning, what, "`kuryr doctor --fix --now`")
	case o.Due.After(now):
		f.add(
			Warning, what+"; it will be removed in "+o.Due.Sub(now).Round(time.Second).String(),
			"wait, or `kuryr doctor --fix --now`",
		)
	default:
		f.add(Problem, what+", and should be gone by now", fix)
	}
}
