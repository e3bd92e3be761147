package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/net/html"
)

const goarch = runtime.GOARCH

// named finds an image by its manifest name: one of Kuryr's own, or the newest of the store that
// has these labels, or else by appc's discovery.
func (f *fetch) named(ctx context.Context) (Image, error) {
	if f.ref.ownName() != "" {
		return f.own(ctx)
	}
	if !f.refresh {
		image, err := f.local()
		if err != nil {
			return Image{}, err
		}
		if image.ID != "" {
			if f.known.ID == image.ID {
				return image, nil
			}
			return image, f.remember(meaning{Reference: f.ref.text, ID: image.ID})
		}
	}
	return f.discover(ctx)
}

// ownNames begin the names of Kuryr's images. The specification's example has another name for
// one of them.
const ownNames = "kuryr.org/"

var aliases = map[string]string{"apcera.com/kurma/cni-netplugin": ownNames + "cni-netplugin"}

// ownName returns the manifest name of the image of Kuryr's that the reference stands for, or "".
func (r Reference) ownName() string {
	name := cmp.Or(aliases[r.Name], r.Name)
	if !strings.HasPrefix(name, ownNames) {
		return ""
	}
	return name
}

// installedFile returns the installed file that the reference names, by its path or by the name
// of an image of Kuryr's, or "".
func (s *Store) installedFile(r Reference) string {
	name, own := strings.CutPrefix(r.ownName(), ownNames)
	switch {
	case s.installed == "":
	case own:
		return filepath.Join(s.installed, name+".aci")
	case r.Scheme == File && filepath.Dir(r.Path) == s.installed:
		return r.Path
	}
	return ""
}

func (f *fetch) local() (best Image, err error) {
	images, err := f.List()
	if len(images) == 0 {
		return Image{}, err
	}
	for _, i := range images { // unreadable images are left out
		if i.Name == f.ref.Name && fits(i, f.ref.Labels) && (best.ID == "" || i.Fetched.After(best.Fetched)) {
			best = i
		}
	}
	return best, nil
}

// own finds an image of Kuryr's: the installed file, or the image that this reference was fetched
// as, or one by discovery. Images of other references do not count: a manifest can claim any name.
func (f *fetch) own(ctx context.Context) (Image, error) {
	if !f.known.fromFile() && f.known.ETag == "" && f.known.Modified == "" {
		// Earlier versions recorded a store image of that name, whatever reference it was of.
		f.known = meaning{}
	}
	image, err := f.readInstalled(ctx)
	if !errors.Is(err, ErrNotFound) {
		return image, err
	}
	if f.known.ID != "" && !f.refresh {
		return f.load(f.known.ID)
	}
	return f.discover(ctx)
}

// readInstalled returns the installed image. The error wraps ErrNotFound if there is no file, or
// if its image has another name or other labels.
func (f *fetch) readInstalled(ctx context.Context) (Image, error) {
	installed := *f
	if installed.ref.Path = f.installedFile(f.ref); installed.ref.Path == "" {
		return Image{}, ErrNotFound
	}
	if !f.known.fromFile() {
		installed.known = meaning{}
	}
	image, m, err := installed.read(ctx)
	if err != nil {
		return Image{}, fmt.Errorf("%s: %w", installed.ref.Path, err)
	}
	if image.Name != f.ref.ownName() || !fits(image, f.ref.Labels) {
		return Image{}, ErrNotFound
	}
	return image, f.learn(m)
}

func fits(i Image, labels map[string]string) bool {
	for k, v := range labels {
		if i.Labels[k] != v {
			return false
		}
	}
	return true
}

// discover is appc's (specification 0.8.11, "App Container Image Discovery"): first the name itself as a URL, then the templates that a page at the name, or above it, has in its meta tags. All over https;
// signatures are not asked for. What is found must have the name.
func (f *fetch) discover(ctx context.Context) (Image, error) {
	f.progress(Resolving, "", 0, 0)
	var errs []error
	if f.ref.Labels["version"] != "" {
		image, err := f.candidate(ctx, "https://"+f.fill("{name}-{version}-{os}-{arch}.{ext}"))
		if err == nil {
			return image, nil
		}
		errs = append(errs, err)
	}
	for prefix := f.ref.Name; ; {
		templates, err := f.templates(ctx, prefix)
		if err != nil {
			errs = append(errs, err)
		}
		for _, t := range templates {
			image, err := f.candidate(ctx, f.fill(t))
			if err == nil {
				return image, nil
			}
			errs = append(errs, err)
		}
		slash := strings.LastIndexByte(prefix, '/')
		if len(templates) > 0 || slash < 0 {
			break
		}
		prefix = prefix[:slash]
	}
	return Image{}, fmt.Errorf("%w of that name in the store, nor by appc's discovery: %w", ErrNotFound, errors.Join(errs...))
}

// fill writes a template's address. A version that was not asked for is "latest", as appc says.
func (f *fetch) fill(template string) string {
	values := map[string]string{"version": "latest", "os": "linux", "arch": appcArch[goarch]}
	for k, v := range f.ref.Labels {
		values[k] = v
	}
	values["name"], values["ext"] = f.ref.Name, "aci"
	for k, v := range values {
		template = strings.ReplaceAll(template, "{"+k+"}", v)
	}
	return template
}

func (f *fetch) candidate(ctx context.Context, url string) (Image, error) {
	if !strings.HasPrefix(url, "https://") || strings.ContainsAny(url, "{}") {
		return Image{}, fmt.Errorf("%s: no https address without gaps", url)
	}
	image, err := f.http(ctx, url, false)
	if err == nil && image.Name != f.ref.Name {
		return Image{}, errors.Join(invalid("%s: it is an image of the name %q", url, image.Name), f.forget(f.ref.text))
	}
	return image, err
}

// maxPage is how much of a page is looked through, in bytes.
const maxPage = 1 << 20

// templates are the addresses of images that the page at the prefix says for this name.
func (f *fetch) templates(ctx context.Context, prefix string) ([]string, error) {
	ctx, _, stop := watched(ctx)
	defer stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+prefix+"?ac-discovery=1", nil)
	if err != nil {
		return nil, err
	}
	response, err := f.net.client(false).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: the server answered %s", request.URL, response.Status)
	}
	return discoveryTags(io.LimitReader(response.Body, maxPage), f.ref.Name), nil
}

// discoveryTags reads <meta name="ac-discovery" content="prefix template"> and leaves out those of other prefixes.
func discoveryTags(page io.Reader, name string) (templates []string) {
	z := html.NewTokenizer(page)
	for {
		switch z.Next() {
		case html.ErrorToken:
			return templates
		case html.StartTagToken, html.SelfClosingTagToken:
			token := z.Token()
			if token.Data != "meta" {
				continue
			}
			is := map[string]string{}
			for _, a := range token.Attr {
				is[a.Key] = a.Val
			}
			words := strings.Fields(is["content"])
			if is["name"] == "ac-discovery" && len(words) == 2 && (name == words[0] || strings.HasPrefix(name, strings.TrimSuffix(words[0], "/")+"/")) {
				templates = append(templates, words[1])
			}
		}
	}
}
