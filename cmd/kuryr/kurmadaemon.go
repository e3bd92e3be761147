//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/internal/logging"
	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/rootsock"
	kurmaapi "github.com/kuryr/kuryr/kurma/api"
	"github.com/kuryr/kuryr/kurma/image"
	"github.com/kuryr/kuryr/kurma/plugin"
	"github.com/kuryr/kuryr/kurma/pod"
	"github.com/kuryr/kuryr/kurma/podnet"
	"github.com/spf13/cobra"
)

// kurmaDaemon runs `kuryr kurma` until the context ends. The plugins' containers run on: the next daemon takes them over.
func (a *app) kurmaDaemon(c *cobra.Command) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s runs containers and enters network namespaces: run it as root", c.CommandPath())
	}
	if err := setHome(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	cfg, err := a.load(c)
	if err != nil {
		return err
	}
	log, err := logging.New(a.err, cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return err
	}
	// A SIGHUP that comes before it can be heeded must not end the process.
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	networks, err := podnet.Load(cfg.Kurma.Config)
	if err != nil {
		return err
	}
	grants, err := pod.ParseGrants(cfg.Kurma.Grants)
	if err != nil {
		return fmt.Errorf("kurma.grants: %w", err)
	}
	volumes, err := volumesOf(cfg.Kurma.Volumes)
	if err != nil {
		return err
	}
	k := &kurma{log: log}
	namespaces, err := netns.Open(kurmaDir(cfg.RunDir, "netns"))
	if err != nil {
		return err
	}
	if k.images, err = image.Open(kurmaDir(cfg.StateDir, "images"), image.Config{Insecure: cfg.Kurma.Insecure, Log: log, Installed: plugin.Installed}); err != nil {
		return err
	}
	defer closing(&err, k.images.Close)
	registry := metrics.New(version)
	path := kurmaDir(cfg.StateDir, "kurma.db")
	if err := pod.Upgrade(path); err != nil {
		return err
	}
	store, err := reconcile.Open(reconcile.Config{
		Path: path, MaxBackoff: time.Minute, Logger: log, Registerer: registry,
	})
	if err != nil {
		return err
	}
	defer closing(&err, store.Close)
	k.plugins, err = plugin.New(plugin.Config{
		Runtime: cfg.Kurma.Runtime, State: kurmaDir(cfg.StateDir, "networks"), Run: kurmaDir(cfg.RunDir, "pod"), NetNS: kurmaDir(cfg.RunDir, "netns"),
		Volumes: volumes, Images: pluginImages{k}, Log: log, Metrics: registry, Store: store,
		Ran: func(plugin.Ref) { k.ran() }, Gone: func(plugin.Ref) { k.collect() },
	})
	if err != nil {
		return err
	}
	defer closing(&err, k.plugins.Close)
	k.pods = pod.New(pod.Config{
		Store: store, Namespaces: namespaces, Plugins: podPlugins{k.plugins},
		Grants: grants, Logger: log, Registerer: registry,
	})
	defer k.pods.Close()
	if err := k.pods.Import(ctx, path); err != nil {
		return err
	}
	if err := k.apply(ctx, networks); err != nil { // so that networks start before pods need them
		return err
	}
	if err := store.Start(ctx); err != nil {
		return err
	}
	k.pods.Start(ctx)
	listener, err := rootsock.Listen(cfg.Kurma.Socket)
	if err != nil {
		return err
	}
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel() // before the wait
	work.Go(func() { store.Run(ctx) })
	work.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-reload:
				if err := a.reloadKurma(ctx, c, k); err != nil {
					log.Error("the configuration has not been read again; the networks are as before", "error", err)
				}
			}
		}
	})
	context.AfterFunc(ctx, func() { _ = notify(notifyStopping) })
	log.Info("serving pods' networks", "socket", cfg.Kurma.Socket, "networks", len(networks))
	if err := notify(notifyReady); err != nil {
		log.Warn("the service manager has not been told", "error", err)
	}
	return kurmaapi.Serve(ctx, listener, kurmaapi.Handler(kurmaapi.Config{
		Pods: k.pods, Networks: k.networks, Images: apiImages{k}, Metrics: metrics.Handler(registry), Unready: k.unready, Logger: log,
	}))
}

// setHome sets HOME, which systemd does not do for a service of root. Credentials of registries,
// and the programs that keep them, are found by it.
func setHome() error {
	if os.Getenv("HOME") != "" {
		return nil
	}
	u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return fmt.Errorf("set HOME: %w", err)
	}
	return os.Setenv("HOME", u.HomeDir)
}

// kurmaDir is where `kuryr kurma` keeps things.
func kurmaDir(dir, name string) string { return filepath.Join(dir, "kurma", name) }

// closing ends a part, and keeps the first error.
func closing(err *error, end func() error) {
	if failed := end(); *err == nil {
		*err = failed
	}
}

// volumesOf reads kurma.volumes.
func volumesOf(list []string) (all []plugin.Volume, err error) {
	for _, text := range list {
		v, err := plugin.ParseVolume(text)
		if err != nil {
			return nil, fmt.Errorf("kurma.volumes: %w", err)
		}
		all = append(all, v)
	}
	return all, nil
}

// reloadKurma reads the configuration again: networks, and who may have them. All else needs a restart.
func (a *app) reloadKurma(ctx context.Context, c *cobra.Command, k *kurma) error {
	cfg, err := a.load(c)
	if err != nil {
		return err
	}
	networks, err := podnet.Load(cfg.Kurma.Config)
	if err != nil {
		return err
	}
	grants, err := pod.ParseGrants(cfg.Kurma.Grants)
	if err != nil {
		return fmt.Errorf("kurma.grants: %w", err)
	}
	k.pods.SetGrants(grants)
	if err := k.apply(ctx, networks); err != nil {
		return err
	}
	k.log.Info("the configuration has been read again", "networks", len(networks))
	return nil
}

// kurma is what `kuryr kurma` is made of.
type kurma struct {
	log     *slog.Logger
	images  *image.Store
	plugins *plugin.Pod
	pods    *pod.Manager

	fetching sync.RWMutex // held for reading while a user fetches an image, which no collection may take away
}

// apply has these networks run, and removes the images that none needs any more.
func (k *kurma) apply(ctx context.Context, networks []podnet.Network) error {
	err := k.plugins.Apply(ctx, networks, func(r plugin.Ref) bool { return k.pods.InUse(pod.Ref{Name: r.Name, Generation: r.Generation}) })
	if err != nil {
		return err
	}
	k.collect()
	return nil
}

// collect removes the images that no network needs.
func (k *kurma) collect() {
	var references []string
	var ids []image.ID
	for _, s := range k.plugins.Status() {
		references = append(references, s.Image)
		if s.ImageID != "" {
			ids = append(ids, image.ID(s.ImageID))
		}
	}
	k.fetching.Lock()
	defer k.fetching.Unlock()
	removed, err := k.images.Collect(ids, references)
	if err != nil {
		k.log.Warn("images that nobody needs are left", "error", err)
	}
	for _, id := range removed {
		k.log.Info("removed an image that no network needs", "image", id.Short())
	}
}

// ran repeats the removal of pods that failed: a network that could not be called before may be
// available now.
func (k *kurma) ran() {
	if k.pods != nil {
		k.pods.Retry()
	}
}

func (k *kurma) networks() []kurmaapi.Network {
	out := []kurmaapi.Network{}
	entries := map[plugin.Ref]podnet.Network{}
	for _, c := range k.plugins.Current() {
		entries[c.Ref] = c.Network
	}
	for _, s := range k.plugins.Status() {
		n := entries[s.Ref]
		out = append(out, kurmaapi.Network{
			Name: s.Name, Image: s.Image, Default: s.Default && s.Current, Interface: n.Interface, State: string(s.State), Reason: s.Reason, Generation: s.Generation,
			Since: s.Since, Restart: s.Retry, ImageID: s.ImageID, PID: s.PID, Pods: k.pods.Attached(pod.Ref{Name: s.Name, Generation: s.Generation}),
			Output: s.Output, Config: n.Raw,
		})
	}
	return out
}

func (k *kurma) unready() (reasons []string) {
	for _, s := range k.plugins.Status() {
		if s.Current && s.State != plugin.Running {
			reason := "network " + s.Name + " is " + string(s.State)
			if s.Reason != "" {
				reason += ": " + s.Reason
			}
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

// podPlugins are the networks as pods see them.
type podPlugins struct{ *plugin.Pod }

func (p podPlugins) Networks() []pod.Network {
	var out []pod.Network
	for _, c := range p.Current() {
		out = append(out, pod.Network{Ref: pod.Ref(c.Ref), Default: c.Network.Default, InterfaceName: func(v pod.Vars) (string, error) {
			id, err := uuid.Parse(v.Pod)
			if err != nil {
				return "", fmt.Errorf("pod %q: %w", v.Pod, err)
			}
			return c.Network.InterfaceName(podnet.Vars{Pod: id, Num: v.Num, Taken: v.Taken})
		}})
	}
	return out
}

func (p podPlugins) Add(ctx context.Context, on pod.Ref, c pod.Call) (*plugin.Result, error) {
	return p.Pod.Add(ctx, plugin.Ref(on), plugin.Call(c))
}

func (p podPlugins) Del(ctx context.Context, on pod.Ref, c pod.Call) error {
	return p.Pod.Del(ctx, plugin.Ref(on), plugin.Call(c))
}

func (p podPlugins) Release(on pod.Ref) { p.Pod.Release(plugin.Ref(on)) }

// pluginImages are images as plugins' containers are made of.
type pluginImages struct{ *kurma }

func (i pluginImages) Get(ctx context.Context, ref string) (plugin.Image, error) {
	var last image.Stage
	img, err := i.images.Get(ctx, ref, func(p image.Progress) {
		if p.Stage != last {
			last = p.Stage
			i.log.Info("image", "reference", ref, "stage", p.Stage)
		}
	})
	if err != nil {
		return plugin.Image{}, err
	}
	out := plugin.Image{
		ID: string(img.ID), Rootfs: img.Rootfs, Exec: img.Exec, Env: img.Env, Dir: img.Dir, Installed: img.Installed,
	}
	for _, m := range img.Mounts {
		out.Mounts = append(out.Mounts, m.Path)
	}
	return out, nil
}

// apiImages are images as the API shows them.
type apiImages struct{ *kurma }

func apiImage(i image.Image) kurmaapi.Image {
	return kurmaapi.Image{ID: string(i.ID), Name: i.Name, Reference: strings.Join(i.References, ", "), Size: i.Size, Created: i.Created}
}

func (i apiImages) List(context.Context) ([]kurmaapi.Image, error) {
	all, err := i.images.List()
	var out []kurmaapi.Image
	for _, img := range all {
		out = append(out, apiImage(img))
	}
	return out, reasoned(err)
}

func (i apiImages) Get(ctx context.Context, r kurmaapi.ImageRequest, progress func(kurmaapi.Progress)) (kurmaapi.Image, error) {
	i.fetching.RLock()
	defer i.fetching.RUnlock()
	get := i.images.Get
	if r.Refresh {
		get = i.images.Refresh
	}
	img, err := get(ctx, r.Reference, func(p image.Progress) {
		progress(kurmaapi.Progress{Stage: string(p.Stage), Done: p.Done, Total: p.Total})
	})
	return apiImage(img), reasoned(err)
}

func (i apiImages) Remove(_ context.Context, name string) error {
	all, err := i.images.List()
	if err != nil {
		return reasoned(err)
	}
	for _, img := range all {
		if string(img.ID) != name && img.ID.Short() != name && img.Name != name {
			continue
		}
		for _, s := range i.plugins.Status() {
			if s.ImageID == string(img.ID) {
				return &pod.Error{Reason: pod.Conflict, Err: fmt.Errorf("image %s: network %s runs it", name, s.Name)}
			}
		}
		return reasoned(i.images.Remove(img.ID))
	}
	return &pod.Error{Reason: pod.NotFound, Err: fmt.Errorf("image %s: there is none", name)}
}

// reasoned gives the store's errors the reasons of the API.
func reasoned(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, image.ErrNotFound):
		return &pod.Error{Reason: pod.NotFound, Err: err}
	case errors.Is(err, image.ErrInvalid):
		return &pod.Error{Reason: pod.Invalid, Err: err}
	}
	return err
}
