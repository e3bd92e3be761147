package kubelab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
)

// stream is the URL of a stream of a pod.
func (c *Cluster) stream(namespace, pod, of string, options *corev1.PodExecOptions) *url.URL {
	r := c.Client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(pod).SubResource(of)
	if options != nil {
		r = r.VersionedParams(options, scheme.ParameterCodec)
	}
	return r.URL()
}

// Exec runs a command in a pod's first container by the API server, and returns what it wrote to its standard output.
func (c *Cluster) Exec(ctx context.Context, namespace, pod string, argv ...string) (string, error) {
	to := c.stream(namespace, pod, "exec", &corev1.PodExecOptions{Command: argv, Stdout: true, Stderr: true})
	executor, err := remotecommand.NewWebSocketExecutor(c.Config, http.MethodGet, to.String())
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
		return "", fmt.Errorf("%s in %s/%s: %w\n%s%s", strings.Join(argv, " "), namespace, pod, err, &stdout, &stderr)
	}
	return strings.TrimSpace(stdout.String()), nil
}

// PodLog is what a pod's first container has written.
func (c *Cluster) PodLog(ctx context.Context, namespace, pod string) (string, error) {
	text, err := c.Client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(ctx)
	return string(text), err
}

// Forward gives an address on the machine's loopback from which connections go to a pod's port, until stop is called.
func (c *Cluster) Forward(
	ctx context.Context, namespace, pod string, port int,
) (address string, stop func(), err error) {
	transport, upgrader, err := spdy.RoundTripperFor(c.Config)
	if err != nil {
		return "", nil, err
	}
	dialer := spdy.NewDialer(
		upgrader, &http.Client{Transport: transport}, http.MethodPost,
		c.stream(namespace, pod, "portforward", nil),
	)
	done, ready, failed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.NewOnAddresses(
		dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, done, ready, io.Discard,
		io.Discard,
	)
	if err != nil {
		return "", nil, err
	}
	go func() { failed <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-failed:
		return "", nil, fmt.Errorf("forward to %s/%s: %w", namespace, pod, err)
	case <-ctx.Done():
		close(done)
		return "", nil, ctx.Err()
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		close(done)
		return "", nil, err
	}
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(ports[0].Local)), func() { close(done) }, nil
}
