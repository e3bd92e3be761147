package image

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/atomicfile"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/kuryr/kuryr/internal/sortslice"
)

// Config is what a Store is told. The zero Config verifies TLS by the system's authorities, lets nothing go in plain but to registries on this machine itself, and has DefaultLimits.
type Config struct {
	Limits Limits
	// Insecure are hosts ("name" or "name:port", as a reference names them) that may be spoken to without TLS: http:// without a digest, and registries.
	Insecure []string
	// Transport is for tests and for hosts with certificates of their own; nil is one like http.DefaultTransport.
	Transport http.RoundTripper
	Log       *slog.Logger // nil: slog.Default
	// Installed is the folder of Kuryr's own images, as NAME.aci; "" is none.
	Installed string
}

// Store keeps images in a folder, which one process has at a time. Its methods may be called at once from many goroutines; what is asked of one reference at the same
// time is done once after the other, so that the second finds what the first has made.
type Store struct {
	dir    string
	limits Limits
	net    *network
	log    *slog.Logger
	lock   *os.File

	installed string
	locks     keymutex.Mutex
	refs      *jsonstore.Store // meanings by key
}

// The folders of a store.
const (
	imagesDir = "images" // ID/rootfs and ID/image.json
	refsDir   = "refs"   // what a reference meant last
	partDir   = "partial"
	tempDir   = "tmp" // nothing in it outlives a process

	recordFile = "image.json"
	rootfsDir  = "rootfs"
)

// Open prepares the folder, made with mode 0700 if missing, and removes what a killed process has left half made; downloads that can be resumed stay. It fails where another process has the folder.
func Open(dir string, c Config) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{
		dir: dir, limits: c.Limits.orDefault(), net: newNetwork(c), log: cmp.Or(c.Log, slog.Default()), installed: c.Installed,
	}
	if err := s.open(); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("store of images: %w", err)
	}
	return s, nil
}

func (s *Store) open() error {
	for _, sub := range []string{"", imagesDir, partDir} {
		if err := os.MkdirAll(filepath.Join(s.dir, sub), 0o700); err != nil {
			return err
		}
	}
	var err error
	if s.lock, err = os.OpenFile(filepath.Join(s.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%s is another process's: %w", s.dir, err)
	}
	if s.refs, err = jsonstore.Open(s.path(refsDir)); err != nil {
		return err
	}
	if err := os.RemoveAll(s.path(tempDir)); err != nil {
		return err
	}
	return os.Mkdir(s.path(tempDir), 0o700)
}

// Close lets another process have the folder.
func (s *Store) Close() error {
	if s.lock == nil {
		return nil
	}
	return s.lock.Close()
}

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// Get brings the image of a reference into the store, if it is not there, and returns it. What the reference meant when it was fetched it means until Refresh: then there is no call to any host.
// A file of this machine is read again when it has changed. progress may be nil. The errors wrap ErrNotFound or ErrInvalid where they fit; all others may pass with time.
func (s *Store) Get(ctx context.Context, ref string, progress func(Progress)) (Image, error) {
	return s.get(ctx, ref, false, progress)
}

// Refresh is Get that asks anew what the reference means: a tag may have moved, a file on a server changed. Where that cannot be found out the error says so, and the store is as it was.
func (s *Store) Refresh(ctx context.Context, ref string, progress func(Progress)) (Image, error) {
	return s.get(ctx, ref, true, progress)
}

func (s *Store) get(ctx context.Context, text string, refresh bool, progress func(Progress)) (Image, error) {
	ref, err := Parse(text)
	if err != nil {
		return Image{}, err
	}
	unlock, err := s.locks.Lock(ctx, "ref "+text)
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	f := &fetch{Store: s, ref: ref, refresh: refresh, tell: progress}
	f.known, err = s.meaning(text)
	if err != nil {
		return Image{}, err
	}
	image, err := f.run(ctx)
	if err != nil {
		return Image{}, fmt.Errorf("image %q: %w", text, err)
	}
	f.progress(Done, "", image.Size, image.Size)
	m, err := s.meaning(text)
	if err != nil {
		return Image{}, err
	}
	if image, err = s.image(image.ID); err == nil && m.fromFile() {
		image.Installed = s.installedFile(ref)
	}
	return image, err
}

// Import puts an archive, or the folder of an OCI layout, of this machine into the store, as Get of its file:// reference does.
func (s *Store) Import(ctx context.Context, path string) (Image, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return Image{}, err
	}
	return s.Refresh(ctx, fileReference(abs), nil)
}

// Image is the image with that id; the error of an absent one wraps ErrNotFound.
func (s *Store) Image(id ID) (Image, error) { return s.image(id) }

func (s *Store) image(id ID) (Image, error) {
	image, err := s.load(id)
	if err != nil {
		return Image{}, err
	}
	meanings, err := s.meanings()
	for _, m := range meanings {
		if m.ID == id {
			image.References = append(image.References, m.Reference)
		}
	}
	slices.Sort(image.References)
	return image, err
}

// load reads an image's record alone.
func (s *Store) load(id ID) (Image, error) {
	if _, err := ParseID(string(id)); err != nil {
		return Image{}, err
	}
	dir := s.path(imagesDir, string(id))
	image, err := jsonstore.ReadFile[Image](filepath.Join(dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, fmt.Errorf("image %s: %w", id.Short(), ErrNotFound)
	}
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", id.Short(), err)
	}
	image.ID, image.Rootfs = id, filepath.Join(dir, rootfsDir)
	if info, err := os.Lstat(image.Rootfs); err != nil || !info.IsDir() {
		return Image{}, fmt.Errorf("image %s: its files are gone: %w", id.Short(), ErrNotFound)
	}
	return image, nil
}

// List are the images of the store, by name and then id. What cannot be read is in the error, and the others are given nevertheless.
func (s *Store) List() ([]Image, error) {
	entries, err := os.ReadDir(s.path(imagesDir))
	if err != nil {
		return nil, err
	}
	meanings, failure := s.meanings()
	refs := map[ID][]string{}
	for _, m := range meanings {
		refs[m.ID] = append(refs[m.ID], m.Reference)
	}
	errs := []error{failure}
	var images []Image
	for _, e := range entries {
		image, err := s.load(ID(e.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		image.References = slices.Sorted(slices.Values(refs[image.ID]))
		images = append(images, image)
	}
	sortslice.Func(images, func(a, b Image) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return images, errors.Join(errs...)
}

// Remove takes an image and what references said of it out of the store; of an absent one it is nil. Whoever uses its files must have ended before.
func (s *Store) Remove(id ID) error {
	if _, err := ParseID(string(id)); err != nil {
		return err
	}
	meanings, err := s.meanings()
	for _, m := range meanings {
		if m.ID == id {
			err = errors.Join(err, s.forget(m.Reference))
		}
	}
	if err != nil {
		return err
	}
	failpoint.Here("image.remove.forgotten")
	trash := s.path(tempDir, rand.Text())
	if err := os.Rename(s.path(imagesDir, string(id)), trash); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	failpoint.Here("image.remove.moved")
	return os.RemoveAll(trash)
}

// Collect removes every image that is neither in keep nor what one of these references means, and every unfinished download that is of none of them. Gets of other references must not run meanwhile. It returns what it removed.
func (s *Store) Collect(keep []ID, references []string) (removed []ID, err error) {
	wanted := map[ID]bool{}
	for _, id := range keep {
		wanted[id] = true
	}
	for _, ref := range references {
		m, err := s.meaning(ref)
		if err != nil {
			return nil, err
		}
		wanted[m.ID] = true
	}
	entries, err := os.ReadDir(s.path(imagesDir))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		if id := ID(e.Name()); !wanted[id] {
			if err := s.Remove(id); err != nil {
				errs = append(errs, err)
				continue
			}
			removed = append(removed, id)
		}
	}
	return removed, errors.Join(append(errs, s.collectPartial(references))...)
}

// folder is a new one that is not an image yet.
func (s *Store) folder() (string, error) {
	dir := s.path(tempDir, rand.Text())
	return dir, os.MkdirAll(filepath.Join(dir, rootfsDir), 0o755)
}

// install makes the folder that was filled the image's. All of it is on the disk before it has its name, so that an image which is there is whole.
func (s *Store) install(dir string, image Image) error {
	image.Fetched = time.Now().UTC().Truncate(time.Second)
	stored := image
	stored.Rootfs, stored.References = "", nil
	err := jsonstore.WriteFile(filepath.Join(dir, recordFile), stored)
	if err != nil {
		return err
	}
	failpoint.Here("image.install.recorded")
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Syncfs(int(f.Fd())), f.Close()); err != nil {
		return err
	}
	failpoint.Here("image.install.synced")
	to := s.path(imagesDir, string(image.ID))
	err = os.Rename(dir, to)
	if errors.Is(err, fs.ErrExist) { // also ENOTEMPTY
		if _, err := s.load(image.ID); err == nil {
			return os.RemoveAll(dir) // by another reference, meanwhile
		}
		if err := errors.Join(os.Rename(to, s.path(tempDir, rand.Text())), os.Rename(dir, to)); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	failpoint.Here("image.install.named")
	return atomicfile.SyncDir(s.path(imagesDir))
}
