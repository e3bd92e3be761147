package image

import (
	"context"
	"errors"
)

// http brings the image that a server has at a URL into the store.
func (f *fetch) http(ctx context.Context, url string, anyPlain bool) (Image, error) {
	d := &download{
		store: f.Store, client: f.net.client(anyPlain), url: url, reference: f.ref.text, exact: f.ref.Digest != Digest{},
		progress: func(done, total int64) { f.progress(Downloading, "", done, total) },
	}
	if f.known.ID != "" && f.ref.Scheme != Plain {
		d.unless = f.known.ETag
	}
	f.progress(Resolving, "", 0, 0)
	file, p, err := d.run(ctx)
	if errors.Is(err, errNotModified) {
		return f.load(f.known.ID)
	}
	if err != nil {
		return Image{}, err
	}
	defer file.Close()
	f.progress(Downloading, "", p.Size, p.Size)
	image, err := f.archive(ctx, file, p.Size, f.ref.Digest)
	if errors.Is(err, ErrInvalid) {
		err = errors.Join(err, d.drop()) // another time there may be another file
	}
	if err != nil {
		return Image{}, err
	}
	if err := f.remember(meaning{Reference: f.ref.text, ID: image.ID, ETag: p.ETag, Modified: p.Modified}); err != nil {
		return Image{}, err
	}
	return image, d.drop()
}
