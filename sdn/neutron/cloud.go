package neutron

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	"github.com/kuryr/kuryr/sdn"
	"go.yaml.in/yaml/v3"
)

// cloud is a resolved configuration.
type cloud struct {
	none     bool   // Neutron wants no token
	endpoint string // of Neutron, where the catalogue's is not to be used
	octavia  string // Octavia's address, likewise
	auth     gophercloud.AuthOptions
	where    gophercloud.EndpointOpts
	tls      *tls.Config
}

// maxCloudsFile bounds clouds.yaml and secure.yaml.
const maxCloudsFile = 1 << 20

// resolve reads clouds.yaml, secure.yaml and the OS_* variables. Each authentication
// calls it, so changed credentials need no restart.
func (c Config) resolve() (cloud, error) {
	name := cmp.Or(c.Cloud, c.env("OS_CLOUD"))
	var entries, secure []byte
	if name != "" {
		var err error
		if entries, secure, err = c.readCloudsFile(); err != nil {
			return cloud{}, err
		}
	} else {
		name = "kuryr"
		auth := c.authFromEnv()
		entry := clouds.Cloud{AuthType: clouds.AuthType(auth.Type), AuthInfo: &clouds.AuthInfo{
			AuthURL: auth.URL, Username: auth.Username, UserID: auth.UserID, Password: auth.Password,
			UserDomainName: auth.UserDomainName, UserDomainID: auth.UserDomainID,
			ProjectName: auth.ProjectName, ProjectID: auth.ProjectID, ProjectDomainName: auth.ProjectDomainName, ProjectDomainID: auth.ProjectDomainID,
			SystemScope: auth.SystemScope, TrustID: auth.TrustID, Token: auth.Token,
			ApplicationCredentialID: auth.ApplicationCredentialID, ApplicationCredentialName: auth.ApplicationCredentialName,
			ApplicationCredentialSecret: auth.ApplicationCredentialSecret,
		}}
		var err error
		if entries, err = json.Marshal(clouds.Clouds{Clouds: map[string]clouds.Cloud{name: entry}}); err != nil {
			return cloud{}, sdn.Invalid("configuration", "auth", "cannot be written as clouds.yaml")
		}
	}
	return c.parse(name, entries, secure)
}

// extra is what gophercloud does not read of clouds.yaml.
type extra struct {
	AuthType string `yaml:"auth_type"`
	Auth     *struct {
		Endpoint string `yaml:"endpoint"`
	} `yaml:"auth"`
	NetworkEndpoint string `yaml:"network_endpoint_override"`
	OctaviaEndpoint string `yaml:"load_balancer_endpoint_override"`
}

func (c Config) parse(name string, entries, secure []byte) (cloud, error) {
	var file struct {
		Clouds map[string]extra `yaml:"clouds"`
	}
	if err := yaml.Unmarshal(entries, &file); err != nil {
		return cloud{}, sdn.Invalid("configuration", "cloud", "clouds.yaml cannot be read as YAML")
	}
	entry, ok := file.Clouds[name]
	if !ok {
		return cloud{}, sdn.Invalid("configuration", "cloud", "clouds.yaml has no cloud %q", name)
	}
	authType := cmp.Or(c.Auth.Type, entry.AuthType)
	out := cloud{
		none:     authType == "none" || authType == "noauth",
		endpoint: cmp.Or(c.Endpoint, entry.NetworkEndpoint),
		octavia:  cmp.Or(c.OctaviaEndpoint, entry.OctaviaEndpoint),
	}
	if entry.Auth == nil {
		if !out.none && !bytes.Contains(secure, []byte("auth:")) {
			return cloud{}, sdn.Invalid("configuration", "cloud", "cloud %q of clouds.yaml has no auth section", name)
		}
	} else if out.none {
		out.endpoint = cmp.Or(out.endpoint, entry.Auth.Endpoint)
	}
	if out.none {
		out.endpoint = cmp.Or(out.endpoint, c.env("OS_ENDPOINT"))
		if out.endpoint == "" {
			return cloud{}, sdn.Invalid("configuration", "endpoint", "auth type %q needs Neutron's endpoint", authType)
		}
		if c.unasked() == "" {
			return cloud{}, sdn.Invalid("configuration", "project", "auth type %q needs the id of a project", authType)
		}
	}
	if out.endpoint != "" {
		if err := checkURL("endpoint", out.endpoint); err != nil {
			return cloud{}, err
		}
	}
	if out.octavia != "" {
		if err := checkURL("load_balancer_endpoint", out.octavia); err != nil {
			return cloud{}, err
		}
	}
	options := []clouds.ParseOption{clouds.WithCloudName(name), clouds.WithCloudsYAML(bytes.NewReader(withAuth(entries, name))), clouds.WithSecureYAML(bytes.NewReader(orEmpty(secure)))}
	for _, o := range []struct {
		value string
		with  func(string) clouds.ParseOption
	}{
		{cmp.Or(c.Region, c.env("OS_REGION_NAME")), clouds.WithRegion},
		{cmp.Or(c.Interface, c.env("OS_INTERFACE")), clouds.WithEndpointType},
		{cmp.Or(c.CAFile, c.env("OS_CACERT")), clouds.WithCACertPath},
		{cmp.Or(c.CertFile, c.env("OS_CERT")), clouds.WithClientCertPath},
		{cmp.Or(c.KeyFile, c.env("OS_KEY")), clouds.WithClientKeyPath},
	} {
		options = append(options, o.with(o.value))
	}
	if c.Insecure {
		options = append(options, clouds.WithInsecure(true))
	}
	var err error
	if out.auth, out.where, out.tls, err = clouds.Parse(options...); err != nil {
		return cloud{}, &sdn.Error{Kind: sdn.KindInvalid, Noun: "configuration", Field: "cloud", Err: withoutValues(err)}
	}
	if out.tls.MinVersion == 0 {
		out.tls.MinVersion = tls.VersionTLS12
	}
	if out.none {
		return out, nil
	}
	return out, checkCredentials(out.auth)
}

// quoted is what YAML's errors quote of a file: it may be a secret.
var quoted = regexp.MustCompile("`[^`]*`")

func withoutValues(err error) error {
	return errors.New(quoted.ReplaceAllString(err.Error(), "a value"))
}

// withAuth adds an empty auth section, which gophercloud requires, to a cloud with its
// credentials in secure.yaml alone.
func withAuth(entries []byte, name string) []byte {
	var file map[string]any
	if err := yaml.Unmarshal(entries, &file); err != nil {
		return entries
	}
	all, _ := file["clouds"].(map[string]any)
	entry, _ := all[name].(map[string]any)
	if entry == nil || entry["auth"] != nil {
		return entries
	}
	entry["auth"] = map[string]any{}
	data, err := yaml.Marshal(file)
	if err != nil {
		return entries
	}
	return data
}

// orEmpty returns a file without clouds for none, so that gophercloud does not search for
// a secure.yaml itself.
func orEmpty(secure []byte) []byte {
	if len(secure) == 0 {
		return []byte("clouds: {}\n")
	}
	return secure
}

func checkCredentials(a gophercloud.AuthOptions) error {
	if a.IdentityEndpoint == "" {
		return sdn.Invalid("configuration", "auth.url", "is missing: say where Keystone is (auth_url in clouds.yaml, OS_AUTH_URL)")
	}
	if err := checkURL("auth.url", a.IdentityEndpoint); err != nil {
		return err
	}
	switch {
	case a.TokenID != "", a.ApplicationCredentialSecret != "" && a.ApplicationCredentialID+a.ApplicationCredentialName != "", a.Password != "" && a.Username+a.UserID != "":
		return nil
	}
	return sdn.Invalid("configuration", "auth", "has neither a user's password nor an application credential nor a token")
}

func (c Config) authFromEnv() Auth {
	a := c.Auth
	for _, f := range []struct {
		field *string
		names []string
	}{
		{&a.Type, []string{"OS_AUTH_TYPE"}},
		{&a.URL, []string{"OS_AUTH_URL"}},
		{&a.Username, []string{"OS_USERNAME"}},
		{&a.UserID, []string{"OS_USER_ID", "OS_USERID"}},
		{&a.Password, []string{"OS_PASSWORD"}},
		{&a.UserDomainName, []string{"OS_USER_DOMAIN_NAME", "OS_DOMAIN_NAME"}},
		{&a.UserDomainID, []string{"OS_USER_DOMAIN_ID", "OS_DOMAIN_ID"}},
		{&a.ProjectName, []string{"OS_PROJECT_NAME", "OS_TENANT_NAME"}},
		{&a.ProjectID, []string{"OS_PROJECT_ID", "OS_TENANT_ID"}},
		{&a.ProjectDomainName, []string{"OS_PROJECT_DOMAIN_NAME", "OS_DOMAIN_NAME"}},
		{&a.ProjectDomainID, []string{"OS_PROJECT_DOMAIN_ID", "OS_DOMAIN_ID"}},
		{&a.SystemScope, []string{"OS_SYSTEM_SCOPE"}},
		{&a.TrustID, []string{"OS_TRUST_ID"}},
		{&a.ApplicationCredentialID, []string{"OS_APPLICATION_CREDENTIAL_ID"}},
		{&a.ApplicationCredentialName, []string{"OS_APPLICATION_CREDENTIAL_NAME"}},
		{&a.ApplicationCredentialSecret, []string{"OS_APPLICATION_CREDENTIAL_SECRET"}},
		{&a.Token, []string{"OS_TOKEN"}},
	} {
		for _, name := range f.names {
			if *f.field == "" {
				*f.field = c.env(name)
			}
		}
	}
	return a
}

// readCloudsFile returns clouds.yaml and the secure.yaml beside it, if there is one.
func (c Config) readCloudsFile() (entries, secure []byte, err error) {
	var places []string
	if file := cmp.Or(c.CloudsFile, c.env("OS_CLIENT_CONFIG_FILE")); file != "" {
		places = []string{file}
	} else {
		if dir, err := os.Getwd(); err == nil {
			places = append(places, filepath.Join(dir, "clouds.yaml"))
		}
		if dir := cmp.Or(c.env("XDG_CONFIG_HOME"), filepath.Join(c.env("HOME"), ".config")); filepath.IsAbs(dir) {
			places = append(places, filepath.Join(dir, "openstack", "clouds.yaml"))
		}
		places = append(places, "/etc/openstack/clouds.yaml")
	}
	for _, file := range places {
		entries, err := readBounded(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, &sdn.Error{Kind: sdn.KindInvalid, Noun: "configuration", Field: "cloud", Err: err}
		}
		secure, err := readBounded(filepath.Join(filepath.Dir(file), "secure.yaml"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, &sdn.Error{Kind: sdn.KindInvalid, Noun: "configuration", Field: "cloud", Err: err}
		}
		return entries, secure, nil
	}
	return nil, nil, sdn.Invalid("configuration", "cloud", "there is no clouds.yaml: looked for %s", strings.Join(places, ", "))
}

func readBounded(file string) ([]byte, error) {
	if info, err := os.Stat(file); err != nil {
		return nil, err
	} else if info.Size() > maxCloudsFile {
		return nil, errors.New(file + " is too large to be a list of clouds")
	}
	return os.ReadFile(file)
}
