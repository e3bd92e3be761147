package neutronlab

import (
	"context"
	_ "embed"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Endpoint is Neutron's, as the hosts reach it.
var Endpoint = "http://" + Management.Addr().String() + ":9696"

//go:embed neutron.conf
var neutronConf string

// neutronFiles writes Neutron's configuration and returns the path of neutron.conf.
func (l *Lab) neutronFiles() (string, error) {
	dir := filepath.Join(l.Central.Dir(), "neutron")
	for _, d := range []string{"state", "lock", "policy.d"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return "", err
		}
	}
	paste, err := os.ReadFile("/usr/share/neutron-common/api-paste.ini")
	if err != nil {
		return "", err
	}
	auth, policy := "noauth", ""
	if l.opts.Keystone {
		rules, err := ManualPolicy()
		if err != nil {
			return "", err
		}
		auth, policy = "keystone", strings.Join(rules, "\n")
	}
	values := []string{"@dir@", dir, "@database@", database("neutron"), "@auth@", auth, "@keystone@", KeystoneURL}
	if l.opts.Least {
		values = append(
			values, "ovn-router,trunk,qos,segments,port_forwarding", "ovn-router",
			"port_security,qos,dns", "port_security,dns",
		)
	}
	if len(l.opts.Agents) > 0 {
		values = append(values, agentValues...)
	}
	for name, text := range map[string]string{
		"api-paste.ini": string(paste),
		"policy.yaml":   policy,
		"neutron.conf":  strings.NewReplacer(values...).Replace(neutronConf),
	} {
		if _, err := writeFile(l.Central, filepath.Join("neutron", name), text); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "neutron.conf"), nil
}

func (l *Lab) migrateNeutron(ctx context.Context) error {
	conf, err := l.neutronFiles()
	if err != nil {
		return err
	}
	if err := l.createDatabase(ctx, "neutron"); err != nil {
		return err
	}
	return run(ctx, l.Central, []string{"neutron-db-manage", "--config-file", conf, "upgrade", "heads"})
}

// StartNeutron starts neutron-server and returns when its API answers.
func (l *Lab) StartNeutron(ctx context.Context) error {
	conf, err := l.neutronFiles()
	if err != nil {
		return err
	}
	client := l.HTTP()
	l.neutron, err = l.Central.StartService(ctx, "neutron", nil, []string{
		"neutron-server", "--config-file", conf,
	}, func(ctx context.Context) bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, Endpoint+"/v2.0/networks?fields=id", nil)
		if err != nil {
			return false
		}
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK || l.opts.Keystone && resp.StatusCode == http.StatusUnauthorized
	})
	return err
}

// StopNeutron ends neutron-server and its workers with sig.
func (l *Lab) StopNeutron(sig syscall.Signal) error { return l.neutron.Stop(sig, stopLimit) }

// PauseNeutron stops neutron-server as a machine out of memory would: connections are accepted, and nothing answers,
// until ResumeNeutron.
func (l *Lab) PauseNeutron() error { return syscall.Kill(-l.neutron.Pid(), syscall.SIGSTOP) }

// ResumeNeutron ends what PauseNeutron began.
func (l *Lab) ResumeNeutron() error { return syscall.Kill(-l.neutron.Pid(), syscall.SIGCONT) }
