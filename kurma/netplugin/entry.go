package netplugin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
)

// Entry is what an entry of pod_networks says to this plugin. What Kurma itself reads of it is passed over, and anything else refused.
type Entry struct {
	Name string `json:"name"`
	// Network is the SDN's network, by name or id; "" is the one of the entry's own name.
	Network string `json:"network"`
	// Addresses are fixed: the pod gets these, each of one of the network's subnets. So an entry that has them serves one pod at a time.
	Addresses []string `json:"addresses"`
	MAC       string   `json:"mac"`
	// SecurityGroups, by name or id; nil is the project's default group, an empty list none.
	SecurityGroups *[]string `json:"securityGroups"`

	ACI                json.RawMessage `json:"aci"`
	Default            json.RawMessage `json:"default"`
	ContainerInterface json.RawMessage `json:"containerInterface"`
}

// ParseEntry reads an entry. The error, which IsInvalid, names what is wrong with it.
func ParseEntry(data []byte) (Entry, error) {
	var e Entry
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return e, sdn.Invalid("network", "entry", "%v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return e, sdn.Invalid("network", "entry", "something follows the JSON object")
	}
	e.Network = cmp.Or(e.Network, e.Name)
	if e.Network == "" {
		return e, sdn.Invalid("network", "network", "the entry has neither this nor a name")
	}
	if _, err := e.addresses(); err != nil {
		return e, err
	}
	_, err := e.mac()
	return e, err
}

func (e Entry) addresses() ([]sdn.Address, error) {
	var all []sdn.Address
	for i, text := range e.Addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, sdn.Invalid("port", fmt.Sprintf("addresses[%d]", i), "%q is no IP address", text)
		}
		all = append(all, sdn.Address{Addr: addr})
	}
	return all, nil
}

func (e Entry) mac() (net.HardwareAddr, error) {
	if e.MAC == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(e.MAC)
	if err != nil || len(mac) != 6 {
		return nil, sdn.Invalid("port", "mac", "%q is no MAC address", e.MAC)
	}
	return mac, nil
}
