package kubelab

import (
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func TestAuthority(t *testing.T) {
	t.Parallel()
	a, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	verify := func(p pair, name string, use x509.ExtKeyUsage) (*x509.Certificate, error) {
		t.Helper()
		both, err := tls.X509KeyPair(p.cert, p.key)
		if err != nil {
			t.Fatal(err)
		}
		_, err = both.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{use}})
		return both.Leaf, err
	}
	server, err := a.server("node1", []string{"node1"}, "192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	for name, good := range map[string]bool{"node1": true, "192.0.2.1": true, "node2": false} {
		if _, err := verify(server, name, x509.ExtKeyUsageServerAuth); (err == nil) != good {
			t.Errorf("the server's certificate for %s: %v", name, err)
		}
	}
	client, err := a.client("system:node:node1", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	cert, err := verify(client, "", x509.ExtKeyUsageClientAuth)
	if err != nil || cert.Subject.CommonName != "system:node:node1" ||
		len(cert.Subject.Organization) != 1 || cert.Subject.Organization[0] != "system:nodes" {
		t.Errorf("the client's certificate is %v's, %v", cert.Subject, err)
	}
	if _, err := verify(client, "", x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("a client's certificate serves for a server")
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := a.kubeconfig(file, "https://192.0.2.254:6443", client); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil || config.Host != "https://192.0.2.254:6443" ||
		string(config.CertData) != string(client.cert) || string(config.CAData) != string(a.pem) {
		t.Errorf("read back: %v, %v", config, err)
	}
}
