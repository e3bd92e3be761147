package neutronlab

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/tlsfiles"
)

// OctaviaURL is Octavia's, as the hosts reach it. Its API is at Octavia's own path, /v2/lbaas.
var OctaviaURL = "http://" + Management.Addr().String() + ":9876"

//go:embed octavia.conf
var octaviaConf string

//go:embed octavia-serve.py
var octaviaServe string

// balancerRole is the role that Octavia wants of who makes load balancers.
const balancerRole = "load-balancer_member"

// octaviaFiles writes Octavia's configuration and returns the path of octavia.conf.
func (l *Lab) octaviaFiles() (string, error) {
	dir := filepath.Join(l.Central.Dir(), "octavia")
	// octavia-lib looks for the driver agent's sockets in a folder of its own choice.
	for _, d := range []string{filepath.Join(dir, "policy.d"), l.Central.Path("/run/octavia")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", err
		}
	}
	if _, err := writeFile(l.Central, "octavia/serve.py", octaviaServe); err != nil {
		return "", err
	}
	providers := "ovn:OVN"
	if l.opts.Amphora {
		providers += ",amphora:amphorae without machines"
		// The authority of amphorae's certificates.
		if err := tlsfiles.IssueServer(
			filepath.Join(dir, "certificates"), []string{"octavia"}, time.Now(),
		); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return writeFile(l.Central, "octavia/octavia.conf", strings.NewReplacer(
		"@dir@", dir, "@providers@", providers, "@database@", database("octavia"),
		"@keystone@", KeystoneURL, "@neutron@", Endpoint, "@octavia@", OctaviaURL,
	).Replace(octaviaConf))
}

func (l *Lab) migrateOctavia(ctx context.Context) error {
	conf, err := l.octaviaFiles()
	if err != nil {
		return err
	}
	if err := l.createDatabase(ctx, "octavia"); err != nil {
		return err
	}
	return run(ctx, l.Central, []string{"octavia-db-manage", "--config-file", conf, "upgrade", "head"})
}

// StartOctavia starts Octavia's API, the driver agent of OVN's provider and, where the lab has it,
// amphora's worker. Where Neutron does not ask Keystone, it starts Keystone first: Octavia needs it.
// It returns when the API answers. Neutron and OVN must answer. In a lab whose Neutron asks
// Keystone, New does this.
func (l *Lab) StartOctavia(ctx context.Context) error {
	if !l.opts.Keystone {
		if err := l.StartKeystone(ctx); err != nil {
			return err
		}
	}
	conf, err := l.octaviaFiles()
	if err != nil {
		return err
	}
	// A connection to the agent that says nothing has one of its processes read it for good, with all of a processor.
	listening := func(context.Context) bool {
		_, err := os.Stat(l.Central.Path("/run/octavia/status.sock"))
		return err == nil
	}
	_, err = l.Central.StartService(
		ctx, "octavia-driver-agent", nil, []string{"octavia-driver-agent", "--config-file", conf},
		listening,
	)
	if err != nil {
		return err
	}
	_, err = l.Central.StartService(ctx, "octavia", nil,
		[]string{"/usr/bin/python3", filepath.Join(filepath.Dir(conf), "serve.py"), conf, Management.Addr().String(), "9876"},
		listens(l.Central, "tcp", Management.Addr().String()+":9876"))
	return err
}

// Octavia asks Octavia as its administrator: a path below /v2/lbaas.
func (l *Lab) Octavia(ctx context.Context, method, path string, body, into any) error {
	token, err := l.adminToken(ctx)
	if err != nil {
		return err
	}
	if _, err = l.request(ctx, method, OctaviaURL+"/v2/lbaas/"+path, token, body, into); err != nil {
		return fmt.Errorf("%s %s of Octavia: %w", method, path, err)
	}
	return nil
}

// SetState makes a load balancer's state of provisioning another in Octavia's database,
// which nothing else can: so it is stuck, or broken.
func (l *Lab) SetState(ctx context.Context, balancer, state string) error {
	return run(ctx, l.Central, []string{"mariadb", "--no-defaults", "-uroot", "-S", databaseSocket, "octavia", "-e",
		fmt.Sprintf("UPDATE load_balancer SET provisioning_status='%s' WHERE id='%s'", state, balancer)})
}
