package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/kurma/image"
)

// Archives that must be refused, with what the error must say, and nothing of which may stay.
func TestHostileArchives(t *testing.T) {
	t.Parallel()
	with := func(from, to string) []byte {
		return pack(t, entry{name: "manifest", content: strings.Replace(goodManifest, from, to, 1)}, entry{name: "rootfs/"})
	}
	const bare = `{"config":{"digest":"CONFIG"},"layers":[]}`
	long := strings.Repeat(" ", 4<<20) + goodManifest
	deep := "rootfs/" + strings.Repeat("d/", 200)
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"dots":                 {packACI(t, entry{name: "rootfs/../../x"}), "leads out"},
		"dots within":          {packACI(t, entry{name: "rootfs/a/../x"}), "leads out"},
		"hard link by dots":    {packACI(t, entry{name: "rootfs/x", kind: tar.TypeLink, link: "rootfs/../../etc/passwd"}), "leads out"},
		"hard link, absolute":  {packACI(t, entry{name: "rootfs/x", kind: tar.TypeLink, link: "/etc/passwd"}), "not in rootfs"},
		"hard link, manifest":  {packACI(t, entry{name: "rootfs/x", kind: tar.TypeLink, link: "manifest"}), "not in rootfs"},
		"hard link of nothing": {packACI(t, entry{name: "rootfs/x", kind: tar.TypeLink, link: "rootfs/none"}), "hard link"},
		"hard link of folder":  {packACI(t, entry{name: "rootfs/d/"}, entry{name: "rootfs/x", kind: tar.TypeLink, link: "rootfs/d"}), "no file"},
		"hard link by a link": {packACI(t, entry{name: "rootfs/l", kind: tar.TypeSymlink, link: "/etc"},
			entry{name: "rootfs/x", kind: tar.TypeLink, link: "rootfs/l/passwd"}), "hard link"},
		"unknown type":        {packACI(t, entry{name: "rootfs/f", kind: 'V'}), "type"},
		"manifest twice":      {packACI(t, entry{name: "/manifest", content: goodManifest}), "twice"},
		"manifest is a FIFO":  {pack(t, entry{name: "manifest", kind: tar.TypeFifo}, entry{name: "rootfs/"}), "nothing else"},
		"absolute dots":       {packACI(t, entry{name: "/rootfs/../../x"}), "leads out"},
		"third at the top":    {packACI(t, entry{name: "other"}), "nothing else"},
		"no rootfs":           {pack(t, entry{name: "manifest", content: goodManifest}), "no rootfs"},
		"no manifest":         {pack(t, entry{name: "rootfs/"}), "no manifest"},
		"manifest is a link":  {pack(t, entry{name: "manifest", kind: tar.TypeSymlink, link: "/etc/passwd"}, entry{name: "rootfs/"}), "nothing else"},
		"rootfs is a link":    {pack(t, entry{name: "manifest", content: goodManifest}, entry{name: "rootfs", kind: tar.TypeSymlink, link: "/"}), "nothing else"},
		"declared huge":       {packACI(t, entry{name: "rootfs/big", size: 1 << 60}), "more than"},
		"cut short":           {packACI(t, entry{name: "rootfs/big", content: strings.Repeat("x", 4096)})[:3000], "tar"},
		"deep":                {packACI(t, entry{name: deep}), "deep"},
		"long part":           {packACI(t, entry{name: "rootfs/" + strings.Repeat("n", 256)}), "255"},
		"through a file":      {packACI(t, entry{name: "rootfs/f"}, entry{name: "rootfs/f/g"}), "not a directory"},
		"through a circle":    {packACI(t, entry{name: "rootfs/l", kind: tar.TypeSymlink, link: "l"}, entry{name: "rootfs/l/g"}), "levels of symbolic links"},
		"many":                {packACI(t, make40()...), "entries"},
		"bomb":                {bomb(t, 1<<28), "times its size"},
		"bad gzip":            {append([]byte("\x1f\x8b"), "nonsense"...), "compression"},
		"cut gzip":            {zip(t, packACI(t, entry{name: "rootfs/f"}))[:60], "cannot be read"},
		"huge xz dictionary":  {[]byte("\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x28\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), "dictionary"},
		"empty":               {nil, "neither manifest"},
		"text":                {[]byte(strings.Repeat("no archive ", 200)), "tar"},
		"kind":                {with("ImageManifest", "PodManifest"), "acKind"},
		"version":             {with("0.8.11", "9"), "acVersion"},
		"name":                {with("example.com/plugin", "../x"), "name"},
		"other system":        {with(`"linux"`, `"freebsd"`), "os"},
		"other machine":       {with(`"name":"os","value":"linux"`, `"name":"arch","value":"vax"`), "arch"},
		"no user":             {with(`"user":"0",`, ``), "user"},
		"label twice":         {with(`"name":"os"`, `"name":"version"`), "twice"},
		"relative mount":      {with("/run/kuryr", "run"), "absolute"},
		"mount of the top":    {with("/run/kuryr", "/run/.."), "top"},
		"environment":         {with(`"PATH"`, `"A=B"`), "environment"},
		"zero byte":           {with(`"-x"`, `"\u0000"`), "zero byte"},
		"dependencies":        {with(`"app"`, `"dependencies":[{"imageName":"a"}],"app"`), "dependencies"},
		"whitelist":           {with(`"app"`, `"pathWhitelist":["/a"],"app"`), "pathWhitelist"},
		"no JSON":             {with("{", "["), "manifest"},
		"manifest is null":    {pack(t, entry{name: "manifest", content: "null"}, entry{name: "rootfs/"}), "acKind"},
		"manifest is empty":   {pack(t, entry{name: "manifest"}, entry{name: "rootfs/"}), "manifest"},
		"manifest is a list":  {pack(t, entry{name: "manifest", content: "[]"}, entry{name: "rootfs/"}), "manifest"},
		"manifest too large":  {pack(t, entry{name: "manifest", content: long}, entry{name: "rootfs/"}), "more than"},
		"exec of text":        {with(`["/bin/main","-x"]`, `"/bin/main"`), "exec"},
		"labels of null":      {with(`{"name":"version","value":"1.0"}`, `null`), "labels"},
		"OCI of null":         {pack(t, entry{name: "index.json", content: "null"}), "index"},
		"OCI, empty":          {pack(t, entry{name: "index.json"}), "index"},
		"OCI, a list":         {pack(t, entry{name: "index.json", content: "[]"}), "index"},
		"OCI, images of null": {pack(t, entry{name: "index.json", content: `{"manifests":[null]}`}), "no image for linux"},
		"OCI, too large":      {pack(t, entry{name: "index.json", content: long}), "more than"},
		"OCI manifest, null":  {ociOf(t, "null", ""), "is not in it"},
		"OCI layers of null":  {ociOf(t, `{"config":{"digest":"CONFIG"},"layers":[null]}`, `{}`), "layers"},
		"OCI config of null":  {ociOf(t, bare, "null"), "configuration"},
		"OCI config, a list":  {ociOf(t, bare, "[]"), "configuration"},
		"OCI config, types":   {ociOf(t, bare, `{"config":{"Env":"A=B"}}`), "configuration"},
		"Docker of null":      {pack(t, entry{name: "manifest.json", content: "null"}), "0 images"},
		"Docker, an object":   {pack(t, entry{name: "manifest.json", content: "{}"}), "manifest.json"},
		"Docker, a null":      {pack(t, entry{name: "manifest.json", content: "[null]"}), "Config"},
		"OCI without a blob":  {pack(t, entry{name: "index.json", content: indexOf("sha256:" + strings.Repeat("0", 64))}), "is not in it"},
		"OCI, blob by dots":   {pack(t, entry{name: "index.json", content: indexOf("sha256:../../../../etc/passwd")}), "index"},
		"Docker, two images":  {pack(t, entry{name: "manifest.json", content: `[{},{}]`}), "2 images"},
		"Docker, no config":   {pack(t, entry{name: "manifest.json", content: `[{"Config":"../../etc/passwd"}]`}), "Config"},
		"Docker, link circle": {pack(t, entry{name: "manifest.json", content: `[{"Config":"a"}]`}, entry{name: "a", kind: tar.TypeSymlink, link: "a"}), "Config"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := openAt(t, dir, image.Config{Limits: image.Limits{Entries: 30, Unpacked: 1 << 30}})
			i, err := s.Get(t.Context(), "file://"+write(t, c.data), nil)
			if !errors.Is(err, image.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it gave %v, %v: want an error with %q", i.ID, err, c.want)
			}
			if rest := left(t, dir); len(rest) > 0 {
				t.Errorf("left: %q", rest)
			}
		})
	}
}

func indexOf(digest string) string {
	return `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":2,"digest":"` + digest + `"}]}`
}

// ociOf is an OCI archive of this manifest, which names this configuration as CONFIG.
func ociOf(t *testing.T, manifest, config string) []byte {
	t.Helper()
	blob := func(text string) (digest string, e entry) {
		hex := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
		return "sha256:" + hex, entry{name: "blobs/sha256/" + hex, content: text}
	}
	digest, second := blob(config)
	of, first := blob(strings.ReplaceAll(manifest, "CONFIG", digest))
	return pack(t, entry{name: "index.json", content: indexOf(of)}, first, second)
}

func make40() (all []entry) {
	for n := range 40 {
		all = append(all, entry{name: "rootfs/" + strings.Repeat("e", n+1)})
	}
	return all
}

// bomb is an ACI with a file of zeros, compressed as well as gzip can.
func bomb(t *testing.T, size int64) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: "rootfs/zeros", Typeflag: tar.TypeReg, Size: size}); err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for n := int64(0); n < size; n += int64(len(zeros)) {
		if _, err := w.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Links out of the root are what a container makes of them: what goes through them stays inside.
func TestLinksStayInside(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	s := open(t, image.Config{})
	i := get(t, s, "file://"+write(t, packACI(t,
		entry{name: "rootfs/etc/"},
		entry{name: "rootfs/up", kind: tar.TypeSymlink, link: "../../../../../../.."},
		entry{name: "rootfs/up/etc/passwd", content: "inside"},
		entry{name: "rootfs" + outside + "/"},
		entry{name: "rootfs/away", kind: tar.TypeSymlink, link: outside},
		entry{name: "rootfs/away/file", content: "inside", mode: 0o4755},
		entry{name: "rootfs/same", kind: tar.TypeLink, link: "rootfs/away/file"},
	)))
	if got := content(t, i, "etc/passwd"); got != "inside" {
		t.Errorf("/etc/passwd has %q", got)
	}
	if got := content(t, i, filepath.Join(outside, "file")); got != "inside" {
		t.Errorf("the file has %q", got)
	}
	if got := content(t, i, "same"); got != "inside" {
		t.Errorf("the hard link has %q", got)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("outside there are %v, %v", entries, err)
	}
	info, err := i.Stat("/away/file")
	if err != nil || info.Mode() != 0o755 {
		t.Errorf("through the link: %v %v: want no set-user-ID bit", info, err)
	}
	if _, err := i.Stat("/up/" + outside + "/none"); !os.IsNotExist(err) {
		t.Errorf("an absent file: %v", err)
	}
}
