// Package podnet is the configuration of Kurma's networks: what each is called, which image attaches pods to it, and how its interface in a pod is named.
//
// It owns the file's form (specs: Kurma Network Specification, "Kurma Configuration"), the checks of the keys that are Kurma's, and the templates of interface
// names. What else an entry says is the plugin's, and is handed on untouched. It must not fetch images, run anything or look at the kernel.
package podnet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/internal/template"
)

// Network is an entry of pod_networks. It is made by Load or Parse alone.
type Network struct {
	Name      string          // unique in a configuration
	Image     string          // key aci: where the plugin's image is
	Default   bool            // for pods that ask for no network by name
	Interface string          // key containerInterface: a template, "" is none
	Raw       json.RawMessage // the whole entry, byte for byte where the file is JSON

	name template.Template
}

// maxFile bounds the file; thousands of networks fit.
const maxFile = 4 << 20

// validName is an ACName (appc, "AC Name Type"), which image formats and runtimes take as a container's name.
var validName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

const maxName = 64

// Load reads a file whose name ends in .json, .yaml or .yml. An error names the file, the entry and the key; that of a file that is absent is fs.ErrNotExist.
func Load(path string) ([]Network, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("pod networks: %w", err)
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil {
		return nil, fmt.Errorf("pod networks: %w", err)
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("pod networks: %w", &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")})
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("pod networks: %w", err)
	case len(data) > maxFile:
		return nil, fmt.Errorf("pod networks: %s is larger than %d bytes", path, maxFile)
	}
	switch filepath.Ext(path) {
	case ".json":
	case ".yaml", ".yml":
		if data, err = fromYAML(data); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	default:
		return nil, fmt.Errorf("pod networks: the name of %s ends in neither .json, .yaml nor .yml", path)
	}
	networks, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return networks, nil
}

// Parse reads the configuration as JSON. Other sections than pod_networks are another program's
// and are ignored, but one that is spelt almost like it is an error. A document without a
// section pod_networks is no networks.
func Parse(data []byte) ([]Network, error) {
	if text := bytes.TrimSpace(data); len(text) == 0 || bytes.Equal(text, []byte("null")) {
		return nil, nil
	}
	top, err := object(data)
	if err != nil {
		return nil, err
	}
	key, entries := "", json.RawMessage(nil)
	for name, value := range top.all() {
		switch {
		case !isSection(name) && isAlmost(name, section, 2):
			return nil, fmt.Errorf("unknown key %q: want %s", name, section)
		case !isSection(name):
			continue
		case key != "":
			return nil, errors.New("both pod_networks and podNetworks are there: want one")
		}
		key, entries = name, value
	}
	if key == "" {
		return nil, nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(entries, &list); err != nil {
		return nil, fmt.Errorf("%s: want a list of networks: %w", key, err)
	}
	var networks []Network
	for i, raw := range list {
		n, err := parseEntry(raw)
		where := fmt.Sprintf("%s[%d]", key, i)
		if n.Name != "" {
			where += fmt.Sprintf(" (%s)", n.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		if first := slices.IndexFunc(networks, func(other Network) bool { return other.Name == n.Name }); first >= 0 {
			return nil, fmt.Errorf("%s: name: %s[%d] is called %q too", where, key, first, n.Name)
		}
		networks = append(networks, n)
	}
	return networks, nil
}

// parseEntry reads one network; what it returns with an error has at most the name, for the message.
func parseEntry(raw json.RawMessage) (n Network, err error) {
	entry, err := object(raw)
	if err != nil {
		return n, err
	}
	read := func(key string, into any, want string) {
		value, there := entry.get(key)
		if !there || err != nil {
			return
		}
		if bytes.Equal(value, []byte("null")) || json.Unmarshal(value, into) != nil {
			err = fmt.Errorf("%s: want %s, not %s", key, want, short(value))
		}
	}
	var name string
	if read("name", &name, "a text"); err != nil {
		return n, err
	}
	if err := checkName(name); err != nil {
		return n, fmt.Errorf("name: %w", err)
	}
	n.Name = name
	read("aci", &n.Image, "a text")
	read("default", &n.Default, "true or false")
	read("containerInterface", &n.Interface, "a text")
	if err != nil {
		return n, err
	}
	if err := checkKeys(entry); err != nil {
		return n, err
	}
	if err := checkImage(n.Image); err != nil {
		return n, fmt.Errorf("aci: %w", err)
	}
	if n.name, err = parseName(n.Interface); err != nil {
		return n, fmt.Errorf("containerInterface: %w", err)
	}
	n.Raw = slices.Clone(raw)
	return n, nil
}

func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("is missing")
	case len(name) > maxName:
		return fmt.Errorf("is %d characters long, more than %d", len(name), maxName)
	case !validName.MatchString(name):
		return fmt.Errorf("%q: want lower-case letters, digits and single hyphens between them", name)
	}
	return nil
}

// checkImage knows the schemes; what is behind them is package image's to say.
func checkImage(ref string) error {
	if ref == "" {
		return errors.New("is missing")
	}
	scheme, rest, has := strings.Cut(ref, "://")
	if !has {
		if strings.ContainsAny(ref, " \t\n") {
			return fmt.Errorf("%q has white space in it", ref)
		}
		return nil
	}
	if !slices.Contains([]string{"file", "http", "https", "docker"}, scheme) {
		return fmt.Errorf("unknown scheme %q: want file, http, https or docker, or a plain name", scheme)
	}
	if rest == "" {
		return fmt.Errorf("%q names nothing", ref)
	}
	if _, err := url.Parse(ref); err != nil && scheme != "docker" { // name:tag after an empty host is no URL
		return err
	}
	return nil
}

// short shows a value in a message.
func short(value json.RawMessage) string {
	const most = 60
	if len(value) > most {
		return string(value[:most]) + "…"
	}
	return string(value)
}
