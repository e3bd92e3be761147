//go:build linux

package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/kuryr/kuryr/kube/cni"
)

// configurations are where a configuration with a token may lie: the flat-mode design's file, and the runtimes' folder, which k3s and MicroK8s have elsewhere.
var configurations = []string{
	"/usr/libexec/kubernetes/kubelet-plugins/net/exec/*.conf", "/etc/cni/net.d/*.conf*",
	"/var/lib/rancher/k3s/agent/etc/cni/net.d/*.conf*", "/var/snap/microk8s/current/args/cni-network/*.conf*",
}

// newClient makes a client of the API that the configuration leads to.
func newClient(conf cni.Config) (*client, error) {
	a, err := accessOf(conf)
	if err != nil {
		return nil, err
	}
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.ca != nil {
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(a.ca) {
			return nil, cni.BadConfig.Errorf("api_ca: no certificate for %s", a.server)
		}
	}
	transport := &http.Transport{TLSClientConfig: trust}
	server := strings.TrimSuffix(a.server, "/")
	return &client{server, a.token, a.limit, &http.Client{Transport: transport}}, nil
}

// tokenOf reads the token, which only its owner may be able to read.
func tokenOf(conf cni.Config) (string, error) {
	token := conf.APIToken
	switch {
	case token != "" && conf.APITokenFile != "":
		return "", cni.BadConfig.Errorf("api_token: and api_token_file are both given")
	case token == "" && conf.APITokenFile == "":
		return "", cni.BadConfig.Errorf("api_token_file: is missing, and so is api_token")
	case token != "":
		return token, ownersAlone(token)
	}
	if err := checkMode(conf.APITokenFile); err != nil {
		return "", cni.BadConfig.Errorf("api_token_file: %v", err)
	}
	text, err := readFile(conf.APITokenFile)
	if err != nil {
		return "", cni.IOFailure.Errorf("api_token_file: %v", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// ownersAlone refuses a token in a configuration that others can read, or may be able to: it lies where nobody looks.
func ownersAlone(token string) error {
	found := false
	for _, pattern := range configurations {
		paths, _ := filepath.Glob(pattern) // the patterns are right
		for _, path := range paths {
			text, err := readFile(path)
			if err != nil || !strings.Contains(string(text), token) {
				continue
			}
			if err := checkMode(path); err != nil {
				return cni.BadConfig.Errorf("api_token: %v", err)
			}
			found = true
		}
	}
	if !found {
		return cni.BadConfig.Errorf("api_token: no file with it is in the usual folders, so who can read it is not known: put it into a file of its own, and name that with api_token_file")
	}
	return nil
}

// checkMode wants a file that is its owner's alone.
func checkMode(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s has mode %04o: others can read the token; make it 0600", path, info.Mode().Perm())
	}
	return nil
}

// get reads an object. No error shows the token.
func (c *client) get(ctx context.Context, path string, v any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server+path, nil)
	if err != nil {
		return cni.BadConfig.Errorf("api_server: %v", err)
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	request.Header.Set("Accept", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return cni.Unavailable.Errorf("%v", err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return cni.NotFound.Errorf("%s: Kubernetes has none", path)
	case http.StatusUnauthorized, http.StatusForbidden:
		return cni.Denied.Errorf("%s: Kubernetes answers %s: is the token right, and of service account kuryr-cni?", path, response.Status)
	default:
		return cni.Unavailable.Errorf("%s: Kubernetes answers %s", path, response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(v); err != nil {
		return cni.Undecodable.Errorf("%s: %v", path, err)
	}
	return nil
}
