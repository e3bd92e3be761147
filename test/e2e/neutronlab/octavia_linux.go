package neutronlab

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
	return writeFile(l.Central, "octavia/octavia.conf", strings.NewReplacer(
		"@dir@", dir, "@database@", database("octavia"), "@keystone@", KeystoneURL, "@neutron@", Endpoint, "@octavia@", OctaviaURL).Replace(octaviaConf))
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

// StartOctavia starts Octavia's API and its driver agent, with OVN's provider, and returns when the API answers. Neutron and OVN must answer.
func (l *Lab) StartOctavia(ctx context.Context) error {
	conf, err := l.octaviaFiles()
	if err != nil {
		return err
	}
	if err := l.StartOctaviaAgent(ctx); err != nil {
		return err
	}
	l.octavia.api, err = l.Central.StartService(ctx, "octavia", nil,
		[]string{"/usr/bin/python3", filepath.Join(filepath.Dir(conf), "serve.py"), conf, Management.Addr().String(), "9876"},
		listens(l.Central, "tcp", Management.Addr().String()+":9876"))
	return err
}

// StartOctaviaAgent starts the driver agent, which tells Octavia what has become of load balancers.
func (l *Lab) StartOctaviaAgent(ctx context.Context) (err error) {
	conf := filepath.Join(l.Central.Dir(), "octavia", "octavia.conf")
	l.octavia.agent, err = l.Central.StartService(ctx, "octavia-driver-agent", nil, []string{"octavia-driver-agent", "--config-file", conf},
		listens(l.Central, "unix", "/run/octavia/status.sock"))
	return err
}

// StopOctaviaAgent ends the driver agent: load balancers that change stay in PENDING until it is back.
func (l *Lab) StopOctaviaAgent() error {
	return l.octavia.agent.Stop(syscall.SIGKILL, stopLimit)
}

// PauseOctaviaAgent stops the driver agent where it is, until ResumeOctaviaAgent.
func (l *Lab) PauseOctaviaAgent() error { return syscall.Kill(-l.octavia.agent.Pid(), syscall.SIGSTOP) }

// ResumeOctaviaAgent ends what PauseOctaviaAgent began.
func (l *Lab) ResumeOctaviaAgent() error {
	return syscall.Kill(-l.octavia.agent.Pid(), syscall.SIGCONT)
}

// StopOctavia ends Octavia's API.
func (l *Lab) StopOctavia(sig syscall.Signal) error { return l.octavia.api.Stop(sig, stopLimit) }

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

// LoadBalancers are Octavia's, all projects'.
func (l *Lab) LoadBalancers(ctx context.Context) ([]Object, error) {
	var answer struct{ Loadbalancers []Object }
	err := l.Octavia(ctx, http.MethodGet, "loadbalancers", nil, &answer)
	return answer.Loadbalancers, err
}

// SetState makes a load balancer's state of provisioning another in Octavia's database, which nothing else can: so it is stuck, or broken.
func (l *Lab) SetState(ctx context.Context, balancer, state string) error {
	return run(ctx, l.Central, []string{"mariadb", "--no-defaults", "-uroot", "-S", databaseSocket, "octavia", "-e",
		fmt.Sprintf("UPDATE load_balancer SET provisioning_status='%s' WHERE id='%s'", state, balancer)})
}
