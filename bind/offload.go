//go:build linux

package bind

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sumsOff makes the kernel complete the checksums of what is sent by way of a link of the
// socket's namespace. A veth pair leaves them to the one that takes the frame off the other
// end; a switch in user space does not see to them, and TCP and UDP would not pass. The
// setting goes along when the link is moved to another namespace.
func sumsOff(s *socket, name string) error {
	_, err := ethtool(s, name, unix.ETHTOOL_STXCSUM, 0)
	return err
}

// ethtool does one of ethtool's ioctls that take, or give, one value. x/sys has no call
// for them, and the netlink form needs Linux 5.6.
func ethtool(s *socket, name string, command, data uint32) (uint32, error) {
	value := struct{ command, data uint32 }{command, data} // struct ethtool_value of linux/ethtool.h
	request := struct {                                    // struct ifreq of linux/if.h
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [24 - unsafe.Sizeof(uintptr(0))]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	if _, _, errno := unix.Syscall(
		unix.SYS_IOCTL, uintptr(s.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)),
	); errno != 0 {
		return 0, errno
	}
	return value.data, nil
}
