package discovery

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Found is a file by which an engine finds a plugin.
type Found struct {
	Path   string
	Plugin Plugin // where it leads; without an address for an unreadable file
}

// candidates are where an engine looks for the plugin of a name, in its order (moby:
// pkg/plugins, discovery).
func candidates(sockets string, specs []string, name string) []string {
	in := func(folder, ext string) []string {
		return []string{filepath.Join(folder, name+ext), filepath.Join(folder, name, name+ext)}
	}
	all := in(sockets, ".sock")
	for _, folder := range specs {
		all = append(append(all, in(folder, ".spec")...), in(folder, ".json")...)
	}
	return all
}

// Find lists by what an engine may find the plugin of a name. It takes the first.
func Find(sockets string, specs []string, name string) []Found {
	var all []Found
	for _, path := range candidates(sockets, specs, name) {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		switch filepath.Ext(path) {
		case ".sock":
			if info.Mode()&fs.ModeSocket != 0 {
				all = append(all, Found{path, Plugin{Address: "unix://" + path}})
			}
		default:
			p, _ := read(path, info)
			all = append(all, Found{path, p})
		}
	}
	return all
}

// maxFile bounds what is read of a file, in bytes.
const maxFile = 64 << 10

func read(path string, info fs.FileInfo) (Plugin, error) {
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return Plugin{}, fmt.Errorf("%s is no description of a plugin", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Plugin{}, err
	}
	if filepath.Ext(path) == ".spec" {
		return Plugin{Address: strings.TrimSpace(string(data))}, nil
	}
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return Plugin{}, err
	}
	return Plugin{d.Addr, d.TLSConfig.CAFile, d.TLSConfig.CertFile, d.TLSConfig.KeyFile}, nil
}
