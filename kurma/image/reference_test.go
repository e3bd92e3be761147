package image_test

import (
	"strings"
	"testing"

	"github.com/kuryr/kuryr/kurma/image"
)

func TestParse(t *testing.T) {
	t.Parallel()
	hex := strings.Repeat("aB", 32)
	for text, want := range map[string]image.Reference{
		"file:///a/../b%20c.aci":                             {Scheme: image.File, Path: "/b c.aci"},
		"file:///a#sha256-" + hex:                            {Scheme: image.File, Path: "/a", Digest: image.Digest{Algorithm: "sha256", Hex: strings.ToLower(hex)}},
		"https://h:1/x?y=z#sha256:" + hex:                    {Scheme: image.HTTPS, Host: "h:1", URL: "https://h:1/x?y=z", Digest: image.Digest{Algorithm: "sha256", Hex: strings.ToLower(hex)}},
		"http://H/x":                                         {Scheme: image.HTTP, Host: "h", URL: "http://H/x"},
		"docker:///user/x:tag":                               {Scheme: image.Docker, Host: "index.docker.io"},
		"docker://registry/x":                                {Scheme: image.Docker, Host: "registry"},
		"docker://h:5000/a/b@sha256:" + strings.ToLower(hex): {Scheme: image.Docker, Host: "h:5000"},
		"apcera.com/kurma/cni-netplugin":                     {Name: "apcera.com/kurma/cni-netplugin"},
	} {
		got, err := image.Parse(text)
		if err != nil || got.Scheme != want.Scheme || got.Path != want.Path || got.URL != want.URL || got.Host != want.Host || got.Digest != want.Digest || got.Name != want.Name || got.String() != text {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"": "bytes", strings.Repeat("a", 3000): "bytes", "file://a": "absolute", "file:///a#sha1-00": "digest", "ftp://x/y": "scheme", "https:///x": "host",
		"https://u:p@h/x": "password", "docker://x": "host and a name", "docker://h/x:": "", "docker://h/X": "", "Name": "appc", "../x": "appc", "a,b": "label", "a:1,version=2": "twice",
		"file:///a#": "digest", "docker://h/x@sha256:00": "",
	} {
		if got, err := image.Parse(text); text != "docker://h/x:" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.40q: %+v, %v: want an error with %q", text, got, err, want)
		}
	}
}
