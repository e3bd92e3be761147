package image

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/kuryr/kuryr/internal/failpoint"
)

// A fetch is one Get or Refresh of a reference.
type fetch struct {
	*Store
	ref     Reference
	known   meaning // zero where nothing is
	refresh bool
	tell    func(Progress)
}

func (f *fetch) progress(stage Stage, item string, done, total int64) {
	if f.tell != nil {
		f.tell(Progress{f.ref.text, stage, item, done, total})
	}
}

func (f *fetch) run(ctx context.Context) (Image, error) {
	if f.known.ID != "" && !f.refresh && f.ref.Scheme != File && f.ref.Scheme != Plain {
		return f.load(f.known.ID)
	}
	switch f.ref.Scheme {
	case File:
		return f.file(ctx)
	case Docker:
		return f.registry(ctx)
	case Plain:
		return f.named(ctx)
	}
	return f.http(ctx, f.ref.URL, f.ref.Digest != Digest{})
}

// file is read for a reference to a file, and records what it read.
func (f *fetch) file(ctx context.Context) (Image, error) {
	image, m, err := f.read(ctx)
	if err != nil {
		return Image{}, err
	}
	return image, f.learn(m)
}

// learn records what the reference leads to, if that is new.
func (f *fetch) learn(m meaning) error {
	if m == f.known {
		return nil
	}
	return f.remember(m)
}

// read reads an archive or layout of this machine, unless it is unchanged since the last time. If
// it no longer exists, the image that was read last is used.
func (f *fetch) read(ctx context.Context) (Image, meaning, error) {
	again := func() (Image, meaning, error) {
		image, err := f.load(f.known.ID)
		return image, f.known, err
	}
	failed := func(err error) (Image, meaning, error) { return Image{}, meaning{}, err }
	file, err := os.OpenFile(f.ref.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO is not waited for
	if errors.Is(err, fs.ErrNotExist) {
		if f.known.ID != "" && !f.refresh {
			return again()
		}
		return failed(fmt.Errorf("%w: %w", ErrNotFound, err))
	}
	if err != nil {
		return failed(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return failed(err)
	}
	if info.IsDir() {
		image, err := f.layout(ctx)
		return image, meaning{Reference: f.ref.text, ID: image.ID}, err
	}
	if !info.Mode().IsRegular() {
		return failed(invalid("it is neither a file nor a folder"))
	}
	state := fileState{info.Size(), info.ModTime().UTC(), info.Sys().(*syscall.Stat_t).Ino}
	if f.known.ID != "" && !f.refresh && f.known.File == state {
		return again()
	}
	image, err := f.archive(ctx, file, info.Size(), f.ref.Digest)
	return image, meaning{Reference: f.ref.text, ID: image.ID, File: state}, err
}

// layout reads a folder. It is read each time: nothing tells that no file of it has changed.
func (f *fetch) layout(ctx context.Context) (Image, error) {
	if f.ref.Digest != (Digest{}) {
		return Image{}, invalid("a folder has no digest")
	}
	dir, err := os.OpenRoot(f.ref.Path)
	if err != nil {
		return Image{}, err
	}
	defer dir.Close()
	o, err := bundle(folderBlobs{dir}, f.limits)
	if err != nil {
		return Image{}, err
	}
	return f.take(ctx, o)
}

// archive brings the image that a file holds into the store: an ACI, or an archive of OCI or Docker.
func (f *fetch) archive(ctx context.Context, file io.ReaderAt, size int64, digest Digest) (Image, error) {
	if size > f.limits.Download {
		return Image{}, invalid("it has %d bytes, more than %d", size, f.limits.Download)
	}
	f.progress(Verifying, "", 0, size)
	section := io.NewSectionReader(file, 0, size)
	if err := f.checkDigest(ctx, section, digest); err != nil {
		return Image{}, err
	}
	appc, err := isACI(ctx, section, f.limits)
	if err != nil {
		return Image{}, err
	}
	if appc {
		return f.takeACI(ctx, &aci{section, f.limits})
	}
	plain, err := f.plain(ctx, section)
	if err != nil {
		return Image{}, err
	}
	defer plain.Close()
	b, err := indexArchive(plain.SectionReader, f.limits)
	if err != nil {
		return Image{}, err
	}
	o, err := bundle(b, f.limits)
	if err != nil {
		return Image{}, err
	}
	return f.take(ctx, o)
}

// checkDigest compares the file's digest with the one that was asked for, and where they differ the digest of the tar within.
func (f *fetch) checkDigest(ctx context.Context, file *io.SectionReader, want Digest) error {
	if want == (Digest{}) {
		return nil
	}
	sum := func(r io.Reader) (string, error) {
		h := map[string]func() hash.Hash{"sha256": sha256.New, "sha512": sha512.New}[want.Algorithm]()
		_, err := io.Copy(h, &counted{ctx: ctx, r: r})
		return hex.EncodeToString(h.Sum(nil)), err
	}
	got, err := sum(io.NewSectionReader(file, 0, file.Size()))
	if err != nil || got == want.Hex {
		return err
	}
	within, err := decompress(ctx, io.NewSectionReader(file, 0, file.Size()), f.limits)
	if err != nil {
		return invalid("its digest is %s-%s, not %s", want.Algorithm, got, want)
	}
	defer within.Close()
	if inner, err := sum(within); err != nil || inner != want.Hex {
		return invalid("its digest is %s-%s, not %s", want.Algorithm, got, want)
	}
	return nil
}

// tempSection is an archive whose file goes with it.
type tempSection struct {
	*io.SectionReader
	file *os.File
}

// Close lets go of the file.
func (t *tempSection) Close() {
	if t.file != nil {
		_ = t.file.Close()
	}
}

// plain is an archive without its compression: itself, or a copy without a name.
func (f *fetch) plain(ctx context.Context, file *io.SectionReader) (*tempSection, error) {
	within, err := decompress(ctx, io.NewSectionReader(file, 0, file.Size()), f.limits)
	if err != nil {
		return nil, err
	}
	defer within.Close()
	if b, ok := within.(*bounded); ok && b.plain {
		return &tempSection{SectionReader: file}, nil
	}
	temp, err := os.CreateTemp(filepath.Join(f.dir, tempDir), "archive-*")
	if err != nil {
		return nil, err
	}
	t := &tempSection{file: temp}
	if err := os.Remove(temp.Name()); err != nil {
		t.Close()
		return nil, err
	}
	size, err := io.Copy(temp, within)
	if err != nil {
		t.Close()
		return nil, err
	}
	t.SectionReader = io.NewSectionReader(temp, 0, size)
	return t, nil
}

func (f *fetch) takeACI(ctx context.Context, a *aci) (Image, error) {
	image, err := a.verify(ctx)
	if err != nil {
		return Image{}, err
	}
	return f.keep(image, func(to *root) error {
		f.progress(Unpacking, "", 0, image.Size)
		return a.unpack(ctx, image.ID, to)
	})
}

func (f *fetch) take(ctx context.Context, o *ociImage) (Image, error) {
	image, err := o.verify(ctx, func(item string) { f.progress(Verifying, item, 0, 0) })
	if err != nil {
		return Image{}, err
	}
	return f.keep(image, func(to *root) error {
		return o.unpack(ctx, to, func(item string) { f.progress(Unpacking, item, 0, image.Size) })
	})
}

// keep puts an image that was verified into the store, unless it is there by another reference.
func (f *fetch) keep(image Image, unpack func(*root) error) (Image, error) {
	there, err := f.load(image.ID)
	if err == nil || !errors.Is(err, ErrNotFound) {
		return there, err
	}
	dir, err := f.folder()
	if err != nil {
		return Image{}, err
	}
	err = func() error {
		to, err := openRoot(filepath.Join(dir, rootfsDir))
		if err != nil {
			return err
		}
		defer to.close()
		if err := unpack(to); err != nil {
			return err
		}
		f.tellSkipped(image, to.skipped)
		return nil
	}()
	failpoint.Here("image.keep.unpacked")
	if err == nil {
		err = f.install(dir, image)
	}
	if err != nil {
		return Image{}, errors.Join(err, os.RemoveAll(dir))
	}
	return f.load(image.ID)
}

// tellSkipped logs the entries of an image that were not made.
func (f *fetch) tellSkipped(image Image, skipped map[place]string) {
	if len(skipped) == 0 {
		return
	}
	const most = 10
	names := slices.Sorted(maps.Values(skipped))
	f.log.Info("skipped devices and FIFOs of an image", "reference", f.ref.text, "image", image.ID.Short(),
		"count", len(names), "entries", names[:min(most, len(names))])
}
