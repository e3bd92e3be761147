//go:build linux

package api

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/kuryr/kuryr/kube/cni"
	"go.yaml.in/yaml/v3"
)

// documented is where the flat-mode design puts the configuration with the token.
var documented = "/usr/libexec/kubernetes/kubelet-plugins/net/exec/10-kuryr.conf"

// kubeconfigs are where the kubelet has its own: kubeadm's, its default, k3s' and
// MicroK8s'.
var kubeconfigs = []string{
	"/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/kubeconfig",
	"/var/lib/rancher/k3s/agent/kubelet.kubeconfig", "/var/snap/microk8s/current/credentials/kubelet.config",
}

// access is how the API is reached.
type access struct {
	server string
	ca     []byte // PEM; nil trusts the system's
	token  string
}

// accessOf takes from the configuration how the API is reached. What it does not say
// comes from the documented file, and the server and its CA from the kubelet's
// kubeconfig. The error is cni.ErrNoAPI where nothing names a token or a server.
func accessOf(conf cni.Config) (a access, err error) {
	if conf.APIToken == "" && conf.APITokenFile == "" {
		if conf, err = withDocumented(conf); err != nil {
			return a, err
		}
	}
	if conf.APIToken == "" && conf.APITokenFile == "" && conf.APIServer == "" {
		return a, cni.ErrNoAPI
	}
	if a.token, err = tokenOf(conf); err != nil {
		return a, err
	}
	if conf.APIServer == "" {
		if err := a.ofKubelet(); err != nil {
			return a, err
		}
	}
	a.server = cmp.Or(conf.APIServer, a.server)
	if conf.APICA != "" {
		if a.ca, err = os.ReadFile(conf.APICA); err != nil {
			return a, cni.IOFailure.Errorf("api_ca: %v", err)
		}
	}
	return a, nil
}

// withDocumented adds the token of the documented file, and its server and CA where the
// configuration names none. An absent file adds nothing.
func withDocumented(conf cni.Config) (cni.Config, error) {
	data, err := os.ReadFile(documented)
	if errors.Is(err, fs.ErrNotExist) {
		return conf, nil
	}
	var file cni.Config
	if err == nil {
		err = json.Unmarshal(data, &file)
	}
	if err != nil {
		return conf, cni.IOFailure.Errorf("%s: %v", documented, err)
	}
	conf.APIToken, conf.APITokenFile = file.APIToken, file.APITokenFile
	conf.APIServer = cmp.Or(conf.APIServer, file.APIServer)
	conf.APICA = cmp.Or(conf.APICA, file.APICA)
	return conf, nil
}

// kubeconfig has the fields of a kubeconfig that are read.
type kubeconfig struct {
	Current  string `yaml:"current-context"`
	Contexts []struct {
		Name    string
		Context struct{ Cluster string }
	}
	Clusters []struct {
		Name    string
		Cluster struct {
			Server string
			CA     string `yaml:"certificate-authority"`
			CAData string `yaml:"certificate-authority-data"`
		}
	}
}

// ofKubelet takes the server and its CA from the first kubeconfig of the kubelet that
// exists.
func (a *access) ofKubelet() error {
	for _, path := range kubeconfigs {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = a.read(data)
		}
		if err != nil {
			return cni.BadConfig.Errorf("api_server: missing, and kubeconfig %s: %v", path, err)
		}
		return nil
	}
	return cni.BadConfig.Errorf("api_server: missing, and the kubelet has no kubeconfig (%s)", strings.Join(kubeconfigs, ", "))
}

func (a *access) read(data []byte) error {
	var k kubeconfig
	if err := yaml.Unmarshal(data, &k); err != nil {
		return err
	}
	name := ""
	for _, c := range k.Contexts {
		if c.Name == k.Current {
			name = c.Context.Cluster
		}
	}
	for _, c := range k.Clusters {
		if c.Name != name {
			continue
		}
		if !strings.HasPrefix(c.Cluster.Server, "https://") {
			return errors.New("server does not begin with https://")
		}
		a.server = c.Cluster.Server
		var err error
		switch {
		case c.Cluster.CAData != "":
			a.ca, err = base64.StdEncoding.DecodeString(c.Cluster.CAData)
		case c.Cluster.CA != "":
			a.ca, err = os.ReadFile(c.Cluster.CA)
		}
		return err
	}
	return errors.New("its current context has no cluster")
}
