package tlsfiles

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// The files that Issue makes.
const (
	CAFile         = "ca.pem"
	CAKeyFile      = "ca-key.pem"
	ServerFile     = "server.pem"
	ServerKeyFile  = "server-key.pem"
	ClientFile     = "client.pem"
	ClientKeyFile  = "client-key.pem"
	authorityYears = 10
	leafDays       = 825 // what strict clients take at most
	clockSkew      = time.Hour
)

// ClientName is the common name of the client's certificate that Issue makes.
const ClientName = "dockerd"

// Issue makes, in folder dir, an authority and by it a certificate for a server that is
// reached by the hosts (names or addresses) and one for its client: ECDSA P-256, keys
// readable by their owner alone. It replaces no file: the error is fs.ErrExist if there
// is one, and then none is made.
func Issue(dir string, hosts []string, now time.Time) error {
	if len(hosts) == 0 {
		return errors.New("a server's certificate needs a host")
	}
	ca := authorityOf("Kuryr's authority for Docker's plugin", now)
	server := serverOf(hosts, now)
	client := &x509.Certificate{
		Subject: pkix.Name{CommonName: ClientName}, NotAfter: now.AddDate(0, 0, leafDays),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	authority, err := issue(ca, nil, now)
	if err != nil {
		return err
	}
	serverPair, err := issue(server, authority, now)
	if err != nil {
		return err
	}
	clientPair, err := issue(client, authority, now)
	if err != nil {
		return err
	}
	return writeNew(dir, []file{
		{CAKeyFile, authority.keyPEM, 0o600}, {CAFile, authority.certPEM, 0o644},
		{ServerKeyFile, serverPair.keyPEM, 0o600}, {ServerFile, serverPair.certPEM, 0o644},
		{ClientKeyFile, clientPair.keyPEM, 0o600}, {ClientFile, clientPair.certPEM, 0o644},
	})
}

// IssueServer is Issue without a client: for what asks its clients in another way who they are.
func IssueServer(dir string, hosts []string, now time.Time) error {
	if len(hosts) == 0 {
		return errors.New("a server's certificate needs a host")
	}
	authority, err := issue(authorityOf("Kuryr's authority for the SDN's API", now), nil, now)
	if err != nil {
		return err
	}
	server, err := issue(serverOf(hosts, now), authority, now)
	if err != nil {
		return err
	}
	return writeNew(dir, []file{
		{CAKeyFile, authority.keyPEM, 0o600}, {CAFile, authority.certPEM, 0o644},
		{ServerKeyFile, server.keyPEM, 0o600}, {ServerFile, server.certPEM, 0o644},
	})
}

func authorityOf(name string, now time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotAfter: now.AddDate(authorityYears, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
}

func serverOf(hosts []string, now time.Time) *x509.Certificate {
	server := &x509.Certificate{
		Subject: pkix.Name{CommonName: "kuryr"}, NotAfter: now.AddDate(0, 0, leafDays),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			server.IPAddresses = append(server.IPAddresses, ip)
		} else {
			server.DNSNames = append(server.DNSNames, h)
		}
	}
	return server
}

// pair is a certificate and its key.
type pair struct {
	cert            *x509.Certificate
	key             *ecdsa.PrivateKey
	certPEM, keyPEM []byte
}

// issue makes a key and a certificate for it, signed by the authority, or by itself where
// there is none.
func issue(cert *x509.Certificate, authority *pair, now time.Time) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if cert.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, err
	}
	cert.NotBefore = now.Add(-clockSkew)
	p := &pair{cert: cert, key: key}
	if authority == nil {
		authority = p
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, authority.cert, &key.PublicKey, authority.key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of %s: %w", cert.Subject.CommonName, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	p.certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	p.keyPEM = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	return p, nil
}

type file struct {
	name    string
	content []byte
	mode    fs.FileMode
}

// writeNew makes all files or, if one cannot be made, none.
func writeNew(dir string, files []file) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var made []string
	defer func() {
		if err != nil {
			for _, path := range made {
				_ = os.Remove(path)
			}
		}
	}()
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
		if err != nil {
			return err
		}
		made = append(made, path)
		_, err = to.Write(f.content)
		if err = errors.Join(err, to.Close()); err != nil {
			return err
		}
	}
	return nil
}
