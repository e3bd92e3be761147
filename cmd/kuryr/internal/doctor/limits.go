package doctor

import "fmt"

// Share is how much of something limited is in use. A Max of 0 is no limit, or an unknown one.
type Share struct{ Used, Max uint64 }

func (s Share) over(percent uint64) bool { return s.Max > 0 && s.Used*100 >= s.Max*percent }

func (s Share) String() string { return fmt.Sprintf("%d of %d", s.Used, s.Max) }

// LimitFacts are the kernel's tables and the limits of the running Kuryr.
type LimitFacts struct {
	Conntrack   Share // connections that the host tracks
	Neighbours4 Share // gc_thresh3
	Neighbours6 Share
	SystemFiles Share
	DaemonFiles Share // of the running Kuryr
	PIDs        Share // tasks of the machine
	// a link of a default route with strict reverse-path filtering, where there is more than
	// one; "" none
	Strict string
}

// Limits judges what may run out.
func Limits(l LimitFacts) []Finding {
	f := findings{check: "limits"}
	for _, t := range []struct {
		share        Share
		what, remedy string
	}{
		{l.Conntrack, "tracked connections: when they are full new ones are dropped", "raise net.netfilter.nf_conntrack_max"},
		{
			l.Neighbours4, "IPv4 neighbours: when they are full new ones are not reached",
			"raise net.ipv4.neigh.default.gc_thresh3 (and 2 and 1 below it)",
		},
		{
			l.Neighbours6, "IPv6 neighbours: when they are full new ones are not reached",
			"raise net.ipv6.neigh.default.gc_thresh3 (and 2 and 1 below it)",
		},
		{l.SystemFiles, "open files of the machine", "raise fs.file-max"},
		{l.DaemonFiles, "open files of kuryr", "raise LimitNOFILE in kuryr.service"},
		{l.PIDs, "tasks of the machine: without more no container starts", "raise kernel.pid_max and kernel.threads-max"},
	} {
		switch {
		case t.share.over(95):
			f.add(Problem, t.share.String()+" "+t.what, t.remedy)
		case t.share.over(80):
			f.add(Warning, t.share.String()+" "+t.what, t.remedy)
		}
	}
	if l.Strict != "" {
		f.add(Warning,
			"the host has more than one link to the outside, and "+l.Strict+
				" drops what would not be answered by it (rp_filter is 1): published ports may not be "+
				"reached by it",
			"`sysctl -w net.ipv4.conf.all.rp_filter=2`, or 0 for all and 2 for "+l.Strict+", also in /etc/sysctl.d")
	}
	return f.orOK("tables and files have room")
}
