//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/sdn/neutron"
	"github.com/prometheus/client_golang/prometheus"
)

// openShared opens the SDN of a `kuryr sdn` on this machine, which must have been there once.
func openShared(ctx context.Context, c config.Config, log *slog.Logger, r prometheus.Registerer) (*backend, error) {
	installation := c.Installation
	if installation == "" {
		var err error
		if installation, err = sharedInstallation(ctx, c, log); err != nil {
			return nil, err
		}
	}
	p, err := openCounted(neutron.Config{
		Installation: installation, Host: c.Host, Endpoint: "unix://" + c.SDN.Socket, Auth: neutron.Auth{Type: "none"}, Timeout: c.Neutron.Timeout,
		Uncached: true, // other processes change the same networks
	}, log, r)
	if err != nil {
		return nil, err
	}
	return &backend{provider: p, here: true}, nil
}

// sharedFile, in the state directory, keeps whose the shared SDN is.
const sharedFile = "sdn-installation"

// sharedPause is the time between two questions whether the SDN is there yet: it is being started beside this process.
const sharedPause = 100 * time.Millisecond

// sharedInstallation asks the running SDN for its installation, so that what another process has made on it is this one's too. Where it does not answer what
// it said the last time holds; without that it is waited for until ctx ends.
func sharedInstallation(ctx context.Context, c config.Config, log *slog.Logger) (string, error) {
	path := filepath.Join(c.StateDir, sharedFile)
	client := admin.NewClient(c.Admin.Socket)
	for told := false; ; {
		status, err := client.Status(ctx)
		if err == nil && status.Store.Path != "" && status.Installation != "" {
			return status.Installation, keepText(path, status.Installation)
		}
		if err == nil {
			return "", fmt.Errorf("who answers at %s is no `kuryr sdn`: it has no store", c.Admin.Socket)
		}
		kept, missing := os.ReadFile(path)
		if missing == nil {
			return strings.TrimSpace(string(kept)), nil
		}
		if !errors.Is(missing, fs.ErrNotExist) {
			return "", missing
		}
		reason := oneLine(err)
		if admin.IsNotRunning(err) { // whose words are about `kuryr up`
			reason = "nothing answers at " + c.Admin.Socket
		}
		if !told {
			log.Info("waiting for `kuryr sdn`", "reason", reason)
			told = true
		}
		if backoff.Sleep(ctx, sharedPause) != nil {
			return "", fmt.Errorf("`kuryr sdn` has not come: %s", reason)
		}
	}
}

// keepText writes a line into a file, unless it is there.
func keepText(path, text string) error {
	if kept, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(kept)) == text {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return writeFile(path, func(w io.Writer) error { _, err := io.WriteString(w, text+"\n"); return err })
}
