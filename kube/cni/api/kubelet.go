//go:build linux

package api

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

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
	limit  time.Duration // of one ADD or STATUS
}

// accessOf takes from the configuration how the API is reached. What it does not say
// comes from the documented file, and the server and its CA, each if it is missing, from
// the kubelet's kubeconfig. The error is cni.ErrNoAPI where nothing names a token or a
// server.
func accessOf(conf cni.Config) (a access, err error) {
	if conf.APIToken == "" && conf.APITokenFile == "" {
		if conf, err = withDocumented(conf); err != nil {
			return a, err
		}
	}
	if conf.APIToken == "" && conf.APITokenFile == "" && conf.APIServer == "" {
		return a, cni.ErrNoAPI
	}
	a.limit = cmp.Or(time.Duration(conf.APITimeout)*time.Second, defaultWait)
	if a.token, err = tokenOf(conf); err != nil {
		return a, err
	}
	a.server = conf.APIServer
	if conf.APICA != "" {
		if a.ca, err = readFile(conf.APICA); err != nil {
			return a, cni.IOFailure.Errorf("api_ca: %v", err)
		}
	}
	if a.server == "" || a.ca == nil {
		return a, a.ofKubelet()
	}
	return a, nil
}

// withDocumented adds the token of the documented file, and its server, CA and timeout
// where the configuration names none. An absent file adds nothing. The file is checked as
// the configuration is.
func withDocumented(conf cni.Config) (cni.Config, error) {
	data, err := readFile(documented)
	if errors.Is(err, fs.ErrNotExist) {
		return conf, nil
	}
	if err != nil {
		return conf, cni.IOFailure.Errorf("%v", err)
	}
	file, err := cni.ParseConfig(cni.Add, data)
	if err != nil {
		e := cni.AsError(err)
		return conf, cni.KindOf(e.Code).Errorf("%s: %s", documented, e.Details)
	}
	conf.APIToken, conf.APITokenFile = file.APIToken, file.APITokenFile
	conf.APIServer = cmp.Or(conf.APIServer, file.APIServer)
	conf.APICA = cmp.Or(conf.APICA, file.APICA)
	conf.APITimeout = cmp.Or(conf.APITimeout, file.APITimeout)
	return conf, nil
}

// readFile reads a regular file of at most cni.MaxInput bytes. The error names the path.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path) // before it is opened: opening a pipe waits for its writer
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, cni.MaxInput+1))
	if err == nil && len(data) > cni.MaxInput {
		err = fmt.Errorf("%s: more than %d bytes", path, cni.MaxInput)
	}
	return data, err
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
		Cluster cluster
	}
}

// cluster is a cluster of a kubeconfig.
type cluster struct {
	Server string
	CA     string `yaml:"certificate-authority"`
	CAData string `yaml:"certificate-authority-data"`
}

// ofKubelet fills in what is missing from the first kubeconfig of the kubelet that exists.
// Its CA is that of its own server alone: another server keeps the system's.
func (a *access) ofKubelet() error {
	path, c, err := kubeletCluster()
	if err != nil {
		if a.server != "" {
			return nil
		}
		return cni.BadConfig.Errorf("api_server: missing, and %v", err)
	}
	if a.server == "" {
		a.server = c.Server
	}
	if a.ca != nil || strings.TrimSuffix(a.server, "/") != strings.TrimSuffix(c.Server, "/") {
		return nil
	}
	if a.ca, err = c.authority(filepath.Dir(path)); err != nil {
		return cni.BadConfig.Errorf("api_ca: missing, and kubeconfig %s: %v", path, err)
	}
	return nil
}

// kubeletCluster reads the first kubeconfig of the kubelet that exists, and returns its
// path and the cluster of its current context.
func kubeletCluster() (string, cluster, error) {
	for _, path := range kubeconfigs {
		data, err := readFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var c cluster
		if err == nil {
			c, err = currentCluster(data)
		}
		if err != nil {
			err = fmt.Errorf("kubeconfig %s: %w", path, err)
		}
		return path, c, err
	}
	return "", cluster{}, fmt.Errorf("the kubelet has no kubeconfig (%s)", strings.Join(kubeconfigs, ", "))
}

func currentCluster(data []byte) (cluster, error) {
	var k kubeconfig
	if err := yaml.Unmarshal(data, &k); err != nil {
		return cluster{}, err
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
			return cluster{}, errors.New("server does not begin with https://")
		}
		return c.Cluster, nil
	}
	return cluster{}, errors.New("its current context has no cluster")
}

// authority is the cluster's CA in PEM; nil is the system's. A relative path begins at
// the kubeconfig's folder.
func (c cluster) authority(folder string) ([]byte, error) {
	switch {
	case c.CAData != "":
		return base64.StdEncoding.DecodeString(c.CAData)
	case c.CA == "":
		return nil, nil
	case filepath.IsAbs(c.CA):
		return readFile(c.CA)
	}
	return readFile(filepath.Join(folder, c.CA))
}
