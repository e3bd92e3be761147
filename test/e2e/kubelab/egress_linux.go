package kubelab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// egress is how the API server reaches kubelets and pods with Options.Egress: by CONNECT
// to a socket, from which the first node connects. It stands for Konnectivity's agent,
// since the control plane's host is no node and has no way to pods.
type egress struct {
	server *http.Server
	flag   string // of kube-apiserver
}

// newEgress listens at socket; dial connects from a node. The API server's configuration is written beside the socket.
func newEgress(socket string, dial func(ctx context.Context, address string) (net.Conn, error)) (*egress, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	config := socket + ".yaml"
	text := fmt.Sprintf("apiVersion: apiserver.k8s.io/v1beta1\nkind: "+
		"EgressSelectorConfiguration\negressSelections:\n- name: cluster\n"+
		"  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %q}}}\n", socket)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	e := &egress{flag: "--egress-selector-config-file=" + config, server: &http.Server{
		ReadHeaderTimeout: 10 * time.Second, Handler: connects(dial),
	}}
	go func() { _ = e.server.Serve(listener) }()
	return e, nil
}

// Close ends it; what is connected goes on until either side ends it.
func (e *egress) Close() { _ = e.server.Close() }

// connects answers CONNECT with a connection that dial makes, and all else with an error.
func connects(dial func(ctx context.Context, address string) (net.Conn, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "only CONNECT is served", http.StatusMethodNotAllowed)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
		defer cancel()
		to, err := dial(ctx, r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer to.Close()
		from, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer from.Close()
		if _, err := io.WriteString(from, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
			return
		}
		var both sync.WaitGroup
		both.Go(func() { pass(to, buffered) })
		both.Go(func() { pass(from, to) })
		both.Wait()
	}
}

// pass copies until the source ends, and tells the other side of it.
func pass(to net.Conn, from io.Reader) {
	_, _ = io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
