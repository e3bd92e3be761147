//go:build e2e

package neutron_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// authority is a certificate authority of a test's own.
type authority struct {
	*testing.T
	certificate
}

// certificate is one with its key, in the files that programs are told of.
type certificate struct {
	leaf      *x509.Certificate
	key       *ecdsa.PrivateKey
	cert, pem string // the files
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	a := authority{T: t}
	a.certificate = a.sign(name, &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// sign makes a certificate as of a template, its own where there is no authority yet.
func (a authority) sign(name string, template *x509.Certificate) (c certificate) {
	a.Helper()
	must := func(err error) {
		if err != nil {
			a.Fatalf("the certificate of %s: %v", name, err)
		}
	}
	var err error
	c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, key := a.leaf, a.key
	if parent == nil {
		parent, key = template, c.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &c.key.PublicKey, key)
	must(err)
	c.leaf, err = x509.ParseCertificate(der)
	must(err)
	private, err := x509.MarshalPKCS8PrivateKey(c.key)
	must(err)
	dir := a.TempDir()
	c.cert, c.pem = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	must(os.WriteFile(c.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(os.WriteFile(c.pem, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return c
}

// client makes a client's certificate.
func (a authority) client(name string) certificate {
	a.Helper()
	return a.sign(name, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// secured is the address of a server before the one at a URL: over TLS, with a
// certificate of the authority, for clients that have one of it.
func (r *rig) secured(before string, by authority) string {
	r.Helper()
	own := by.sign("central", &x509.Certificate{
		IPAddresses: []net.IP{neutronlab.Management.Addr().AsSlice()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	clients := x509.NewCertPool()
	clients.AddCert(by.leaf)
	return r.frontOf(before, &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
		Certificates: []tls.Certificate{{Certificate: [][]byte{own.leaf.Raw}, PrivateKey: own.key}},
	}, nil)
}

// logged is what the host's Kuryr has written into its log since it had so many bytes, and how many those are now.
func (h host) logged(since int) (string, int) {
	h.rig.Helper()
	text, err := os.ReadFile(filepath.Join(h.Dir(), "kuryr.log"))
	if err != nil {
		h.rig.Fatal(err)
	}
	return string(text[since:]), len(text)
}

// Neutron over TLS, with an authority of its own and for clients that it has signed:
// Kuryr works with the certificates, says which of them is missing or wrong, and verifies
// nothing where that is switched off by name.
func TestTLS(t *testing.T) {
	r := shared(t)
	// of one name, so that the wrong one's certificate is sent
	ours, others := newAuthority(t, "ours"), newAuthority(t, "ours")
	mine, strange := ours.client("h1"), others.client("h1")
	endpoint := "KURYR_NEUTRON_ENDPOINT=" + r.secured(neutronlab.Endpoint, ours)
	ca := "KURYR_NEUTRON_CA_FILE=" + ours.cert
	with := func(c certificate) []string {
		return []string{"KURYR_NEUTRON_CERT_FILE=" + c.cert, "KURYR_NEUTRON_KEY_FILE=" + c.pem}
	}
	r.restarted(r.h1, append(with(mine), endpoint, ca)...)
	r.h1.network("tls", "--subnet", "10.120.0.0/24", "--gateway", "10.120.0.1")
	a := r.h1.run("tls-a", "tls")
	before := a.seat()
	for _, c := range []struct {
		name  string
		words []string // of the refusal; nil where it works
		env   []string
	}{
		{"no authority", []string{"Neutron", "its certificate is of nobody that is trusted", "neutron.ca_file"}, with(mine)},
		{
			"another authority",
			[]string{"Neutron", "its certificate is of nobody that is trusted", "neutron.ca_file"},
			append(with(mine), "KURYR_NEUTRON_CA_FILE="+others.cert),
		},
		{
			"no client's certificate",
			[]string{"Neutron", "does not take this host's certificate", "neutron.cert_file"},
			[]string{ca},
		},
		{
			"another's client",
			[]string{"Neutron", "does not take this host's certificate", "neutron.cert_file"},
			append(with(strange), ca),
		},
		{"not verified", nil, append(with(mine), "KURYR_NEUTRON_INSECURE=true")},
		{
			"not verified but asked for",
			[]string{"Neutron", "does not take this host's certificate", "neutron.cert_file"},
			[]string{"KURYR_NEUTRON_INSECURE=true"},
		},
		{"by OpenStack's variables", nil, []string{"OS_CACERT=" + ours.cert, "OS_CERT=" + mine.cert, "OS_KEY=" + mine.pem}},
	} {
		_, since := r.h1.logged(0)
		keys{r}.again(r.h1, append(c.env, endpoint)...)
		run := []string{"run", "--rm", "--network", "tls", "box", "true"}
		if c.words == nil {
			r.h1.docker(run...)
		} else {
			r.h1.refused(c.words, run...)
		}
		text, _ := r.h1.logged(since)
		if off := strings.Contains(strings.Join(c.env, " "), "INSECURE"); strings.Contains(text, "are not verified") != off {
			t.Errorf("%s: whether the log warns that nothing is verified should be %t:\n%s", c.name, off, text)
		}
	}
	b := r.h1.run("tls-b", "tls")
	r.reaches(a.in, b.ip4, a.ip4)
	if now := a.seat(); now != before {
		t.Errorf("something was done to the container that ran all the time:\n%s\nbefore:\n%s", now, before)
	}
}

// tls: Keystone and Neutron over TLS, as clouds.yaml tells.
func (k keys) tls(t *testing.T) {
	ours := newAuthority(t, "ours")
	mine, id := ours.client("h1"), k.lab.Identity()
	keystone := k.secured(strings.TrimSuffix(neutronlab.KeystoneURL, "/v3"), ours)
	text, neutron := "clouds:\n", k.secured(neutronlab.Endpoint, ours)
	for name, more := range map[string]string{
		"verified": "cacert: " + ours.cert, "trusted": "verify: false", "unknown": "verify: true",
	} {
		text += fmt.Sprintf("  %s:\n    region_name: RegionOne\n    network_endpoint_override: "+
			"%s\n    cert: %s\n    key: %s\n    %s\n    auth:\n      auth_url: %s/v3\n"+
			"      username: %s\n      password: %s\n      project_name: %s\n      "+
			"user_domain_id: default\n      project_domain_id: default\n",
			name, neutron, mine.cert, mine.pem, more, keystone, id.Name, id.Password, id.Name)
	}
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cloud := func(name string) []string {
		return []string{"KURYR_NEUTRON_CLOUDS_FILE=" + file, "KURYR_NEUTRON_CLOUD=" + name}
	}
	k.restarted(k.h1, cloud("verified")...)
	k.h1.network("tls", "--subnet", "10.120.0.0/24", "--gateway", "10.120.0.1")
	a := k.h1.run("tls-a", "tls")
	k.reaches(a.in, a.ip4, netip.Addr{})
	k.again(k.h1, cloud("unknown")...)
	run := []string{"run", "--rm", "--network", "tls", "box", "true"}
	k.h1.refused([]string{"Keystone", "its certificate is of nobody that is trusted", "neutron.ca_file"}, run...)
	_, since := k.h1.logged(0)
	k.again(k.h1, cloud("trusted")...)
	k.h1.docker(run...)
	if text, _ := k.h1.logged(since); !strings.Contains(text, "are not verified") {
		t.Errorf("the log does not warn that nothing is verified:\n%s", text)
	}
}
