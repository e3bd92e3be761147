//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/bundle"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/topology"
	"github.com/kuryr/kuryr/docker"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/neutronapi"
	"github.com/spf13/cobra"
)

// collector fetches the parts of a support bundle.
type collector struct {
	app      *app
	command  *cobra.Command
	cfg      config.Config
	cfgError error
	client   *admin.Client // nil where the configuration cannot be read
}

func (b *collector) about(_ context.Context, w io.Writer) error {
	_, err := fmt.Fprintf(w, "kuryr %s\n%s\n", version, "Secrets are replaced by "+bundle.Hidden+"; errors.txt tells what could not be had.")
	return err
}

func (b *collector) configPath() string {
	return cmp.Or(b.app.configPath, b.app.getenv("KURYR_CONFIG"), config.DefaultPath)
}

func (b *collector) configFile(_ context.Context, w io.Writer) error {
	if strings.HasSuffix(b.configPath(), ".conf") {
		return errors.New("the file is the Python kuryr-libnetwork's, which has passwords in it, so that nothing of it is told")
	}
	data, err := os.ReadFile(b.configPath())
	if errors.Is(err, fs.ErrNotExist) && b.configPath() == config.DefaultPath {
		_, err = fmt.Fprintf(w, "there is no %s\n", config.DefaultPath)
		return err
	} else if err != nil {
		return err
	}
	text, err := bundle.RedactYAML(data)
	if err != nil {
		return errors.New("the file is not YAML, so that nothing of it is told") // an error may quote it
	}
	_, err = io.WriteString(w, text)
	return err
}

// settings are what holds, from all sources.
func (b *collector) settings(_ context.Context, w io.Writer) error {
	for _, s := range config.Settings() {
		value := s.Value(b.cfg)
		if bundle.IsSensitive(s.Key) {
			value = bundle.Hidden
		}
		_, _ = fmt.Fprintf(w, "%s: %s\n", s.Key, value)
	}
	return b.cfgError
}

// environment are variables of ours: the values of those that are settings, of others the names.
func (b *collector) environment(_ context.Context, w io.Writer) error {
	known := map[string]bool{"KURYR_CONFIG": true, "DOCKER_HOST": true}
	for _, s := range config.Settings() {
		known[s.Env()] = true
	}
	for _, v := range b.app.environ {
		name, value, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "KURYR_") && name != "DOCKER_HOST" {
			continue
		}
		if !known[name] || bundle.IsSensitive(name) {
			value = bundle.Hidden
		}
		_, _ = fmt.Fprintf(w, "%s=%s\n", name, value)
	}
	return nil
}

var errNoConfig = errors.New("the configuration cannot be read, so it is not known where kuryr answers")

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func (b *collector) status(ctx context.Context, w io.Writer) error {
	if b.client == nil {
		return errNoConfig
	}
	s, err := b.client.Status(ctx)
	if err != nil {
		return err
	}
	return writeJSON(w, s)
}

func (b *collector) check(ctx context.Context, w io.Writer) error {
	if b.client == nil {
		return errNoConfig
	}
	found, err := b.client.Check(ctx)
	if err != nil {
		return err
	}
	return writeJSON(w, found)
}

// doctor looks without repairs. What Docker says of a container that did not start may quote its command, and is left out.
func (b *collector) doctor(ctx context.Context, w io.Writer) error {
	if b.cfgError != nil {
		return errNoConfig
	}
	ctx, cancel := context.WithTimeout(ctx, bundle.PartTime*4/5) // the rest is told if somebody does not answer
	defer cancel()
	e := newExamination(b.cfg, b.app.getenv("DOCKER_HOST"))
	e.quiet = true
	return writeJSON(w, e.run(ctx, doctorOptions{}))
}

func (b *collector) metrics(ctx context.Context, w io.Writer) error {
	if b.client == nil {
		return errNoConfig
	}
	return b.client.Metrics(ctx, w)
}

// intents writes the rows of the front end's database: the daemon's, or those of the file if no
// daemon runs.
func (b *collector) intents(ctx context.Context, w io.Writer) error {
	if b.cfgError != nil {
		return errNoConfig
	}
	rows, err := dockerIntents(ctx, b.cfg)
	return errors.Join(err, writeJSON(w, rows))
}

// dockerIntents returns the rows of the front end's database.
func dockerIntents(ctx context.Context, cfg config.Config) (map[string]json.RawMessage, error) {
	rows, err := admin.NewClient(frontSocket(cfg, duties{docker: true})).Intents(ctx)
	if admin.IsNotRunning(err) {
		return reconcile.Read(docker.DatabasePath(cfg.StateDir))
	}
	return rows, err
}

func (b *collector) topology(ctx context.Context, w io.Writer) error {
	if b.client == nil {
		return errNoConfig
	}
	objects, err := gather(ctx, b.client)
	if err != nil {
		return err
	}
	if socket := b.docker(); socket != "" {
		objects.Names, _, _ = askEngine(ctx, socket) // its own parts tell why it does not answer
	}
	return topology.Build(objects).Tree(w)
}

// objectParts are the nouns of the SDN, from the running kuryr or else from the store.
func (b *collector) objectParts() []bundle.Part {
	part := func(noun string, list func(context.Context, *api.Client) ([]map[string]any, error)) bundle.Part {
		return bundle.Part{Name: "objects/" + noun + ".json", Write: func(ctx context.Context, w io.Writer) error {
			return b.withSDN(ctx, func(c *api.Client) error {
				all, err := list(ctx, c)
				if err != nil {
					return err
				}
				for _, object := range all {
					spare(object)
				}
				return writeJSON(w, all)
			})
		}}
	}
	var parts []bundle.Part
	for _, noun := range []string{api.Networks.Collection, api.Subnets.Collection, api.SubnetPools.Collection, api.Ports.Collection, api.Routers.Collection, api.FloatingIPs.Collection} {
		parts = append(parts, part(noun, func(ctx context.Context, c *api.Client) ([]map[string]any, error) {
			return api.List(ctx, c, api.Resource[map[string]any]{Collection: noun}, nil)
		}))
	}
	type objects = []map[string]any
	return append(parts, part("port_forwardings", func(ctx context.Context, c *api.Client) (objects, error) {
		floating, err := api.List(ctx, c, api.FloatingIPs, nil)
		if err != nil {
			return nil, err
		}
		all := []map[string]any{}
		for _, f := range floating {
			forwards, err := c.PortForwardings(ctx, f.ID)
			if err != nil {
				return nil, err
			}
			all = append(all, map[string]any{"floatingip": f.ID, "port_forwardings": forwards})
		}
		return all, nil
	}))
}

// spare takes from an object what users wrote of their own: descriptions and tags that are not Kuryr's.
func spare(object map[string]any) {
	if text, ok := object["description"].(string); ok && text != "" {
		if _, ours := sdn.ParseKey(text); !ours {
			object["description"] = bundle.Hidden
		}
	}
	tags, _ := object["tags"].([]any)
	for i, tag := range tags {
		if text, _ := tag.(string); !strings.HasPrefix(text, "kuryr.") && text != sdn.OwnerContainer {
			tags[i] = bundle.Hidden
		}
	}
}

func (b *collector) withSDN(ctx context.Context, ask func(*api.Client) error) (err error) {
	if b.client == nil {
		return errNoConfig
	}
	if err := ask(b.client.SDN()); !admin.IsNotRunning(err) {
		return err
	}
	// Opening a store may change it: an older one is migrated. So a copy is opened.
	dir, err := os.MkdirTemp("", "kuryr-bundle-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "kuryr.db")
	if err := writeFile(path, func(w io.Writer) error { return local.Copy(ctx, storePath(b.cfg), w) }); err != nil {
		return err
	}
	store, err := local.Open(ctx, local.Options{Path: path, Host: b.cfg.Host, NoSync: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	handler := neutronapi.As(neutronapi.Caller{Role: neutronapi.Admin}, neutronapi.NewHandler(store, neutronapi.Options{}))
	return ask(&api.Client{HTTP: &http.Client{Transport: inProcess{handler}}, Base: "http://kuryr"})
}

// inProcess asks a handler without a connection.
type inProcess struct{ handler http.Handler }

func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	reader, writer := io.Pipe()
	answer := &pipeAnswer{header: http.Header{}, body: writer, ready: make(chan int, 1)}
	go func() {
		t.handler.ServeHTTP(answer, r)
		answer.WriteHeader(http.StatusOK)
		_ = writer.Close()
	}()
	status := <-answer.ready
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: answer.header, Body: reader, Request: r}, nil
}

// pipeAnswer is a ResponseWriter whose body is a pipe.
type pipeAnswer struct {
	header http.Header
	body   io.Writer
	ready  chan int
	said   bool
}

func (a *pipeAnswer) Header() http.Header { return a.header }

func (a *pipeAnswer) WriteHeader(status int) {
	if !a.said {
		a.said = true
		a.ready <- status
	}
}

func (a *pipeAnswer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

// docker is the engine's socket; "" for none that may be asked.
func (b *collector) docker() string {
	return engine.Socket(b.app.getenv("DOCKER_HOST"), b.cfg.Docker.API)
}

// What is told of Docker is named here: all else, such as environments, labels, commands and proxies with passwords, is not decoded.
type (
	dockerVersion struct {
		Version, APIVersion, MinAPIVersion, GitCommit, GoVersion, Os, Arch, KernelVersion, BuildTime string
		Components                                                                                   []struct{ Name, Version string }
	}
	dockerInfo struct {
		ServerVersion, Driver, CgroupDriver, CgroupVersion, KernelVersion, OperatingSystem, OSType, Architecture, DefaultRuntime string
		NCPU                                                                                                                     int
		MemTotal, Containers, ContainersRunning                                                                                  int64
		LiveRestoreEnabled, IPv4Forwarding, BridgeNfIptables, BridgeNfIP6tables                                                  bool
		SecurityOptions, Warnings                                                                                                []string
		Plugins                                                                                                                  struct{ Network []string }
		FirewallBackend                                                                                                          struct{ Driver string }
		Swarm                                                                                                                    struct {
			LocalNodeState   string
			ControlAvailable bool
		}
	}
	dockerNetwork struct {
		ID                                        string `json:"Id"`
		Name, Driver, Scope                       string
		Internal, EnableIPv6, Attachable, Ingress bool
		IPAM                                      struct {
			Driver string
			Config []struct{ Subnet, IPRange, Gateway netipText }
		}
	}
	dockerContainer struct {
		ID              string `json:"Id"`
		Names           []string
		State           string
		NetworkSettings struct {
			Networks map[string]struct{ NetworkID, EndpointID, IPAddress, GlobalIPv6Address, MacAddress string }
		}
	}
)

// netipText is an address or a range; anything else is not told.
type netipText string

// UnmarshalText keeps what is an address or a range.
func (t *netipText) UnmarshalText(text []byte) error {
	_, isAddr := netip.ParseAddr(string(text))
	if _, err := netip.ParsePrefix(string(text)); err == nil || isAddr == nil {
		*t = netipText(text)
	}
	return nil
}

func (b *collector) dockerParts() []bundle.Part {
	return []bundle.Part{
		dockerPart[dockerVersion](b, "version", "/version"),
		dockerPart[dockerInfo](b, "info", "/info"),
		dockerPart[[]dockerNetwork](b, "networks", "/networks"),
		dockerPart[[]dockerContainer](b, "containers", "/containers/json?all=1"),
	}
}

func dockerPart[T any](b *collector, name, path string) bundle.Part {
	return bundle.Part{Name: "docker/" + name + ".json", Write: func(ctx context.Context, w io.Writer) error {
		socket := b.docker()
		if socket == "" {
			return errors.New("no Unix socket of an engine is configured")
		}
		api := engine.New(socket)
		defer api.Close()
		var answer T
		if err := api.Get(ctx, path, &answer); err != nil {
			return err
		}
		return writeJSON(w, answer)
	}}
}
