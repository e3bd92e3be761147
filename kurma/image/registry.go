package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/kuryr/kuryr/internal/failpoint"
)

// registry brings an image of a registry into the store (OCI distribution-spec, "Pull"). Credentials are those that "docker login" and "podman login" leave for this user. Registries
// on this machine may speak without TLS, others where the configuration allows their host.
func (f *fetch) registry(ctx context.Context) (Image, error) {
	f.progress(Resolving, "", 0, 0)
	ref, err := f.docker()
	if err != nil {
		return Image{}, err
	}
	// Nobody else's registry leads to what this machine serves itself.
	own := loopback(f.ref.Host)
	base := guard{f.net.transport, func(host string) bool { return f.net.allowed(host) || own && loopback(host) }}
	o, downloads, err := f.manifest(ctx, ref, base)
	if err != nil {
		return Image{}, fetchError(err)
	}
	repo := ref.Context()
	signed, err := transport.NewWithContext(ctx, repo.Registry, f.auth(ctx, repo), base, []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return Image{}, fetchError(err)
	}
	left := f.limits.Download
	for n, d := range downloads {
		if left -= d.size; left < 0 || d.size < 0 {
			return Image{}, invalid("its layers have more than %d bytes", f.limits.Download)
		}
		d.client = &http.Client{Transport: signed}
		file, err := d.layer(ctx)
		if err != nil {
			return Image{}, fetchError(err)
		}
		defer file.Close()
		failpoint.Here("image.registry.layer")
		o.layers[n].open = func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(file, 0, d.size)), nil }
	}
	image, err := f.take(ctx, o)
	if err != nil {
		return Image{}, err
	}
	if err := f.remember(meaning{Reference: f.ref.text, ID: image.ID}); err != nil {
		return Image{}, err
	}
	for _, d := range downloads {
		err = errors.Join(err, d.drop())
	}
	return image, err
}

// docker is the library's reference, which knows that a host was allowed.
func (f *fetch) docker() (name.Reference, error) {
	repo := f.ref.docker.Context()
	if f.net.allowed(f.ref.Host) {
		registry, err := name.NewRegistry(f.ref.Host, name.Insecure)
		if err != nil {
			return nil, err
		}
		repo.Registry = registry
	}
	if d, ok := f.ref.docker.(name.Digest); ok {
		return repo.Digest(d.DigestStr()), nil
	}
	return repo.Tag(f.ref.docker.Identifier()), nil
}

// A layerDownload is a layer's blob, whose digest and size the manifest says.
type layerDownload struct {
	download
	digest v1.Hash
	size   int64
}

// manifest asks the registry what the reference is on this platform. The library checks each answer against its digest.
func (f *fetch) manifest(ctx context.Context, ref name.Reference, base http.RoundTripper) (*ociImage, []*layerDownload, error) {
	options := []remote.Option{remote.WithContext(ctx), remote.WithTransport(base), remote.WithAuth(f.auth(ctx, ref.Context())),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: goarch})}
	found, err := remote.Get(ref, options...)
	if err != nil {
		return nil, nil, err
	}
	img, err := found.Image()
	if err != nil {
		return nil, nil, err
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, nil, err
	}
	if m.Config.Size > maxManifest {
		return nil, nil, invalid("the configuration has more than %d bytes", maxManifest)
	}
	o := &ociImage{name: repository(ref.Context().Name() + ":"), limits: f.limits}
	if o.config, err = img.RawConfigFile(); err != nil {
		return nil, nil, err
	}
	repo := ref.Context()
	var downloads []*layerDownload
	for _, l := range m.Layers {
		if slices.ContainsFunc(l.URLs, func(u string) bool { return u != "" }) {
			return nil, nil, invalid("layer %s is kept elsewhere, which is not followed", l.Digest)
		}
		blob := repo.RegistryStr()
		d := &layerDownload{digest: l.Digest, size: l.Size, download: download{
			store: f.Store, reference: f.ref.text, item: l.Digest.String(), exact: true,
			url:      fmt.Sprintf("%s://%s/v2/%s/blobs/%s", repo.Registry.Scheme(), blob, repo.RepositoryStr(), l.Digest),
			progress: func(done, total int64) { f.progress(Downloading, l.Digest.String(), done, total) },
		}}
		downloads = append(downloads, d)
		o.layers = append(o.layers, layer{name: l.Digest.String()})
	}
	return o, downloads, nil
}

// layer is the blob, with the digest that it must have.
func (d *layerDownload) layer(ctx context.Context) (*os.File, error) {
	file, p, err := d.run(ctx)
	if err != nil {
		return nil, err
	}
	got, _, err := v1.SHA256(io.NewSectionReader(file, 0, p.Size))
	if err == nil && (got != d.digest || p.Size != d.size) {
		err = errors.Join(invalid("layer %s: what came has %d bytes and the digest %s", d.digest, p.Size, got), d.drop())
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// fetchError says of a registry's errors what can be said by ours.
func fetchError(err error) error {
	var t *transport.Error
	if errors.As(err, &t) && (t.StatusCode == http.StatusNotFound || t.StatusCode == http.StatusGone) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}
