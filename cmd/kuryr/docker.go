//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/discovery"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/tlsfiles"
	"github.com/spf13/cobra"
)

func (a *app) dockerCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "docker", Short: "Run Docker's network driver alone; tell Docker where it is", Args: noArgs,
		Long: `Run the Docker front end on the SDN that the configuration names (provider), until SIGTERM or SIGINT. With the embedded SDN that is the
same as "kuryr up".

The commands below it tell Docker where the driver answers, where that is not the socket that Docker finds by itself.`,
		Example: "  kuryr docker\n  kuryr docker --docker-socket \"\" --docker-listen tcp://127.0.0.1:2378",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.daemon(c, func(cfg config.Config) duties {
				return duties{open: providers[cfg.Provider], docker: true, node: servesCNI(cfg)}
			})
		},
	}
	addSettings(c, settingsBut("node.", "kubernetes.", "controller.", "kurma.")...)
	c.AddCommand(a.installCommand(), a.uninstallCommand(), a.certificatesCommand())
	return c
}

// installFlags are those of kuryr docker install.
type installFlags struct {
	plugin        discovery.Plugin
	dir           string
	dryRun, force bool
}

func (a *app) installCommand() *cobra.Command {
	var o installFlags
	c := &cobra.Command{
		Use: "install", Short: "Write the file by which Docker finds the driver", Args: noArgs,
		Long: `Write the file by which Docker finds the driver: kuryr.json for TCP with TLS, kuryr.spec for a Unix socket that is not in Docker's own
folder. What the file names is checked first. Nothing is written when it is there already.

Without --address the configuration tells it: docker.listen, else docker.socket.`,
		Example: "  kuryr docker install --ca /etc/kuryr/tls/ca.pem --cert /etc/kuryr/tls/client.pem --key /etc/kuryr/tls/client-key.pem\n" +
			"  kuryr docker install --address unix:///srv/kuryr.sock --dry-run",
		RunE: func(c *cobra.Command, _ []string) error {
			if o.plugin.Address == "" {
				cfg, err := a.load(c)
				if err != nil {
					return err
				}
				o.plugin.Address = callable(cfg.Docker)
			}
			return a.install(o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.plugin.Address, "address", "", "`URL` where the driver answers: https://HOST:PORT (or tcp://, which means the same) or unix:///PATH (default as in the configuration)")
	f.StringVar(&o.plugin.CA, "ca", "", "`file` with the authority of the driver's certificate, for TCP")
	f.StringVar(&o.plugin.Cert, "cert", "", "`file` with Docker's certificate, for TCP")
	f.StringVar(&o.plugin.Key, "key", "", "`file` with Docker's private key, for TCP")
	f.StringVar(&o.dir, "dir", discovery.SpecDirs[0], "`folder` of Docker's to write to")
	f.BoolVar(&o.dryRun, "dry-run", false, "check and print, and write nothing")
	f.BoolVar(&o.force, "force", false, "replace a file that is there with another content")
	return c
}

// callable is the address that Docker calls, where the configuration says to listen.
func callable(c config.Docker) string {
	address, ok := strings.CutPrefix(c.Listen, "tcp://")
	if !ok {
		return "unix://" + c.Socket
	}
	host, port, _ := net.SplitHostPort(address) // the setting was checked
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return "https://" + net.JoinHostPort(host, port)
}

func (a *app) install(o installFlags) error {
	file, err := o.plugin.File(time.Now())
	if errors.Is(err, discovery.ErrFound) {
		_, _ = fmt.Fprintln(a.out, "nothing to install: Docker finds "+strings.TrimPrefix(o.plugin.Address, "unix://")+" by itself")
		return nil
	}
	var field *discovery.FieldError
	if errors.As(err, &field) {
		return usageError{fmt.Errorf("--%w", err)}
	}
	if err != nil {
		return err
	}
	path := filepath.Join(o.dir, file.Name)
	if o.dryRun {
		_, _ = fmt.Fprintf(a.out, "%s:\n%s", path, file.Content)
	} else {
		changed, err := discovery.Install(o.dir, file, o.force)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%w; --force replaces it", err)
		}
		if err != nil {
			return err
		}
		done := "is there already"
		if changed {
			done = "written"
		}
		_, _ = fmt.Fprintln(a.out, path+" "+done)
	}
	if !slices.Contains(discovery.SpecDirs, filepath.Clean(o.dir)) {
		a.warn(o.dir + " is not a folder that Docker looks into; it looks into " + strings.Join(discovery.SpecDirs, " and "))
	}
	for _, before := range discovery.Before(discovery.SocketDir, discovery.SpecDirs, o.dir, file) {
		a.warn(before + " is there too, and Docker takes it instead of this file: remove it, or end what listens there")
	}
	return nil
}

func (a *app) warn(text string) { _, _ = fmt.Fprintln(a.err, "kuryr: warning: "+text) }

func (a *app) uninstallCommand() *cobra.Command {
	dir := ""
	c := &cobra.Command{
		Use: "uninstall", Short: "Remove the file by which Docker finds the driver", Args: noArgs,
		Long:    `Remove what "kuryr docker install" has written. The driver and Docker go on as they are; Docker looks the driver up anew when it starts.`,
		Example: "  kuryr docker uninstall",
		RunE: func(*cobra.Command, []string) error {
			removed, err := discovery.Uninstall(dir)
			for _, path := range removed {
				_, _ = fmt.Fprintln(a.out, path+" removed")
			}
			if err == nil && len(removed) == 0 {
				_, _ = fmt.Fprintln(a.out, "nothing was installed in "+dir)
			}
			return err
		},
	}
	c.Flags().StringVar(&dir, "dir", discovery.SpecDirs[0], "`folder` of Docker's")
	return c
}

func (a *app) certificatesCommand() *cobra.Command {
	var hosts []string
	c := &cobra.Command{
		Use: "certificates DIR", Short: "Make certificates for TCP with TLS", Args: exactly(1, "one folder"),
		Long: `Make in a folder an authority, a certificate for the driver and one for Docker, and say how to use them. Keys are ECDSA P-256 and readable by
their owner alone; the authority holds for ten years, the others for 825 days. Files that are there are never replaced.`,
		Example: "  kuryr docker certificates /etc/kuryr/tls --host 127.0.0.1",
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			if len(hosts) == 0 || slices.Contains(hosts, "") {
				return usageError{errors.New("--host: want the address or name that Docker calls the driver by, such as 127.0.0.1")}
			}
			if err := tlsfiles.Issue(dir, hosts, time.Now()); err != nil {
				return err
			}
			in := func(name string) string { return filepath.Join(dir, name) }
			_, _ = fmt.Fprintf(a.out, `settings of kuryr:
  docker:
    listen: tcp://%s
    tls_cert: %s
    tls_key: %s
    tls_client_ca: %s
    tls_client_names: [%s]
then, on the machine of Docker:
  kuryr docker install --ca %s --cert %s --key %s
%s signs further certificates; keep it elsewhere.
`, net.JoinHostPort(hosts[0], "2378"), in(tlsfiles.ServerFile), in(tlsfiles.ServerKeyFile), in(tlsfiles.CAFile),
				tlsfiles.ClientName,
				in(tlsfiles.CAFile), in(tlsfiles.ClientFile), in(tlsfiles.ClientKeyFile), in(tlsfiles.CAKeyFile))
			return nil
		},
	}
	c.Flags().StringSliceVar(&hosts, "host", nil, "`address or name` that Docker calls the driver by; may be given again")
	return c
}
