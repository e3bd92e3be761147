//go:build linux && kubernetes

package main

import (
	"errors"
	"fmt"

	"github.com/kuryr/kuryr/internal/config"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/spf13/cobra"
	_ "golang.org/x/crypto/x509roots/fallback" // the authorities, where the system has none: an image from scratch
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// loadRaven reads the configuration with the peer's file of its controller in place of that of its Docker plugin.
func (a *app) loadRaven(c *cobra.Command) (config.Config, error) {
	return a.loadWith(c, config.RavenPath)
}

// restConfig is how the API server is reached.
func restConfig(k config.Kubernetes) (*rest.Config, error) {
	var c *rest.Config
	var err error
	switch {
	case k.APIServer != "":
		c = &rest.Config{Host: k.APIServer, BearerTokenFile: k.TokenFile, TLSClientConfig: rest.TLSClientConfig{CAFile: k.CAFile, CertFile: k.CertFile, KeyFile: k.KeyFile, Insecure: k.Insecure}}
	case k.Kubeconfig != "":
		c, err = clientcmd.BuildConfigFromFlags("", k.Kubeconfig)
	default:
		if c, err = rest.InClusterConfig(); errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("this is no pod with a service account: kubernetes.kubeconfig or kubernetes.api_server tells how Kubernetes is reached")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	c.QPS, c.Burst = -1, 0 // the API server shares itself out by priority and fairness
	c.UserAgent = "kuryr/" + version
	if err := rereadToken(c); err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	return c, nil
}

// rereadToken has the token's file read anew as soon as the API server refuses what was read. client-go by itself goes on with a refused token for most of a minute, also where there is a new one.
func rereadToken(c *rest.Config) error {
	if c.BearerTokenFile == "" {
		return nil
	}
	source := transport.NewCachedFileTokenSource(c.BearerTokenFile)
	if _, err := source.Token(); err != nil {
		return err
	}
	c.Wrap(transport.ResettableTokenSourceWrapTransport(source))
	c.BearerToken, c.BearerTokenFile = "", ""
	return nil
}

// cluster gives the way to the API server: as the configuration says, else as kubectl goes.
func (a *app) cluster(c *cobra.Command) (client.Client, error) {
	return a.clusterClocked(c, new(serverClock))
}

// clusterClocked has a clock look at the answers.
func (a *app) clusterClocked(c *cobra.Command, clock *serverClock) (client.Client, error) {
	cfg, err := a.loadRaven(c)
	if err != nil {
		return nil, err
	}
	kube, err := restConfig(cfg.Kubernetes)
	if cfg.Kubernetes == (config.Kubernetes{}) && err != nil {
		var rest *rest.Config
		rest, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
		kube = rest
	}
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	clock.watch(kube)
	return client.New(kube, client.Options{Scheme: scheme})
}
