package doctor

import (
	"fmt"
	"strings"
)

// ServiceFacts are who realises a cluster's Services in this machine's kernel.
type ServiceFacts struct {
	Kuryr bool     // it does
	Proxy []string // what kube-proxy has, or has left, there
	Runs  bool     // kube-proxy does
	Err   error    // why not all of that is known
}

// Services judges that two do not do it together. Where Kuryr does not it finds nothing:
// it is another's affair.
func Services(s ServiceFacts) []Finding {
	f := findings{check: "services"}
	if !s.Kuryr {
		return nil
	}
	switch {
	case s.Runs:
		f.add(
			Problem,
			"kube-proxy runs, and so does node.services: of what both lead elsewhere the first to see "+
				"a packet decides",
			"take kube-proxy out of the cluster (docs/services.md), or set node.services: false",
		)
	case len(s.Proxy) > 0:
		f.add(
			Problem,
			fmt.Sprintf(
				"kube-proxy has left what still leads Services' connections, to endpoints of then: %s",
				strings.Join(s.Proxy, ", "),
			),
			"`kube-proxy --cleanup` on the node, or a reboot",
		)
	}
	if s.Err != nil {
		f.add(Warning, "whether kube-proxy has left anything is not known: "+s.Err.Error(), "run this as root")
	}
	return f.orOK("Kuryr realises Services, and kube-proxy has left nothing")
}
