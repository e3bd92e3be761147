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

// leave deletes the attachment of a pod that is gone from the API, if its network namespace is gone
// too. Until then the container runtime's DEL or GC may come. If the namespace is not known, the
// container is of an earlier boot, or the table was lost.
func (c *Allocator) leave(ctx context.Context, key string) error {
	c.mu.Lock()
	has := c.index.at(key)
	if has == nil || has.leaving || c.index.uids[has.uid()] != nil {
		c.mu.Unlock()
		return nil
	}
	a, pod := has.Attachment, has.podName()
	c.mu.Unlock()
	if a.Namespace != "" {
		if err := c.gone.watch(a.Namespace, key); err != nil {
			return err
		}
		if _, err := os.Stat(a.Namespace); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		c.gone.forget(a.Namespace, key)
	}
	c.Log.InfoContext(ctx, "deleting the attachment of a pod that is gone", "pod", pod.String(), "container", a.Container)
	return c.server.Leave(ctx, a)
}

// departures reports by inotify(7) when network namespaces are unlinked.
type departures struct {
	watcher *fsnotify.Watcher
	queue   workqueue.TypedInterface[task]

	mu      sync.Mutex
	waiting map[string]map[string]struct{} // keys of attachments by path, as the watcher has it
}

func newDepartures(queue workqueue.TypedInterface[task]) (*departures, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch of network namespaces: %w", err)
	}
	return &departures{watcher: w, queue: queue, waiting: map[string]map[string]struct{}{}}, nil
}

// watch queues the attachment when the path is unlinked. A missing folder is no error, as the path is
// missing then.
func (d *departures) watch(path, key string) error {
	path = filepath.Clean(path)
	d.mu.Lock()
	in(d.waiting, path)[key] = struct{}{}
	d.mu.Unlock()
	if err := d.watcher.Add(filepath.Dir(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("watch of network namespaces: %w", err)
	}
	return nil
}

// forget ends the wait for a path.
func (d *departures) forget(path, key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out(d.waiting, filepath.Clean(path), key)
}

// run queues the attachments of unlinked paths until ctx ends.
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
	for key := range all {
		d.queue.Add(task{gone: key})
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
