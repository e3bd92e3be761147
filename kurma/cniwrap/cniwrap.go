//go:build linux

// Package cniwrap is what the plugin image cni-netplugin does: it runs CNI plugins for Kurma.
//
// An entry of pod_networks is a configuration of CNI's, of one plugin or, with "plugins", of a chain. The package owns that translation; the plugins themselves, and what they leave behind,
// are CNI's. It must not know how Kurma runs containers.
package cniwrap

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// The defaults of a Wrap: where the image has its plugins, and what it keeps between calls, which must outlive the container.
const (
	DefaultPath  = "/usr/lib/cni"
	DefaultCache = "/var/lib/cni/cache"
)

// kurmas are the keys of an entry that are Kurma's alone. Plugins that are strict would refuse them.
var kurmas = []string{"aci", "default", "containerInterface"}

// Attachment is one interface of a pod, as the arguments of /opt/network/add and /opt/network/del name it.
type Attachment struct {
	Namespace string // path of the pod's network namespace
	Pod       string // its UUID, which is CNI's container id
	Interface string // "" where the network has none of its own, as with type loopback
}

// Wrap runs CNI plugins. Its methods may be called at once from many processes: libcni and the plugins lock their own state.
type Wrap struct {
	cni *libcni.CNIConfig
}

// New makes a Wrap of the plugins in a folder, with a folder for what is kept between calls.
func New(path, cache string) Wrap {
	return Wrap{libcni.NewCNIConfigWithCacheDir([]string{cmp.Or(path, DefaultPath)}, cmp.Or(cache, DefaultCache), nil)}
}

// Parse reads an entry. The error is CNI's own, and says what is wrong with it.
func Parse(entry []byte) (*libcni.NetworkConfigList, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(entry, &fields); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the entry is no JSON object", err.Error())
	}
	for _, key := range kurmas {
		delete(fields, key)
	}
	if _, chain := fields["plugins"]; !chain {
		if _, typed := fields["type"]; !typed {
			return nil, types.NewError(types.ErrInvalidNetworkConfig, `the entry has neither "type", the CNI plugin, nor "plugins", a chain of them`, "")
		}
		list := map[string]json.RawMessage{}
		for _, key := range []string{"name", "cniVersion"} {
			if value, there := fields[key]; there {
				list[key] = value
				delete(fields, key)
			}
		}
		one, err := json.Marshal(fields)
		if err != nil {
			return nil, err
		}
		list["plugins"] = json.RawMessage(fmt.Appendf(nil, "[%s]", one))
		fields = list
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	return list, nil
}

// Check tells whether all plugins of the list are there and speak its version.
func (w Wrap) Check(ctx context.Context, list *libcni.NetworkConfigList) error {
	_, err := w.cni.ValidateNetworkList(ctx, list)
	return err
}

// Add runs the list's plugins for a pod. What a chain that failed in the middle has made is taken away again.
func (w Wrap) Add(ctx context.Context, list *libcni.NetworkConfigList, a Attachment) (types.Result, error) {
	result, err := w.cni.AddNetworkList(ctx, list, conf(a))
	if err != nil {
		return nil, errors.Join(err, w.Del(ctx, list, a))
	}
	return result, nil
}

// Del runs them to take the pod's interface away. Repeated it succeeds.
func (w Wrap) Del(ctx context.Context, list *libcni.NetworkConfigList, a Attachment) error {
	return w.cni.DelNetworkList(ctx, list, conf(a))
}

func conf(a Attachment) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: a.Pod, NetNS: a.Namespace, IfName: cmp.Or(a.Interface, "lo")}
}
