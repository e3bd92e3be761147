package netplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/bind/cniresult"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/kuryr/kuryr/sdn"
)

// kindPort is the kind of the Keys of pods' ports. Their names are POD/INTERFACE.
const kindPort = "kurma-port"

// undoLimit bounds taking back what a failed Add has made.
const undoLimit = 10 * time.Second

// Binder plugs ports: bind.Waiting.
type Binder interface {
	Plug(ctx context.Context, i bind.Interface) (bind.Result, error)
	Unplug(ctx context.Context, port sdn.Port) error
}

// Config is what a Plugin needs.
type Config struct {
	Provider sdn.Provider
	Binder   Binder
	Host     string       // this machine's name in the SDN
	Logger   *slog.Logger // nil: slog.Default
}

// Plugin attaches pods to the networks of an SDN. Its methods may be called at once from many goroutines.
type Plugin struct {
	sdn    sdn.Provider
	binder Binder
	host   string
	log    *slog.Logger
	busy   keymutex.Mutex // by an Attachment's name
}

// New makes a Plugin.
func New(c Config) *Plugin {
	p := &Plugin{sdn: c.Provider, binder: c.Binder, host: c.Host, log: c.Logger}
	if p.log == nil {
		p.log = slog.Default()
	}
	return p
}

// Attachment is one interface of a pod, as the arguments of /opt/network/add and /opt/network/del name it.
type Attachment struct {
	Namespace string // path of the pod's network namespace
	Pod       string // its UUID
	Interface string
}

func (a Attachment) name() string { return a.Pod + "/" + a.Interface }

func (a Attachment) validate() error {
	switch {
	case a.Pod == "":
		return sdn.Invalid("pod", "uuid", "is empty")
	case a.Namespace == "":
		return sdn.Invalid("pod", "namespace", "is empty")
	case a.Interface == "":
		return sdn.Invalid("network", "containerInterface", "a port of the SDN needs an interface in the pod: say what it is called")
	}
	return nil
}

// Add gives the pod a port of the entry's network and plugs it. Repeated it answers the same; what a killed Add has made is finished, what a failed one has made is taken back.
//
// Errors: IsInvalid, naming the field, for an entry that makes no port; IsNotFound for a network or security group that is not there; IsConflict for an address in use; those of
// EnsurePorts and of bind.
func (p *Plugin) Add(ctx context.Context, e Entry, a Attachment) (*types100.Result, error) {
	if err := a.validate(); err != nil {
		return nil, err
	}
	unlock, err := p.busy.Lock(ctx, a.name())
	if err != nil {
		return nil, err
	}
	defer unlock()
	spec, err := p.spec(ctx, e, a)
	if err != nil {
		return nil, err
	}
	ports, err := p.sdn.EnsurePorts(ctx, []sdn.PortSpec{spec})
	if err != nil {
		return nil, err
	}
	failpoint.Here("kurma.netplugin.port")
	r, err := p.plug(ctx, ports[0], spec, a)
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		return nil, errors.Join(err, p.remove(undo, ports[0]))
	}
	failpoint.Here("kurma.netplugin.plugged")
	p.log.Info("pod attached", "pod", a.Pod, "interface", a.Interface, "network", ports[0].Network, "port", ports[0].ID)
	return r, nil
}

// spec is the port that the entry asks for.
func (p *Plugin) spec(ctx context.Context, e Entry, a Attachment) (sdn.PortSpec, error) {
	network, err := sdn.NetworkByName(ctx, p.sdn, "network", e.Network)
	if err != nil {
		return sdn.PortSpec{}, err
	}
	spec := sdn.PortSpec{
		Base: sdn.Base{Key: p.key(a), Name: a.Pod}, Network: network.ID, DeviceID: "kurma/" + a.name(), DeviceOwner: sdn.OwnerContainer,
	}
	if p.sdn.Capabilities().HostBinding {
		spec.Host = p.host
	}
	if spec.Addresses, err = e.addresses(); err != nil {
		return spec, err
	}
	if spec.MAC, err = e.mac(); err != nil {
		return spec, err
	}
	if e.SecurityGroups == nil {
		return spec, nil
	}
	spec.WithoutGroups = len(*e.SecurityGroups) == 0
	for i, text := range *e.SecurityGroups {
		group, err := sdn.SecurityGroupByName(ctx, p.sdn, fmt.Sprintf("securityGroups[%d]", i), text)
		if err != nil {
			return spec, err
		}
		spec.Groups = append(spec.Groups, group.ID)
	}
	return spec, nil
}

func (p *Plugin) key(a Attachment) sdn.Key {
	return sdn.Key{Owner: p.sdn.Installation(), Kind: kindPort, Name: a.name()}
}

// plug makes the port the pod's interface.
func (p *Plugin) plug(ctx context.Context, port sdn.Port, spec sdn.PortSpec, a Attachment) (*types100.Result, error) {
	if port.Network != spec.Network {
		return nil, sdn.Conflict(sdn.Immutable, "port "+string(port.ID), "network", "interface %s of pod %s is on network %s already", a.Interface, a.Pod, port.Network)
	}
	network, err := p.sdn.Network(ctx, port.Network)
	if err != nil {
		return nil, err
	}
	subnets, err := sdn.All(p.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{port.Network}}))
	if err != nil {
		return nil, err
	}
	done, err := p.binder.Plug(ctx, bind.Interface{
		Port: port, MTU: network.MTU, Subnets: subnets, Namespace: a.Namespace, Name: a.Interface,
	})
	if err != nil {
		return nil, err
	}
	plugged := cniresult.Plugged{
		Port: port, MTU: network.MTU, Subnets: subnets, Name: a.Interface, Namespace: a.Namespace,
		KeptRoutes: done.KeptRoutes,
	}
	if port.VIF.Details[sdn.DetailNamespace] == "" {
		plugged.Host = bind.HostName(port.ID)
	}
	return plugged.Result(), nil
}

// Del takes the pod's port away, its interface first. What is not there is no error, so it can be repeated.
func (p *Plugin) Del(ctx context.Context, a Attachment) error {
	if a.Interface == "" || a.Pod == "" {
		return nil // Add refuses such: nothing is there
	}
	unlock, err := p.busy.Lock(ctx, a.name())
	if err != nil {
		return err
	}
	defer unlock()
	port, there, err := sdn.First(p.sdn.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{Keys: []sdn.Key{p.key(a)}}}))
	if err != nil || !there {
		return err
	}
	if err := p.remove(ctx, port); err != nil {
		return err
	}
	p.log.Info("pod detached", "pod", a.Pod, "interface", a.Interface, "port", port.ID)
	return nil
}

func (p *Plugin) remove(ctx context.Context, port sdn.Port) error {
	if err := p.binder.Unplug(ctx, port); err != nil {
		return err
	}
	failpoint.Here("kurma.netplugin.unplugged")
	return p.sdn.DeletePorts(ctx, []sdn.ID{port.ID})
}
