package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"
)

// Neutron is section neutron: how OpenStack Neutron is reached. What it leaves empty
// comes from clouds.yaml or the OS_ variables.
type Neutron struct {
	Cloud      string
	CloudsFile string
	AuthType   string
	Project    string
	Endpoint   string
	Region     string
	Interface  string
	CAFile     string
	CertFile   string
	KeyFile    string
	Insecure   bool
	Timeout    time.Duration
	// LoadBalancerEndpoint is Octavia's address, LoadBalancerProvider the one of its
	// providers that makes load balancers.
	LoadBalancerEndpoint, LoadBalancerProvider string

	// Credentials are those that the peer's file has in it; no settings of ours, so that
	// they are nowhere shown.
	Credentials Credentials
}

// Credentials are an OpenStack user's, as the Python kuryr-libnetwork's file names them.
type Credentials struct {
	AuthURL, Username, UserID, UserDomainName, UserDomainID    string
	ProjectName, ProjectID, ProjectDomainName, ProjectDomainID string
	ApplicationCredentialID, ApplicationCredentialName         string
	Secret                                                     string `json:"-"`
}

// String tells whose credentials they are, without a secret.
func (c Credentials) String() string {
	return fmt.Sprintf(
		"{user %q project %q}", c.Username+c.UserID+c.ApplicationCredentialID+c.ApplicationCredentialName,
		c.ProjectName+c.ProjectID,
	)
}

// GoString is String, so that no way of printing shows a secret.
func (c Credentials) GoString() string { return c.String() }

// LogValue is String, so that no way of logging shows a secret.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Bind is section bind: how interfaces are plugged on a host whose SDN runs by itself.
type Bind struct {
	OVSDBSocket       string
	IntegrationBridge string
	LinkInterface     string
	Nested            string
	Executables       string
}

// ProviderNeutron is OpenStack Neutron.
const ProviderNeutron = "neutron"

// AuthTypes are the ways of authentication that neutron.auth_type names.
var AuthTypes = []string{"password", "application_credential", "token", "none", "noauth"}

var neutronSettings = []*Setting{
	text(
		"neutron.cloud", "name of the cloud in clouds.yaml; empty is OS_CLOUD, else the OS_ variables",
		word, func(c *Config) *string { return &c.Neutron.Cloud },
	),
	text("neutron.clouds_file",
		"the clouds.yaml; empty is OS_CLIENT_CONFIG_FILE, else where every OpenStack client looks",
		absoluteOrNone,
		func(c *Config) *string { return &c.Neutron.CloudsFile }),
	text("neutron.auth_type",
		"way of authentication: password, application_credential, token, none or noauth; empty is as "+
			"the rest says", orNone(oneOf(AuthTypes...)),
		func(c *Config) *string { return &c.Neutron.AuthType }),
	text(
		"neutron.project", "id of the project that objects are made in; empty is the credentials' own",
		word, func(c *Config) *string { return &c.Neutron.Project },
	),
	text(
		"neutron.endpoint", "address of Neutron; empty is the one in Keystone's catalogue",
		orNone(httpURL), func(c *Config) *string { return &c.Neutron.Endpoint },
	),
	text("neutron.load_balancer_endpoint", "address of Octavia; empty is the one in Keystone's catalogue", orNone(httpURL),
		func(c *Config) *string { return &c.Neutron.LoadBalancerEndpoint }),
	text("neutron.load_balancer_provider",
		"which of Octavia's providers makes load balancers; empty is the only one, or amphora", word,
		func(c *Config) *string { return &c.Neutron.LoadBalancerProvider }),
	text("neutron.region", "region in the catalogue", line, func(c *Config) *string { return &c.Neutron.Region }),
	text("neutron.interface",
		"which of the catalogue's addresses: public, internal or admin; empty is as clouds.yaml says, "+
			"else public", orNone(oneOf("public", "internal", "admin")),
		func(c *Config) *string { return &c.Neutron.Interface }),
	text(
		"neutron.ca_file",
		"file with the authorities of the servers' certificates; empty are the system's", absoluteOrNone,
		func(c *Config) *string { return &c.Neutron.CAFile },
	),
	text(
		"neutron.cert_file", "file with the certificate that Kuryr shows to the servers", absoluteOrNone,
		func(c *Config) *string { return &c.Neutron.CertFile },
	),
	text(
		"neutron.key_file", "file with that certificate's private key", absoluteOrNone,
		func(c *Config) *string { return &c.Neutron.KeyFile },
	),
	boolean("neutron.insecure", "do not verify the servers' certificates", func(c *Config) *bool {
		return &c.Neutron.Insecure
	}),
	duration(
		"neutron.timeout", "longest wait for one answer", time.Second,
		func(c *Config) *time.Duration { return &c.Neutron.Timeout },
	),
}

var bindSettings = []*Setting{
	text(
		"bind.ovsdb_socket", "socket of Open vSwitch's database, for ports of VIF type ovs", absolute,
		func(c *Config) *string { return &c.Bind.OVSDBSocket },
	),
	text(
		"bind.integration_bridge",
		"Open vSwitch bridge that ports are plugged into unless the SDN names one", word,
		func(c *Config) *string { return &c.Bind.IntegrationBridge },
	),
	text("bind.nested",
		"how ports are plugged inside a virtual machine whose own port is of the same Neutron: macvlan "+
			"or vlan; empty is not", orNone(oneOf("macvlan", "vlan")),
		func(c *Config) *string { return &c.Bind.Nested }),
	text(
		"bind.link_interface",
		"interface of this virtual machine that nested ports go through; empty is the one with its "+
			"port's MAC, found by itself",
		word, func(c *Config) *string { return &c.Bind.LinkInterface },
	),
	text(
		"bind.executables", "folder of the executables that plug ports of other VIF types", absolute,
		func(c *Config) *string { return &c.Bind.Executables },
	),
}

// consistent checks what single settings cannot.
func (n Neutron) consistent() error {
	wrong := func(key, detail string) error { return &Error{Where: "configuration", Key: key, Detail: detail} }
	switch {
	case (n.CertFile == "") != (n.KeyFile == ""):
		return wrong("neutron.cert_file", "and neutron.key_file are needed together")
	case (n.AuthType == "none" || n.AuthType == "noauth") && n.Endpoint == "":
		return wrong(
			"neutron.endpoint",
			"is needed where neutron.auth_type is "+n.AuthType+": there is no catalogue to find it in",
		)
	case n.Timeout == 0:
		return wrong("neutron.timeout", "must not be 0")
	}
	return nil
}

var httpURL = rule{form: "url", check: func(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("want http:// or https:// and an address, not %q", s)
	}
	if u.User != nil {
		return errors.New("must not hold a user or a password")
	}
	return nil
}}

// line takes any text of one line.
var line = rule{form: "text", check: func(s string) error {
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return errors.New("want one line of text")
		}
	}
	if len(s) > 255 {
		return errors.New("want at most 255 bytes")
	}
	return nil
}}
