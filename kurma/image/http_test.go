package image_test

import (
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/kurma/image"
)

// web serves one file, which it can cut short, and records what was asked for.
type web struct {
	*httptest.Server
	mu     sync.Mutex
	data   []byte
	etag   string
	cut    int // answers that end after half of what they promised
	ranges []string
	codes  []int
}

func serve(t *testing.T, data []byte, etag string) *web {
	t.Helper()
	w := &web{data: data, etag: etag}
	w.Server = httptest.NewServer(w)
	t.Cleanup(w.Close)
	return w
}

func (w *web) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ranges = append(w.ranges, r.Header.Get("Range"))
	from, code := 0, http.StatusOK
	if w.etag != "" {
		out.Header().Set("ETag", w.etag)
		if r.Header.Get("If-None-Match") == w.etag {
			w.codes = append(w.codes, http.StatusNotModified)
			out.WriteHeader(http.StatusNotModified)
			return
		}
	}
	if asked := r.Header.Get("Range"); asked != "" && (r.Header.Get("If-Range") == "" || r.Header.Get("If-Range") == w.etag) {
		if _, err := fmt.Sscanf(asked, "bytes=%d-", &from); err == nil && from < len(w.data) {
			code = http.StatusPartialContent
			out.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(w.data)-1, len(w.data)))
		} else {
			code = http.StatusRequestedRangeNotSatisfiable
		}
	}
	w.codes = append(w.codes, code)
	if code == http.StatusRequestedRangeNotSatisfiable {
		out.WriteHeader(code)
		return
	}
	rest := w.data[from:]
	out.Header().Set("Content-Length", fmt.Sprint(len(rest)))
	out.WriteHeader(code)
	if w.cut > 0 {
		w.cut--
		rest = rest[:len(rest)/2]
	}
	_, _ = out.Write(rest)
}

func (w *web) host() string { return strings.TrimPrefix(w.URL, "http://") }

// noise does not compress.
func noise(size int) string {
	b := make([]byte, size)
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range b {
		b[n] = byte(rng.Uint32())
	}
	return string(b)
}

func TestDownloads(t *testing.T) {
	t.Parallel()
	data := packACI(t, entry{name: "rootfs/noise", content: noise(3 << 20)}, entry{name: "rootfs/v", content: "1"})
	next := packACI(t, entry{name: "rootfs/noise", content: noise(3 << 20)}, entry{name: "rootfs/v", content: "2"})
	sum := fmt.Sprintf("#sha256-%x", sha256.Sum256(data))
	t.Run("resumed by ETag", func(t *testing.T) {
		t.Parallel()
		w := serve(t, data, `"one"`)
		w.cut = 2
		i := get(t, open(t, image.Config{Insecure: []string{w.host()}}), w.URL)
		if content(t, i, "v") != "1" || len(w.codes) != 3 || w.codes[1] != http.StatusPartialContent || w.codes[2] != http.StatusPartialContent {
			t.Errorf("%d: %q", w.codes, w.ranges)
		}
	})
	t.Run("resumed by digest", func(t *testing.T) {
		t.Parallel()
		w := serve(t, data, "")
		w.cut = 1
		i := get(t, open(t, image.Config{}), w.URL+sum)
		if content(t, i, "v") != "1" || len(w.codes) != 2 || w.codes[1] != http.StatusPartialContent {
			t.Errorf("%d: %q", w.codes, w.ranges)
		}
	})
	t.Run("anew without either", func(t *testing.T) {
		t.Parallel()
		w := serve(t, data, "")
		w.cut = 1
		i := get(t, open(t, image.Config{Insecure: []string{w.host()}}), w.URL)
		if content(t, i, "v") != "1" || len(w.codes) != 2 || w.codes[1] != http.StatusOK {
			t.Errorf("%d: %q", w.codes, w.ranges)
		}
	})
	t.Run("resumed by another process, and changed meanwhile", func(t *testing.T) {
		t.Parallel()
		for _, changed := range []bool{false, true} {
			w := serve(t, data, `"one"`)
			w.cut = 1 << 20
			dir := t.TempDir()
			c := image.Config{Insecure: []string{w.host()}}
			s := openAt(t, dir, c)
			ctx, cancel := contextUntil(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.codes) >= 2 })
			if _, err := s.Get(ctx, w.URL, nil); err == nil {
				t.Fatal("half of an image was taken")
			}
			cancel()
			if images, err := s.List(); err != nil || len(images) > 0 {
				t.Errorf("of half an image there is %v, %v", images, err)
			}
			s.Close()
			w.mu.Lock()
			w.cut, w.ranges, w.codes = 0, nil, nil
			if changed {
				w.data, w.etag = next, `"two"`
			}
			w.mu.Unlock()
			i := get(t, openAt(t, dir, c), w.URL)
			want, code := "1", http.StatusPartialContent
			if changed {
				want, code = "2", http.StatusOK
			}
			if content(t, i, "v") != want || w.ranges[0] == "" || w.codes[0] != code {
				t.Errorf("changed %v: %s, %d: %q", changed, content(t, i, "v"), w.codes, w.ranges)
			}
		}
	})
	t.Run("refreshed", func(t *testing.T) {
		t.Parallel()
		w := serve(t, data, `"one"`)
		s := open(t, image.Config{Insecure: []string{"127.0.0.1"}})
		first := get(t, s, w.URL)
		get(t, s, w.URL)
		if len(w.codes) != 1 {
			t.Errorf("%d: a second Get asked the server", w.codes)
		}
		same, err := s.Refresh(t.Context(), w.URL, nil)
		if err != nil || same.ID != first.ID || w.codes[1] != http.StatusNotModified {
			t.Errorf("%v, %v, %d", same.ID, err, w.codes)
		}
		w.data, w.etag = next, `"two"`
		other, err := s.Refresh(t.Context(), w.URL, nil)
		if err != nil || content(t, other, "v") != "2" {
			t.Errorf("%v, %v", other.ID, err)
		}
		w.Close()
		if i := get(t, s, w.URL); i.ID != other.ID {
			t.Errorf("without the server it is %s", i.ID)
		}
		if removed, err := s.Collect(nil, []string{w.URL}); err != nil || len(removed) != 1 || removed[0] != first.ID {
			t.Errorf("collected %v, %v", removed, err)
		}
	})
}

func TestRefusedDownloads(t *testing.T) {
	t.Parallel()
	data := packACI(t, entry{name: "rootfs/v", content: "1"})
	w := serve(t, data, `"one"`)
	away := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(away.Close)
	downgrade := httptest.NewTLSServer(http.RedirectHandler(w.URL, http.StatusFound))
	t.Cleanup(downgrade.Close)
	wrong := fmt.Sprintf("#sha512:%x", sha512.Sum512([]byte("other")))
	for name, c := range map[string]struct {
		ref    string
		config image.Config
		want   string
		is     error
	}{
		"plain":         {w.URL, image.Config{}, "plain http is refused", nil},
		"downgraded":    {downgrade.URL, image.Config{Transport: downgrade.Client().Transport}, "plain http is refused", nil},
		"unknown CA":    {downgrade.URL, image.Config{}, "certificate", nil},
		"wrong digest":  {w.URL + wrong, image.Config{}, "digest", image.ErrInvalid},
		"too large":     {w.URL, image.Config{Insecure: []string{w.host()}, Limits: image.Limits{Download: 100}}, "more than 100", image.ErrInvalid},
		"absent":        {away.URL + "/x", image.Config{Insecure: []string{"127.0.0.1"}}, "404", image.ErrNotFound},
		"absent file":   {"file:///nowhere/x.aci", image.Config{}, "no such file", image.ErrNotFound},
		"absent folder": {"file://" + t.TempDir(), image.Config{}, "neither manifest", image.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			_, err := openAt(t, dir, c.config).Get(t.Context(), c.ref, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v: want %q", err, c.want)
			}
			for _, file := range left(t, dir) {
				if c.is != nil {
					t.Errorf("left: %s", file)
				}
			}
		})
	}
}

// A plain name is found in the store by its manifest's, or else where the pages of its host say, over TLS alone.
func TestNames(t *testing.T) {
	t.Parallel()
	data := packACI(t, entry{name: "rootfs/v", content: "1"})
	var asked []string
	var mu sync.Mutex
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.String())
		mu.Unlock()
		switch {
		case r.URL.Path == "/" && r.URL.Query().Get("ac-discovery") == "1":
			fmt.Fprint(w, `<html><head><meta name="ac-discovery" content="other.com https://example.com/wrong">
				<meta name="ac-discovery" content="example.com https://example.com/images/{name}/{version}/{os}.{ext}"/></head>`)
		case strings.HasPrefix(r.URL.Path, "/images/") && strings.HasSuffix(r.URL.Path, "/linux.aci"):
			_, _ = w.Write(data)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	// Every name leads to the server, whose certificate is for example.com.
	transport := server.Client().Transport.(*http.Transport).Clone()
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport.DialContext = dialTo(address.Host)
	s := open(t, image.Config{Transport: transport})
	i := get(t, s, "example.com/plugin")
	if content(t, i, "v") != "1" || len(asked) != 3 || asked[2] != "/images/example.com/plugin/latest/linux.aci" {
		t.Errorf("%v: %q", i.ID, asked)
	}
	asked = nil
	for _, ref := range []string{"example.com/plugin", "example.com/plugin:1.0", "example.com/plugin,os=linux"} {
		if local := get(t, s, ref); local.ID != i.ID || len(asked) > 0 {
			t.Errorf("%s: %v, asked %q", ref, local.ID, asked)
		}
	}
	for _, ref := range []string{"example.com/other", "example.com/plugin:2.0,os=plan9"} {
		if _, err := s.Get(t.Context(), ref, nil); err == nil {
			t.Errorf("%s was found", ref)
		}
	}
}

func dialTo(address string) dialer {
	return func(ctx ctx, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
}
