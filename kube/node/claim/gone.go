package claim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
	"k8s.io/client-go/util/workqueue"
)

// leave takes away what a pod left that has gone from the API, where the container runtime will not: when the network namespace has gone too. Until then the runtime's DEL or GC
// may come. Where the namespace is not known, the container is of before this boot or the table.
func (c *Claimant) leave(ctx context.Context, k key) error {
	c.mu.Lock()
	has := c.index.attached[k]
	if has == nil || has.leaving || c.index.uids[has.UID] != nil {
		c.mu.Unlock()
		return nil
	}
	a := has.Attachment
	c.mu.Unlock()
	if a.Namespace != "" {
		if err := c.gone.watch(a.Namespace, k); err != nil {
			return err
		}
		if _, err := os.Stat(a.Namespace); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		c.gone.forget(a.Namespace, k)
	}
	c.Log.InfoContext(ctx, "a pod has gone without a DEL, and its network namespace with it: its port is freed", "pod", podName(has).String(), "container", a.Container)
	return c.server.Leave(ctx, a)
}

// departures tells by inotify(7) when network namespaces that are waited for are unlinked.
type departures struct {
	watcher *fsnotify.Watcher
	queue   workqueue.TypedInterface[task]

	mu      sync.Mutex
	waiting map[string]map[key]struct{} // by path, as the watcher tells it
}

func newDepartures(queue workqueue.TypedInterface[task]) (*departures, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch of network namespaces: %w", err)
	}
	return &departures{watcher: w, queue: queue, waiting: map[string]map[key]struct{}{}}, nil
}

// watch has the attachment looked at again when the path goes. A folder that is not there is no error: nor is the path then.
func (d *departures) watch(path string, k key) error {
	path = filepath.Clean(path)
	d.mu.Lock()
	in(d.waiting, path)[k] = struct{}{}
	d.mu.Unlock()
	if err := d.watcher.Add(filepath.Dir(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("watch of network namespaces: %w", err)
	}
	return nil
}

// forget ends the wait for a path that is not there.
func (d *departures) forget(path string, k key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out(d.waiting, filepath.Clean(path), k)
}

// run tells of what goes until ctx ends.
func (d *departures) run(ctx context.Context) error {
	defer func() { _ = d.watcher.Close() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-d.watcher.Events:
			if !ok {
				return nil
			}
			if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
				d.tell(filepath.Clean(e.Name))
			}
		case _, ok := <-d.watcher.Errors:
			if !ok {
				return nil
			}
			d.tellAll() // events were lost
		}
	}
}

func (d *departures) tell(path string) {
	d.mu.Lock()
	all := d.waiting[path]
	delete(d.waiting, path)
	d.mu.Unlock()
	for k := range all {
		d.queue.Add(task{gone: k})
	}
}

func (d *departures) tellAll() {
	d.mu.Lock()
	paths := make([]string, 0, len(d.waiting))
	for p := range d.waiting {
		paths = append(paths, p)
	}
	d.mu.Unlock()
	for _, p := range paths {
		d.tell(p)
	}
}
