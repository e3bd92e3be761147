//go:build linux

// Package plugin is one run of the executable kuryr-cni-api, which kuryr-cni becomes for what it cannot ferry to the node's daemon: it reads what the container runtime asks, has it done,
// and writes the answer.
//
// It owns the order of the ways: the node's daemon; where that does not run, what CNI_ARGS says by itself; and then the Kubernetes API. It must not import Kubernetes' libraries, nor
// speak TLS itself: that way it is given.
package plugin

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os/signal"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/kube/cni/static"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// How long the daemon may take for an answer, and how long what is done without it.
const (
	askLimit   = 90 * time.Second
	aloneLimit = 30 * time.Second
)

// Plugin is the executable's surroundings.
type Plugin struct {
	Getenv func(string) string
	Stdin  io.Reader
	Stdout io.Writer
	// Lost says that the daemon was asked by the ferry and has not answered. Only a DEL goes on then, which may be done twice; for all else the runtime has to ask again.
	Lost bool
	// API is the third way, by a Kubernetes API: ADD binds what that tells, and STATUS asks
	// whether it would. Its error is cni.ErrNoAPI where nothing names one. nil: there is
	// none.
	API func(ctx context.Context, c cni.Call, conf cni.Config, folder *static.Bindings) ([]byte, error)
}

// Run does what is asked, writes the answer, and gives the exit status.
func (p Plugin) Run(ctx context.Context) int {
	conf := cni.Config{CNIVersion: cni.DefaultVersion}
	out, err := p.run(ctx, &conf)
	if err == nil {
		if _, err = p.Stdout.Write(out); err == nil {
			return 0
		}
		err = cni.IOFailure.Errorf("standard output: %v", err)
	}
	e := cni.AsError(err)
	_, _ = p.Stdout.Write(cni.EncodeError(e, conf.CNIVersion)) // the exit status says it too
	return cni.KindOf(e.Code).Exit
}

func (p Plugin) run(ctx context.Context, conf *cni.Config) ([]byte, error) {
	c, err := cni.ReadCall(p.Getenv, p.Stdin)
	if err != nil {
		return nil, err
	}
	if c.Verb == cni.Version {
		return versions(c.Config)
	}
	read, err := cni.ParseConfig(c.Verb, c.Config)
	if read.CNIVersion != "" {
		conf.CNIVersion = read.CNIVersion
	}
	if err != nil {
		return nil, err
	}
	if p.Lost && c.Verb != cni.Del {
		return nil, cni.TryAgain.Errorf("the daemon at %s has ended before it answered, or takes too long", cni.DefaultSocket)
	}
	out, err := cni.Ask(cmp.Or(read.Socket, cni.DefaultSocket), c, askLimit)
	switch {
	case errors.Is(err, cni.ErrNoDaemon):
		return p.alone(ctx, c, read)
	case c.Verb == cni.Del && isCode(err, cni.TryAgain, cni.TimedOut): // it was killed in the midst
		return nil, p.queue(ctx, c, read)
	}
	return out, err
}

// versions answers VERSION in the version that is asked for, or without one in the newest.
func versions(config []byte) ([]byte, error) {
	asked := version.Current()
	if conf, _ := cni.ParseConfig(cni.Version, config); slices.Contains(cni.Versions, conf.CNIVersion) { // it has no name
		asked = conf.CNIVersion
	}
	return cni.EncodeVersions(asked), nil
}

// leaving deletes the links of what it unplugs before it returns. The daemon deletes them
// later, but this process ends.
type leaving struct{ bind.Waiting }

// Plug plugs an interface, and leaves nothing if it fails.
func (l leaving) Plug(ctx context.Context, i bind.Interface) (bind.Result, error) {
	r, err := l.Waiting.Plug(ctx, i)
	if err != nil {
		err = errors.Join(err, l.collect(ctx, i.Port, i.Namespace))
	}
	return r, err
}

// Unplug unplugs a port and deletes its links.
func (l leaving) Unplug(ctx context.Context, port sdn.Port) error {
	return errors.Join(l.Waiting.Unplug(ctx, port), l.collect(ctx, port, ""))
}

// collect deletes what was unplugged: a veth pair in the namespace of the port's host
// end, another link in the container's.
func (l leaving) collect(ctx context.Context, port sdn.Port, namespace string) error {
	return l.Collect(context.WithoutCancel(ctx), port.VIF.Details[sdn.DetailNamespace], namespace)
}

// alone does without the daemon what can be done.
func (p Plugin) alone(ctx context.Context, c cni.Call, conf cni.Config) ([]byte, error) {
	// Here alone: the threads that catch signals cost as much as asking the daemon, which need not hear of one.
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, aloneLimit)
	defer cancel()
	binder, err := bind.New(bind.Config{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = binder.Close() }()
	waiting := bind.Waiting{Binder: binder, Timeout: bind.DefaultTimeout}
	folder := static.In(cmp.Or(conf.State, cni.DefaultState), leaving{waiting})
	switch c.Verb {
	case cni.Add:
		args, err := cni.ParseArgs(c.Args)
		if err != nil {
			return nil, err
		}
		if !args.Given() {
			return p.api(ctx, c, conf, folder)
		}
		bound, err := folder.Bind(ctx, c, conf, args)
		if err != nil {
			return nil, err
		}
		return cni.Encode(bound.Plugged().Result(), conf.CNIVersion)
	case cni.Del:
		if there, err := folder.Unbind(ctx, c.Container, c.Interface); there || err != nil {
			return nil, err
		}
		return nil, p.queue(ctx, c, conf)
	case cni.Check:
		bound, there, err := folder.Find(c.Container, c.Interface)
		if err != nil || !there {
			return nil, errors.Join(err, noDaemon(conf))
		}
		if state, err := binder.State(ctx, bound.Port); err != nil || state != bind.Whole {
			return nil, errors.Join(err, cni.Differs.Errorf("the interface of port %s is %s", bound.Port.ID, state))
		}
		return nil, nil
	case cni.Status:
		out, err := p.api(ctx, c, conf, folder)
		if isCode(err, cni.TryAgain) {
			err = cni.NotReady.Errorf("%v", cni.AsError(err).Details)
		}
		return out, err
	}
	return nil, noDaemon(conf)
}

func (p Plugin) api(ctx context.Context, c cni.Call, conf cni.Config, folder *static.Bindings) ([]byte, error) {
	if p.API == nil {
		return nil, noDaemon(conf)
	}
	out, err := p.API(ctx, c, conf, folder)
	if errors.Is(err, cni.ErrNoAPI) {
		err = noDaemon(conf)
	}
	return out, err
}

func noDaemon(conf cni.Config) *types.Error {
	return cni.TryAgain.Errorf("%v: nobody answers at %s", cni.ErrNoDaemon, cmp.Or(conf.Socket, cni.DefaultSocket))
}

// queue stores a DEL for the daemon, which reads the pending DELs after it has begun to listen. A
// daemon that has begun before the record was stored is asked again. The interface is deleted now,
// because the container may live on.
func (p Plugin) queue(ctx context.Context, c cni.Call, conf cni.Config) error {
	pending, name := cni.PendingDELs(cmp.Or(conf.State, cni.DefaultState)), cni.RecordName(c.Container, c.Interface)
	if err := pending.Put(name, c); err != nil {
		return cni.IOFailure.Errorf("the daemon does not run, and that %s is to be taken away cannot be written down: %v", c.Container, err)
	}
	_, err := cni.Ask(cmp.Or(conf.Socket, cni.DefaultSocket), c, askLimit)
	if errors.Is(err, cni.ErrNoDaemon) || isCode(err, cni.TryAgain, cni.TimedOut) {
		return remove(ctx, c)
	}
	return errors.Join(err, pending.Delete(name))
}

// remove deletes the interface of a pending DEL. Only the daemon knows its port and switch.
func remove(ctx context.Context, c cni.Call) error {
	if c.Namespace == "" {
		return nil
	}
	binder, err := bind.New(bind.Config{})
	if err != nil {
		return err
	}
	return errors.Join(binder.Remove(ctx, c.Namespace, c.Interface), binder.Close())
}

func isCode(err error, kinds ...cni.Kind) bool {
	var e *types.Error
	if !errors.As(err, &e) {
		return false
	}
	for _, k := range kinds {
		if e.Code == k.Code {
			return true
		}
	}
	return false
}
