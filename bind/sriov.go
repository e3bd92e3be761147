//go:build linux

package bind

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// maxLinkAddr is MAX_ADDR_LEN of linux/netdevice.h: the room for an address in struct ifla_vf_mac.
const maxLinkAddr = 32

// isFunction reports whether a port is plugged as a function of a network card (SR-IOV),
// which its VNIC type says.
func isFunction(port sdn.Port) bool {
	return port.VNICType == sdn.VNICDirect || port.VNICType == sdn.VNICMacvtap || port.VNICType == sdn.VNICDirectPhysical
}

// functionDriver plugs ports by a function of a network card: the function's own
// interface is the container's, and its physical function is told, by netlink, what the
// virtual one may send. The interface is the machine's: it is configured and moved, never
// made or deleted.
type functionDriver struct {
	host *host
	sys  string
}

// function is a network card's function.
type function struct {
	slot     string
	physical string // the interface of the card that it is a virtual function of; "": it is physical itself
	number   int    // of the virtual function on the card
	driven   bool   // a driver has made an interface of it, in whatever namespace
	name     string // that interface in the calling thread's namespace, "" where it is elsewhere or none
}

// Plug tells the card, and gives the function's interface its MTU and MAC; with a
// namespace it is moved there and configured.
func (d *functionDriver) Plug(_ context.Context, i Interface) (r Result, err error) {
	conf, err := i.setup()
	if err != nil {
		return Result{}, err
	}
	vlan, err := functionVLAN(i.Port)
	if err != nil {
		return Result{}, err
	}
	far, err := d.host.openNamespace(i.Namespace)
	if err != nil {
		return Result{}, err
	}
	defer far.close()
	err = d.within(func(s *socket) error {
		fn, err := d.find(i.Port)
		if err != nil {
			return err
		}
		if err := fn.tell(s, i.Port, vlan); err != nil {
			return err
		}
		if i.Namespace == "" {
			i.Name = fn.name
		}
		r = Result{Name: i.Name, MAC: slices.Clone(i.Port.MAC), MTU: i.MTU, Namespace: i.Namespace}
		if fn.name == "" && i.Namespace == "" {
			return &sdn.Error{
				Kind: sdn.KindConflict, Reason: sdn.InUse, Noun: "interface", ID: fn.slot,
				Detail: "the interface of the PCI device is in another network namespace",
			}
		}
		if fn.name != "" {
			index, err := s.index(fn.name)
			if err != nil {
				return err
			}
			if err := s.do(fn.move(index, i, far.fd)); err != nil {
				return err
			}
		}
		if i.Namespace == "" {
			return nil
		}
		f, err := far.socket()
		if err != nil {
			return err
		}
		defer f.close()
		if r.KeptRoutes, err = configureContainer(f, i.Name, i.Port.MAC, i.MTU, conf, nil); err != nil {
			return fmt.Errorf("interface %s in %s: %w", i.Name, far, err)
		}
		return nil
	})
	return r, err
}

// Unplug takes the VLAN from the virtual function, and guards it again, unless another
// port has been plugged there since. Its interface comes back from the container by the
// engine or the kernel.
func (d *functionDriver) Unplug(_ context.Context, port sdn.Port) error {
	return d.within(func(s *socket) error {
		fn, err := d.find(port)
		if sdn.IsNotFound(err) {
			return nil
		}
		if err != nil || fn.physical == "" {
			return err
		}
		if others, err := fn.isOthers(s, port); err != nil || others {
			return err
		}
		port.NoPortSecurity, port.Profile = false, nil
		return fn.tell(s, port, 0)
	})
}

// Connected reports whether the function's interface has left the binder's namespace, and
// the card has the port's MAC for it: it may be another port's by now. A function without
// an interface, as that of a virtual machine, is no container's.
func (d *functionDriver) Connected(_ context.Context, port sdn.Port) (connected bool, err error) {
	err = d.within(func(s *socket) error {
		fn, err := d.find(port)
		if sdn.IsNotFound(err) {
			return nil
		}
		if err != nil || !fn.driven || fn.name != "" {
			return err
		}
		others, err := fn.isOthers(s, port)
		connected = err == nil && !others
		return err
	})
	return connected, err
}

func (d *functionDriver) within(do func(*socket) error) error {
	ns, err := d.host.openNamespace("")
	if err != nil {
		return err
	}
	defer ns.close()
	return ns.within(do)
}

var pciSlot = regexp.MustCompile(`^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$`)

// find reads the port's function from sysfs, which shows a thread the interfaces of its namespace.
func (d *functionDriver) find(port sdn.Port) (function, error) {
	fn := function{slot: sdn.ProfileText(port.Profile[sdn.ProfilePCISlot])}
	if !pciSlot.MatchString(fn.slot) {
		return fn, sdn.Invalid(
			"port", "profile."+sdn.ProfilePCISlot,
			"%q is no PCI address such as 0000:3b:02.1, which a port of VNIC type %q needs", fn.slot,
			port.VNICType,
		)
	}
	devices := filepath.Join(d.sys, "bus/pci/devices")
	device := filepath.Join(devices, fn.slot)
	if _, err := os.Stat(device); errors.Is(err, os.ErrNotExist) {
		return fn, &sdn.Error{
			Kind: sdn.KindNotFound, Noun: "PCI device", ID: fn.slot,
			Detail: "this machine has none at this address",
		}
	} else if err != nil {
		return fn, err
	}
	interfaces := filepath.Join(device, "net") // is there, and looks empty, while its interface is in another namespace
	fn.name = firstIn(interfaces)
	if _, err := os.Stat(interfaces); err == nil {
		fn.driven = true
	} else if !errors.Is(err, os.ErrNotExist) {
		return fn, err
	}
	if _, err := os.Stat(filepath.Join(device, "physfn")); errors.Is(err, os.ErrNotExist) &&
		port.VNICType == sdn.VNICDirectPhysical {
		return fn, nil
	} else if err != nil {
		return fn, sdn.Unsupported(
			"interface", "PCI device %s is no virtual function of a network card (SR-IOV): %v", fn.slot, err,
		)
	}
	if fn.physical = firstIn(filepath.Join(device, "physfn/net")); fn.physical == "" {
		return fn, sdn.Unsupported(
			"interface",
			"the network card of PCI device %s has no interface here: is the driver of its physical "+
				"function loaded?",
			fn.slot,
		)
	}
	siblings, err := filepath.Glob(filepath.Join(device, "physfn/virtfn*"))
	if err != nil {
		return fn, err
	}
	for _, sibling := range siblings {
		to, err := os.Readlink(sibling)
		if err != nil || !strings.EqualFold(filepath.Base(to), fn.slot) {
			continue
		}
		fn.number, err = strconv.Atoi(strings.TrimPrefix(filepath.Base(sibling), "virtfn"))
		return fn, err
	}
	return fn, sdn.Unsupported(
		"interface", "the network card of PCI device %s does not list it among its virtual functions",
		fn.slot,
	)
}

// firstIn is the first name in a folder, "" if there is none.
func firstIn(folder string) string {
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) == 0 {
		return ""
	}
	return entries[0].Name()
}

// functionVLAN is the VLAN that the card puts the port's frames into, 0 for none.
func functionVLAN(port sdn.Port) (int, error) {
	text := port.VIF.Details[sdn.DetailVLAN]
	if text == "" {
		return 0, nil
	}
	vlan, err := strconv.Atoi(text)
	if err != nil || vlan < 0 || vlan > 4094 {
		return 0, sdn.Invalid("port", "vif.details."+sdn.DetailVLAN, "%q is no VLAN from 0 to 4094", text)
	}
	return vlan, nil
}

// tell tells the card of a virtual function. What cards need not have is left out where
// it is the default anyway.
func (fn function) tell(s *socket, port sdn.Port, vlan int) error {
	if fn.physical == "" {
		return nil
	}
	index, err := s.index(fn.physical)
	if err != nil {
		return err
	}
	if err := s.do(fn.addressed(index, port, vlan)); err != nil {
		return fn.missing(err, "MAC and VLAN")
	}
	trusted := trusted(port)
	if err := s.do(fn.setting(index, unix.IFLA_VF_SPOOFCHK, !port.NoPortSecurity)); err != nil &&
		(port.NoPortSecurity || !errors.Is(err, unix.EOPNOTSUPP)) {
		return fn.missing(err, "spoof check")
	}
	if err := s.do(fn.setting(index, unix.IFLA_VF_TRUST, trusted)); err != nil &&
		(trusted || !errors.Is(err, unix.EOPNOTSUPP)) {
		return fn.missing(err, "trust")
	}
	return nil
}

// addressed gives a virtual function its MAC and VLAN.
func (fn function) addressed(index int32, port sdn.Port, vlan int) *batch {
	mac := binary.NativeEndian.AppendUint32(nil, uint32(fn.number)) // struct ifla_vf_mac
	mac = append(mac, append(slices.Clone(port.MAC), make([]byte, maxLinkAddr-len(port.MAC))...)...)
	tag := binary.NativeEndian.AppendUint32(nil, uint32(fn.number)) // struct ifla_vf_vlan
	tag = binary.NativeEndian.AppendUint32(tag, uint32(vlan))
	tag = binary.NativeEndian.AppendUint32(tag, 0)
	return fn.settings(index, func(b *batch) {
		b.attr(unix.IFLA_VF_MAC, mac)
		b.attr(unix.IFLA_VF_VLAN, tag)
	})
}

// setting switches something of a virtual function on or off (struct ifla_vf_spoofchk and
// its like).
func (fn function) setting(index int32, kind uint16, on bool) *batch {
	value := binary.NativeEndian.AppendUint32(nil, uint32(fn.number))
	state := uint32(0)
	if on {
		state = 1
	}
	return fn.settings(index, func(b *batch) { b.attr(kind, binary.NativeEndian.AppendUint32(value, state)) })
}

func (fn function) settings(index int32, fill func(*batch)) *batch {
	var b batch
	b.add(
		fmt.Sprintf("set virtual function %d of %s", fn.number, fn.physical), unix.RTM_SETLINK, 0,
		ifInfo(unix.AF_UNSPEC, index, 0, 0),
	)
	b.nest(unix.IFLA_VFINFO_LIST, func() {
		b.nest(unix.IFLA_VF_INFO, func() { fill(&b) })
	})
	return &b
}

// move gives the function's interface its MAC and MTU, and with a namespace puts it there
// under the name that is asked for.
func (fn function) move(index int32, i Interface, ns int) *batch {
	var b batch
	b.add("configure "+fn.name, unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, index, 0, unix.IFF_UP))
	b.attr(unix.IFLA_ADDRESS, i.Port.MAC)
	if i.MTU > 0 {
		b.u32(unix.IFLA_MTU, uint32(i.MTU))
	}
	if i.Namespace != "" {
		b.u32(unix.IFLA_NET_NS_FD, uint32(ns))
		b.text(unix.IFLA_IFNAME, i.Name)
	}
	return &b
}

func (fn function) missing(err error, what string) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return sdn.Unsupported(
			"interface", "the driver of network card %s cannot set the %s of virtual functions (%v)",
			fn.physical, what, err,
		)
	}
	return err
}
