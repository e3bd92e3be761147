// Package image brings the images of network plugins to this machine: from a reference to an unpacked, verified root file system.
//
// It owns a store in a folder (root file systems by the digest of their content, what references have meant, and downloads that are not whole yet), the ways
// to fetch an image (files, HTTP, registries, appc's discovery), and the readers of its forms (ACI; OCI layouts and archives; Docker's archives). What it reads is
// hostile until proven otherwise: nothing in an archive can name a place outside the folder it is unpacked in, and all of it is counted against Limits.
//
// It must not know what a plugin or a network is, nor run or mount anything.
package image

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// ID names an image by its content, as "sha512-" and hexadecimal digits for an ACI (the SHA-512 of its tar, uncompressed: appc's image id) and as "sha256-" and digits for
// an image of OCI or Docker (the SHA-256 of its configuration, which holds the digests of its layers). It is fit to be a file's name.
type ID string

var validID = regexp.MustCompile(`^(sha512-[0-9a-f]{128}|sha256-[0-9a-f]{64})$`)

// ParseID checks an ID that comes from outside.
func ParseID(s string) (ID, error) {
	if !validID.MatchString(s) {
		return "", fmt.Errorf("image id %q: it must be sha512- or sha256- and hexadecimal digits", s)
	}
	return ID(s), nil
}

// Short is enough of the id for people to tell images apart.
func (id ID) Short() string {
	if len(id) < 19 {
		return string(id)
	}
	return string(id[:19])
}

// Image is an unpacked image in a Store.
type Image struct {
	ID   ID     `json:"id"`
	Name string `json:"name"` // an ACI's manifest name, or the repository that an archive or a registry names; may be empty for OCI
	// References lead to this image at present, in order.
	References []string `json:"references,omitempty"`

	Rootfs string   `json:"rootfs"`           // absolute path on this machine; never changed after the image is there, and not to be written
	Exec   []string `json:"exec,omitempty"`   // an ACI's app.exec; entry point and command of OCI. May be empty
	Env    []string `json:"env,omitempty"`    // NAME=value
	Dir    string   `json:"dir,omitempty"`    // working directory; "" is /
	User   string   `json:"user,omitempty"`   // number, name of the image's /etc/passwd, or an absolute path (appc); "" is root
	Group  string   `json:"group,omitempty"`  // the same for the group
	Mounts []Mount  `json:"mounts,omitempty"` // mount points that the image asks for

	Labels  map[string]string `json:"labels,omitempty"` // of the manifest or configuration
	Size    int64             `json:"size"`             // bytes of its files
	Created time.Time         `json:"created,omitzero"` // as the image says; zero where it does not
	Fetched time.Time         `json:"fetched,omitzero"` // when it came into the store

	// Installed is the file in Config.Installed that the reference of a Get led to, or "".
	Installed string `json:"-"`
}

// Mount is a mount point that an image asks for.
type Mount struct {
	Name     string `json:"name,omitempty"` // an ACI's name of it; the path where there is none
	Path     string `json:"path"`           // absolute, clean, in the container
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Stat tells of a file in the image's root file system. Links are followed as they would be in a container, so they never lead out of it. The error of an absent one is fs.ErrNotExist.
func (i Image) Stat(path string) (fs.FileInfo, error) {
	root, err := openRoot(i.Rootfs)
	if err != nil {
		return nil, err
	}
	defer root.close()
	return root.stat(path)
}

// A Stage is what is being done for a reference.
type Stage string

// The stages, in their order. Those that are not needed are left out.
const (
	Resolving   Stage = "resolving"   // asking where the image is and what it is
	Downloading Stage = "downloading" // bytes of the network
	Verifying   Stage = "verifying"   // reading it whole, before a file of it is written
	Unpacking   Stage = "unpacking"
	Done        Stage = "done" // in the store
)

// Progress is how far a Get has come. It is told about each MiB and at the ends of a stage, from the goroutine that called Get.
type Progress struct {
	Reference string `json:"reference"`
	Stage     Stage  `json:"stage"`
	Item      string `json:"item,omitempty"` // which layer, where there are several
	Done      int64  `json:"done"`           // bytes
	Total     int64  `json:"total"`          // bytes; 0 where it is not known
}

// Limits bound what one image may cost. Zero fields are DefaultLimits'.
type Limits struct {
	Download int64 // bytes that are fetched
	Unpacked int64 // bytes of files, all layers together
	Entries  int64 // files, folders and links, all layers together
	Depth    int   // folders in one another
	Ratio    int64 // unpacked bytes for each compressed byte, once 64 MiB are unpacked
}

// DefaultLimits are far above what a network plugin needs.
var DefaultLimits = Limits{Download: 1 << 30, Unpacked: 4 << 30, Entries: 250_000, Depth: 64, Ratio: 200}

func (l Limits) orDefault() Limits {
	d := DefaultLimits
	if l.Download > 0 {
		d.Download = l.Download
	}
	if l.Unpacked > 0 {
		d.Unpacked = l.Unpacked
	}
	if l.Entries > 0 {
		d.Entries = l.Entries
	}
	if l.Depth > 0 {
		d.Depth = l.Depth
	}
	if l.Ratio > 0 {
		d.Ratio = l.Ratio
	}
	return d
}

// ErrNotFound is wrapped by the errors about an image that is not in the store, or nowhere to be found.
var ErrNotFound = errors.New("no such image")

// ErrInvalid is wrapped by the errors about an image that is not what it must be: a digest that differs, a bad archive or manifest, more than Limits allow. To try again is of no use.
var ErrInvalid = errors.New("not a valid image")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// cleanPath is the absolute, clean form of a path in a container.
func cleanPath(what, path string) (string, error) {
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return "", invalid("%s %q must be an absolute path", what, path)
	}
	return filepath.Clean(path), nil
}
