package doctor

import "fmt"

// NodeFacts are how containers of CNI runtimes are served on this machine.
type NodeFacts struct {
	There    bool   // it is, or was
	Socket   string // of the daemon
	Answers  bool
	Conflist string // that it is to write; "" none
	Missing  error  // why that cannot be seen
	Owed     int    // interfaces to be taken away when the daemon, or the SDN, is back
	Err      error  // why that is not known
}

// Node judges the daemon of CNI. Where there never was one it finds nothing.
func Node(n NodeFacts) []Finding {
	f := findings{check: "CNI"}
	if !n.There && n.Owed == 0 && n.Err == nil {
		return nil
	}
	if !n.Answers {
		f.add(Problem, "no daemon answers at "+n.Socket+": containers of CNI runtimes do not start",
			"start `kuryr up` or `kuryr node`, or remove the network's file from /etc/cni/net.d")
	}
	if n.Answers && n.Missing != nil {
		f.add(
			Warning, "container runtimes do not find the network: "+n.Missing.Error(),
			"restart `kuryr up` or `kuryr node`, which writes it",
		)
	}
	if n.Owed > 0 {
		f.add(
			Warning,
			fmt.Sprintf("%d interfaces of containers that have gone are still to be taken away", n.Owed),
			"they are when the daemon runs and the SDN answers; its log says why not",
		)
	}
	if n.Err != nil {
		f.add(Warning, "what is still to be taken away is not known: "+n.Err.Error(), "remove the record that cannot be read")
	}
	return f.orOK("kuryr-cni is answered, and nothing is owed")
}
