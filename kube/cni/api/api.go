//go:build linux

// Package api is the third way of kuryr-cni, where no daemon runs: it asks the Kubernetes API itself, with the token of its configuration, which port the pod has been given,
// and binds that.
//
// It owns the wait for the pod's annotation and the proof that the KuryrPort it names is that pod's. It links net/http and TLS but no Kubernetes library, and is not in
// kuryr-cni but in a program beside it. It must not claim a port nor write anything to the API: where no daemon runs, Raven is the claimant.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/kube/cni/static"
	"github.com/kuryr/kuryr/kube/portspec"
)

const (
	annotation = "openstack.org/kuryr-vif"
	mirrorOf   = "kubernetes.io/config.mirror" // on a static pod's object: the UID that the kubelet knows it by
	portPath   = "/apis/openstack.org/v1/kuryrports/"

	defaultWait = 10 * time.Second
	maxAnswer   = 1 << 20 // bytes
)

// pause is the time between two questions whether the port is there yet. The flat-mode design asks each half second; a watch would need a right more.
var pause = 500 * time.Millisecond

// pod and port are what is read of the API's objects.
type pod struct {
	Metadata struct {
		UID         string
		Annotations map[string]string
	}
}

type port struct {
	Metadata struct{ Name string }
	Spec     portspec.Spec
	Status   struct {
		Pod *struct{ UID, Interface string }
	}
}

// errNotYet says that the pod has no port so far.
var errNotYet = errors.New("the pod has no port yet")

// Do is what kuryr-cni does by way of the API: Add, and Status.
func Do(ctx context.Context, c cni.Call, conf cni.Config, folder *static.Bindings) ([]byte, error) {
	if c.Verb == cni.Status {
		return nil, Status(ctx, conf)
	}
	return Add(ctx, c, conf, folder)
}

// Status tells whether pods could be added: the API answers and knows the token. Whether a pod will have a port is Raven's to say, of each.
func Status(ctx context.Context, conf cni.Config) error {
	client, err := newClient(conf)
	if errors.Is(err, cni.ErrNoAPI) {
		return err
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, client.limit)
		defer cancel()
		err = client.get(ctx, "/version", new(struct{}))
	}
	if err != nil {
		return cni.NotReady.Errorf("%s", cni.AsError(err).Details)
	}
	return nil
}

// Add waits for the pod's port and binds it. Errors: cni.ErrNoAPI where nothing names an
// API server; BadEnvironment without a pod in CNI_ARGS; NotFound for a pod that is not
// there, or another of its name; Denied for a token that is refused; TimedOut where the
// port has not come, Unavailable where the API has not answered in that time.
func Add(ctx context.Context, c cni.Call, conf cni.Config, folder *static.Bindings) ([]byte, error) {
	client, err := newClient(conf)
	if err != nil {
		return nil, err
	}
	args, err := cni.ParseArgs(c.Args)
	if err != nil {
		return nil, err
	}
	if args.PodNamespace == "" || args.PodName == "" {
		return nil, cni.BadEnvironment.Errorf("CNI_ARGS: K8S_POD_NAMESPACE and K8S_POD_NAME: are missing, and no daemon runs")
	}
	if field := conf.Beyond(); field != "" {
		return nil, cni.UnsupportedField.Errorf("%s: no daemon runs, and the pod's port is bound as it is", field)
	}
	found, err := client.wait(ctx, args, c.Interface)
	if err != nil {
		return nil, err
	}
	bound, err := found.bound()
	if err != nil {
		return nil, err
	}
	bound.Container, bound.Interface, bound.Namespace, bound.Network = c.Container, c.Interface, c.Namespace, conf.Name
	if bound, err = folder.BindPort(ctx, bound); err != nil {
		return nil, err
	}
	return cni.Encode(bound.Plugged().Result(), conf.CNIVersion)
}

// wait asks until the pod has its port, as long as the client's limit.
func (c *client) wait(ctx context.Context, args cni.Args, iface string) (port, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	last := error(cni.Unavailable.Errorf("%s has not answered in %s", c.server, c.limit))
	for {
		found, err := c.find(ctx, args, iface)
		if err == nil {
			return found, nil
		}
		if !errors.Is(err, errNotYet) && cni.AsError(err).Code != cni.Unavailable.Code {
			return found, err
		}
		if ctx.Err() == nil { // one that was cut off says nothing
			last = err
		}
		if backoff.Sleep(ctx, pause) == nil {
			continue
		}
		if !errors.Is(last, errNotYet) {
			return found, last
		}
		return found, cni.TimedOut.Errorf("pod %s/%s has no port after %s: does Raven (kuryr controller) run?",
			args.PodNamespace, args.PodName, c.limit)
	}
}

// find gives the port that the pod's annotation names, if it is that pod's by its own status, which users cannot write.
func (c *client) find(ctx context.Context, args cni.Args, iface string) (found port, err error) {
	var p pod
	if err := c.get(ctx, "/api/v1/namespaces/"+url.PathEscape(args.PodNamespace)+"/pods/"+url.PathEscape(args.PodName), &p); err != nil {
		return found, err
	}
	if args.PodUID != "" && args.PodUID != p.Metadata.UID && args.PodUID != p.Metadata.Annotations[mirrorOf] {
		return found, cni.NotFound.Errorf("pod %s/%s of UID %s: there is another of this name", args.PodNamespace, args.PodName, args.PodUID)
	}
	name := portOf(p.Metadata.Annotations[annotation], iface)
	if name == "" {
		return found, errNotYet
	}
	if err := c.get(ctx, portPath+url.PathEscape(name), &found); err != nil {
		if cni.AsError(err).Code == cni.NotFound.Code {
			return found, errNotYet // the annotation is of before
		}
		return found, err
	}
	if of := found.Status.Pod; of == nil || p.Metadata.UID == "" || of.UID != p.Metadata.UID || of.Interface != iface {
		return found, errNotYet // written by hand, or of before
	}
	return found, nil
}

// portOf reads the annotation in the form that Kuryr writes; anything else names no port.
func portOf(text, iface string) string {
	var all map[string]json.RawMessage
	var one struct {
		Data struct {
			SelfLink string `json:"selfLink"`
		} `json:"versioned_object.data"`
	}
	if json.Unmarshal([]byte(text), &all) != nil || json.Unmarshal(all[iface], &one) != nil {
		return ""
	}
	name, ok := strings.CutPrefix(one.Data.SelfLink, portPath)
	if !ok || name == "" || strings.ContainsAny(name, "/%?#") || strings.Trim(name, ".") == "" {
		return ""
	}
	return name
}

// bound is the port in the SDN's words.
func (p port) bound() (static.Binding, error) {
	has, subnets, err := p.Spec.Port()
	if err != nil {
		return static.Binding{}, cni.Undecodable.Errorf("KuryrPort %s: %v", p.Metadata.Name, err)
	}
	return static.Binding{Port: has, MTU: p.Spec.Network.MTU, Subnets: subnets}, nil
}

// client asks the API.
type client struct {
	server string
	token  string
	limit  time.Duration // of one ADD or STATUS
	http   *http.Client
}
