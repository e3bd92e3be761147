//go:build linux

package bind

import (
	"bytes"
	"encoding/binary"
	"net"

	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

const (
	extFilterVF   = 1         // RTEXT_FILTER_VF of linux/rtnetlink.h
	functionsRoom = 128 << 10 // bytes of what the kernel says of a card with the most virtual functions, 256
)

// isOthers reports whether the card has another MAC for a virtual function than the port's:
// Plug has told it another port's since. Where the card does not say, or may have been
// told by the function itself, it is the port's.
func (fn function) isOthers(s *socket, port sdn.Port) (bool, error) {
	if fn.physical == "" || trusted(port) {
		return false, nil
	}
	index, err := s.index(fn.physical)
	if err != nil {
		return false, err
	}
	answer, err := s.askFor(fn.asked(index), functionsRoom)
	if err != nil {
		return false, err
	}
	mac := functionMAC(answer, fn.number)
	return mac != nil && !bytes.Equal(mac, port.MAC), nil
}

// trusted reports whether a port's function may change its MAC itself, of which some
// drivers tell as if it had been set.
func trusted(port sdn.Port) bool { return sdn.ProfileText(port.Profile[sdn.ProfileTrusted]) == "true" }

// asked reads the card's interface with its virtual functions.
func (fn function) asked(index int32) *batch {
	var b batch
	b.add("read virtual functions of "+fn.physical, unix.RTM_GETLINK, 0, ifInfo(unix.AF_UNSPEC, index, 0, 0))
	b.u32(unix.IFLA_EXT_MASK, extFilterVF|extFilterNoStats)
	return &b
}

// functionMAC is the MAC of a virtual function in what the kernel says of its card
// (struct ifla_vf_mac in linux/if_link.h), nil where it says none.
func functionMAC(answer []byte, number int) net.HardwareAddr {
	if len(answer) < sizeIfInfo {
		return nil
	}
	for rest := attrs(answer[sizeIfInfo:])[unix.IFLA_VFINFO_LIST]; len(rest) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < unix.SizeofRtAttr || size > len(rest) {
			return nil
		}
		value := attrs(rest[unix.SizeofRtAttr:size])[unix.IFLA_VF_MAC]
		rest = rest[min((size+3)&^3, len(rest)):]
		if len(value) < 4+macLen || u32(value) != uint32(number) {
			continue
		}
		if mac := value[4 : 4+macLen]; !bytes.Equal(mac, make([]byte, macLen)) {
			return net.HardwareAddr(bytes.Clone(mac))
		}
		return nil // the card was told none
	}
	return nil
}

// macLen is ETH_ALEN of linux/if_ether.h.
const macLen = 6
