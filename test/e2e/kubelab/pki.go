package kubelab

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// authority signs the certificates of a cluster; they live for a day.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// pair is a certificate with its key, both in PEM.
type pair struct{ cert, key []byte }

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := template("kuryr test cluster")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert, key, block("CERTIFICATE", der)}, nil
}

// client is the certificate of a user and the groups he is in.
func (a *authority) client(user string, groups ...string) (pair, error) {
	t := template(user)
	t.Subject.Organization = groups
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(t)
}

// server is the certificate of a server reached by names and addresses.
func (a *authority) server(name string, names []string, addresses ...string) (pair, error) {
	t := template(name)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	t.DNSNames = names
	for _, address := range addresses {
		t.IPAddresses = append(t.IPAddresses, net.ParseIP(address))
	}
	return a.sign(t)
}

func (a *authority) sign(t *x509.Certificate) (pair, error) {
	key, private, err := newKey()
	if err != nil {
		return pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return pair{}, err
	}
	return pair{block("CERTIFICATE", der), private}, nil
}

func newKey() (key crypto.Signer, text []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(private)
	return private, block("EC PRIVATE KEY", der), err
}

func template(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// write puts name.crt and name.key into a folder.
func (p pair) write(dir, name string) error {
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), p.cert, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".key"), p.key, 0o600)
}

// kubeconfig writes a file by which a client reaches the API server at an endpoint as the certificate's user.
func (a *authority) kubeconfig(file, endpoint string, user pair) error {
	c := api.NewConfig()
	c.Clusters["test"] = &api.Cluster{Server: endpoint, CertificateAuthorityData: a.pem}
	c.AuthInfos["user"] = &api.AuthInfo{ClientCertificateData: user.cert, ClientKeyData: user.key}
	c.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: "user"}
	c.CurrentContext = "test"
	return clientcmd.WriteToFile(*c, file)
}
