package doctor

// Feature is something that the data path needs of the kernel.
type Feature struct {
	Name   string // "veth pairs"
	Err    error  // nil: the kernel has it
	Option string // the kernel's option that gives it: CONFIG_VETH
	Module string // and its module
	Only   string // what does not work without it, where the rest does; "" where nothing does
}

// KernelFacts are what the kernel can do.
type KernelFacts struct {
	Features []Feature
	Untried  error // why none could be tried; nil: they were
	IPv6     bool
	SCTP     bool // connections of SCTP are tracked
	VLAN     bool // links of kind vlan can be made
}

// Kernel judges what the kernel can do.
func Kernel(k KernelFacts) []Finding {
	f := findings{check: "kernel"}
	if k.Untried != nil {
		f.add(Warning, "what the kernel can do was not tried: "+k.Untried.Error(), "run this as root")
		return f.list
	}
	for _, feature := range k.Features {
		if feature.Err == nil {
			continue
		}
		verdict, what := Problem, "the kernel has no "+feature.Name
		if feature.Only != "" {
			verdict, what = Warning, what+": "+feature.Only
		}
		f.add(verdict, what+" ("+feature.Err.Error()+")", "`modprobe "+feature.Module+"`, or a kernel with "+feature.Option)
	}
	if !k.IPv6 {
		f.add(Warning, "the kernel has no IPv6: networks have IPv4 only", "boot without ipv6.disable=1, if IPv6 is wanted")
	}
	f.list = f.orOK("it has all that the data path needs")
	if !k.SCTP {
		f.add(
			OK,
			"the kernel does not track SCTP: ports of SCTP cannot be published (`modprobe "+
				"nf_conntrack`, or a kernel with CONFIG_NF_CT_PROTO_SCTP)",
			"",
		)
	}
	if !k.VLAN {
		f.add(
			OK,
			"the kernel makes no VLAN links: the embedded SDN has no trunks (`modprobe 8021q`, or a "+
				"kernel with CONFIG_VLAN_8021Q)",
			"",
		)
	}
	return f.list
}
