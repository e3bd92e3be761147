package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/discovery"
)

// PluginFile is a file by which Docker finds a plugin of a name.
type PluginFile struct {
	discovery.Found
	Alive bool // a server listens there; told of Unix sockets only
}

func (p PluginFile) unix() (socket string, ok bool) {
	return strings.CutPrefix(p.Plugin.Address, "unix://")
}

// address is for people: a password in it is not shown.
func (p PluginFile) address() string {
	u, err := url.Parse(p.Plugin.Address)
	switch {
	case p.Plugin.Address == "":
		return "nothing that can be read"
	case err != nil:
		return "what is no address"
	}
	return u.Redacted()
}

// ours reports whether a file is certainly a leftover of Kuryr's: a Unix socket of the
// plugin's name, without a listener.
func (p PluginFile) ours(name string) bool {
	socket, unix := p.unix()
	return unix && !p.Alive && strings.TrimSuffix(filepath.Base(socket), ".sock") == name
}

// Managed is Kuryr as a plugin that Docker itself runs.
type Managed struct {
	Name    string // with the tag
	Enabled bool
}

// PluginFacts are what Docker finds of the plugin.
type PluginFacts struct {
	Names   []string                // that Docker may call it by
	Socket  string                  // of the configuration; "" is none
	Listen  string                  // of the configuration, tcp://HOST:PORT; "" is nowhere
	Files   map[string][]PluginFile // by name, in the order in which Docker looks
	Managed []Managed
	Unasked bool // Docker does not tell its managed plugins
	Now     time.Time
}

// Plugins judges by what Docker finds the plugin.
func Plugins(p PluginFacts) []Finding {
	f := findings{check: "docker plugin"}
	var by []string
	for _, name := range p.Names {
		if files := p.Files[name]; len(files) > 0 {
			by = append(by, files[0].Path)
		}
	}
	if i := slices.IndexFunc(p.Managed, func(m Managed) bool { return m.Enabled }); i >= 0 {
		return f.orOK("Docker runs it itself, as its managed plugin " + p.Managed[i].Name)
	}
	for _, m := range p.Managed {
		// One of the same name goes before all files, also while it is disabled.
		if name, latest := strings.CutSuffix(m.Name, ":latest"); len(by) == 0 || latest && slices.Contains(p.Names, name) {
			f.add(
				Problem, "Docker's managed plugin "+m.Name+" is disabled",
				"`docker plugin enable "+m.Name+"`, or `docker plugin rm "+m.Name+"` if Kuryr shall run otherwise",
			)
			return f.list
		}
	}
	const install = "start `kuryr up`; if docker.socket is not below " + discovery.SocketDir +
		", or is empty, `kuryr docker install` writes the file by which Docker finds it"
	switch {
	case len(by) == 0 && p.Unasked:
		f.add(
			Warning,
			"Docker finds no plugin "+strings.Join(p.Names, " or ")+" by a file, and does not tell whether it runs it itself",
			install,
		)
	case len(by) == 0:
		f.add(Problem, "Docker finds no plugin "+strings.Join(p.Names, " or "), install)
	}
	for _, name := range p.Names {
		if files := p.Files[name]; len(files) > 0 {
			p.judge(&f, name, files)
		}
	}
	return f.orOK("Docker finds it by " + strings.Join(by, " and "))
}

func (p PluginFacts) judge(f *findings, name string, files []PluginFile) {
	first := files[0]
	_, unix := first.unix()
	switch {
	case unix && !first.Alive:
		remedy := "start `kuryr up`"
		if !p.leadsHere(first) {
			remedy = p.removeOr(first, name, "remove "+first.Path)
		}
		f.add(Problem, fmt.Sprintf("Docker takes %s for the plugin, and nobody listens at it", first.Path), remedy)
	case !p.leadsHere(first):
		f.add(Problem, fmt.Sprintf(
			"Docker takes %s for the plugin, which leads to %s and not to kuryr's %s", first.Path,
			first.address(), p.own(),
		),
			p.removeOr(first, name, "remove "+first.Path+", or let `kuryr docker install --force` write the right one"))
	case !unix:
		if _, err := first.Plugin.File(p.Now); err != nil {
			f.add(Problem, fmt.Sprintf("Docker takes %s for the plugin, and cannot call it so: %v", first.Path, err),
				"make certificates (`kuryr docker certificates`), and `kuryr docker install --force` with "+
					"them; Docker reads them anew when it starts")
		}
	}
	for _, file := range files[1:] {
		if _, unix := file.unix(); !p.leadsHere(file) && (!unix || !file.Alive) {
			f.add(
				Warning,
				fmt.Sprintf(
					"%s leads to %s; Docker would follow it if %s were not there", file.Path, file.address(),
					first.Path,
				),
				p.removeOr(file, name, "remove "+file.Path),
			)
		}
	}
}

// leadsHere reports whether Docker comes to Kuryr by a file, as far as an address tells: of
// a host's name only the port is compared.
func (p PluginFacts) leadsHere(file PluginFile) bool {
	if socket, unix := file.unix(); unix {
		return p.Socket != "" && socket == p.Socket
	}
	u, err := url.Parse(file.Plugin.Address)
	if err != nil || u.Scheme != "https" || u.User != nil || p.Listen == "" {
		// by any other scheme Docker speaks plain HTTP
		return false
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(p.Listen, "tcp://"))
	if err != nil || u.Port() != port {
		return false
	}
	called, errCalled := netip.ParseAddr(u.Hostname())
	listens, errListens := netip.ParseAddr(host)
	return errCalled != nil || errListens != nil || listens.IsUnspecified() || called.Unmap() == listens.Unmap()
}

// own is where Kuryr answers, by its configuration.
func (p PluginFacts) own() string {
	var all []string
	if p.Socket != "" {
		all = append(all, "socket "+p.Socket)
	}
	if p.Listen != "" {
		all = append(all, "address https://"+strings.TrimPrefix(p.Listen, "tcp://"))
	}
	return strings.Join(all, " or ")
}

// removeOr is the remedy for a file that stands in the way.
func (p PluginFacts) removeOr(file PluginFile, name, other string) string {
	if p.removable(file, name) {
		return "`kuryr doctor --fix` removes it"
	}
	return other
}

// removable reports whether a file may be removed: a leftover that does not lead to where
// kuryr will listen.
func (p PluginFacts) removable(file PluginFile, name string) bool {
	return file.ours(name) && !p.leadsHere(file)
}

// Remove removes leftovers of Kuryr's that stand in Docker's way, and tells what it did,
// a line each.
func (p PluginFacts) Remove() (done []string, err error) {
	for _, name := range p.Names {
		for _, file := range p.Files[name] {
			if !p.removable(file, name) {
				continue
			}
			if e := os.Remove(file.Path); e != nil && !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
				continue
			}
			done = append(done, "removed "+file.Path+", which led to nobody")
		}
	}
	return done, err
}

// FindPlugin looks where Docker looks for the plugin that answers at the socket, the
// address, or both.
func FindPlugin(names []string, socket, listen string) PluginFacts {
	return findPlugin("/", names, socket, listen)
}

func findPlugin(root string, names []string, socket, listen string) PluginFacts {
	p := PluginFacts{Names: names, Socket: socket, Listen: listen, Files: map[string][]PluginFile{}, Now: time.Now()}
	var specs []string
	for _, dir := range discovery.SpecDirs {
		specs = append(specs, filepath.Join(root, dir))
	}
	for _, name := range names {
		for _, found := range discovery.Find(filepath.Join(root, discovery.SocketDir), specs, name) {
			file := PluginFile{Found: found}
			if at, unix := file.unix(); unix {
				file.Alive = listens(at)
			}
			p.Files[name] = append(p.Files[name], file)
		}
	}
	return p
}

func listens(socket string) bool {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil || errors.Is(err, os.ErrDeadlineExceeded)
}
