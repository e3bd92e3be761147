//go:build linux

package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// Volume is a folder of the host that a network's image gets at a mount point that it declares.
type Volume struct {
	Network  string // "": every network
	Point    string // mount point in the container
	Host     string
	ReadOnly bool
}

// ParseVolume reads "[NETWORK:]POINT=HOST[:ro]".
func ParseVolume(text string) (Volume, error) {
	inside, host, found := strings.Cut(text, "=")
	var v Volume
	v.Host, v.ReadOnly = strings.CutSuffix(host, ":ro")
	v.Point = inside
	if !path.IsAbs(inside) {
		v.Network, v.Point, _ = strings.Cut(inside, ":")
	}
	for _, p := range []string{v.Point, v.Host} {
		if !found || !path.IsAbs(p) || path.Clean(p) != p {
			return Volume{}, fmt.Errorf("%q: want [NETWORK:]CONTAINER=HOST[:ro] with whole paths", text)
		}
	}
	return v, nil
}

// kuryrVolumes are what the image kuryr-netplugin needs of the host. They lead to Kuryr's
// sockets and credentials, so no image gets them because it declares them.
var kuryrVolumes = []Volume{
	{Point: "/run/kuryr", Host: "/run/kuryr"},
	{Point: "/etc/kuryr", Host: "/etc/kuryr", ReadOnly: true},
	{Point: "/run/openvswitch", Host: "/run/openvswitch"},
}

// Installed is the folder of Kuryr's own images.
const Installed = "/usr/share/kuryr"

// kuryrImages are the files of that image where it is installed. Only root can write there, so a
// network whose image was read from one needs no grant.
var kuryrImages = []string{Installed + "/kuryr-netplugin.aci", Installed + "/kuryr-netplugin.tar"}

// at finds the volume of a mount point that is granted to this network by name; "" is all.
func at(list []Volume, network, point string) *Volume {
	i := slices.IndexFunc(list, func(v Volume) bool { return v.Point == point && v.Network == network })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// granted is the volume of a network's image at the mount point, nil without one.
func (p *Pod) granted(network string, img Image, point string) *Volume {
	if v := cmp.Or(at(p.cfg.Volumes, network, point), at(p.cfg.Volumes, "", point)); v != nil {
		return v
	}
	if slices.Contains(kuryrImages, img.Installed) {
		return at(kuryrVolumes, "", point)
	}
	return nil
}

// checkGrants returns an error with the missing grants if the image declares mount points of
// Kuryr's own that the network is not granted.
func (p *Pod) checkGrants(network string, img Image) error {
	var missing []string
	for _, point := range img.Mounts {
		point = path.Clean(point)
		if v := at(kuryrVolumes, "", point); v != nil && p.granted(network, img, point) == nil {
			want := network + ":" + v.Point + "=" + v.Host
			if v.ReadOnly {
				want += ":ro"
			}
			missing = append(missing, want)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("kurma.volumes does not grant network %s the mount points of its image: want %s",
		network, strings.Join(missing, ", "))
}

// source is the folder that is mounted at the mount point, and whether it is read only.
func (p *Pod) source(network string, img Image, point string) (folder, access string, err error) {
	if v := p.granted(network, img, point); v != nil {
		_, err := os.Stat(v.Host)
		if err == nil && v.ReadOnly {
			return v.Host, "ro", nil
		}
		if err == nil {
			return v.Host, "rw", nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", "", fmt.Errorf("kurma.volumes: %s: %w", point, err)
		}
		p.log.Warn("volume missing on the host, using a private folder",
			"network", network, "mount_point", point, "folder", v.Host)
	}
	folder = p.volume(network, point)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", "", fmt.Errorf("volume %s: %w", point, err)
	}
	return folder, "rw", nil
}
