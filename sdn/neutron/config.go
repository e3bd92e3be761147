package neutron

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// Config says which Neutron, with which credentials, for which installation.
type Config struct {
	// Installation is the Owner of the Keys this provider gives: a-z, 0-9 and '-'. All hosts of one deployment share it.
	Installation string
	// Host is this machine's name among Neutron's hosts: what its agent or ovn-controller is known as.
	Host string
	// Project is the id of the project that objects are made in; "" is the credentials' own. A Neutron without
	// authentication (auth type none) needs it, for there no credentials say it.
	Project string

	// Cloud is an entry of clouds.yaml; "" is $OS_CLOUD, and without that Auth and the OS_* variables count.
	Cloud string
	// CloudsFile is the clouds.yaml to read, with the secure.yaml beside it; "" is $OS_CLIENT_CONFIG_FILE, else the usual places:
	// the working directory, ~/.config/openstack and /etc/openstack.
	CloudsFile string
	// Auth are credentials without a clouds.yaml. A field that is empty is taken from its OS_* variable.
	Auth Auth
	// Region and Interface ("public", "internal", "admin") choose among the catalogue's endpoints; "" is $OS_REGION_NAME and
	// $OS_INTERFACE, else what clouds.yaml says, else any region and public.
	Region, Interface string
	// Endpoint is Neutron's address, with or without /v2.0 at its end. "" is the catalogue's.
	Endpoint string
	// OctaviaEndpoint is Octavia's address where the catalogue's is not to be used, or there is no catalogue. Without either there are no load balancers.
	OctaviaEndpoint string
	// Backend is the one of Octavia's providers that makes load balancers of which it is not said; "" is Octavia's only one, else amphora.
	Backend string

	// CAFile holds the authorities that Keystone's and Neutron's certificates are verified by, in PEM; "" is $OS_CACERT, else what
	// clouds.yaml says, else the system's.
	CAFile string
	// CertFile and KeyFile are this client's certificate, in PEM; "" is $OS_CERT and $OS_KEY, else what clouds.yaml says.
	CertFile, KeyFile string
	// Insecure switches the verification of certificates off.
	Insecure bool

	// Uncached says that other hosts change the same networks, subnet pools and unbound ports, as those
	// of a Docker swarm do: they are read for each use.
	Uncached bool

	// Timeout bounds one request, retries not counted; 0 is DefaultTimeout. A request that makes more than portsATime ports has as many times more.
	Timeout time.Duration
	// Env looks environment variables up; nil is the process's.
	Env func(name string) (string, bool)
	// Observe, if not nil, is told of every request that was sent, when its answer is there or has failed to come. It must not block.
	Observe func(Request)
}

// DefaultTimeout bounds one request unless Config says otherwise.
const DefaultTimeout = time.Minute

// A Request is what Config.Observe is told.
type Request struct {
	Method     string
	Collection string // "ports", "networks", …; "tokens" for Keystone
	Status     int    // 0: no answer
	Duration   time.Duration
}

// Auth are an OpenStack user's credentials, named as in the auth section of clouds.yaml.
type Auth struct {
	// Type is "none" or "noauth" for a Neutron that asks for no token, else what clouds.yaml calls auth_type. It may be empty:
	// the credentials given tell.
	Type                                               string
	URL                                                string
	Username, UserID, Password                         string
	UserDomainName, UserDomainID                       string
	ProjectName, ProjectID                             string
	ProjectDomainName, ProjectDomainID                 string
	SystemScope, TrustID                               string
	ApplicationCredentialID, ApplicationCredentialName string
	ApplicationCredentialSecret                        string
	Token                                              string
}

// String tells whose credentials they are, without a secret.
func (a Auth) String() string {
	return fmt.Sprintf("{type %q url %q user %q project %q}", a.Type, redactURL(a.URL), a.Username+a.UserID+a.ApplicationCredentialID+a.ApplicationCredentialName, a.ProjectName+a.ProjectID)
}

// GoString is String, so that no way of printing shows a secret.
func (a Auth) GoString() string { return a.String() }

// LogValue is String, so that no way of logging shows a secret.
func (a Auth) LogValue() slog.Value { return slog.StringValue(a.String()) }

// redactURL takes user and password out of a URL.
func redactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	u.User = nil
	return u.String()
}

func (c Config) env(name string) string {
	if c.Env == nil {
		return os.Getenv(name)
	}
	v, _ := c.Env(name)
	return v
}

// unasked returns the project's id if there is no Keystone.
func (c Config) unasked() string {
	return cmp.Or(c.Project, c.Auth.ProjectID, c.env("OS_PROJECT_ID"))
}

// check refuses what cannot work with any Neutron.
func (c Config) check() error {
	if err := (sdn.Key{Owner: c.Installation, Kind: "k", Name: "n"}).Validate(); err != nil {
		return sdn.Invalid("configuration", "installation", "must be one or more of a-z, 0-9 and '-', not %q", c.Installation)
	}
	if len(c.Installation) > 64 {
		return sdn.Invalid("configuration", "installation", "is %d bytes long; at most 64 leave room for the rest of a key", len(c.Installation))
	}
	if len(c.Host) > valid.MaxText || strings.ContainsAny(c.Host, " \t\r\n\x00") {
		return sdn.Invalid("configuration", "host", "%q cannot be a host's name", c.Host)
	}
	if c.Timeout < 0 {
		return sdn.Invalid("configuration", "timeout", "must not be negative")
	}
	if c.Endpoint != "" {
		return checkURL("endpoint", c.Endpoint)
	}
	return nil
}

func checkURL(field, s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return sdn.Invalid("configuration", field, "%q is no http or https URL", redactURL(s))
	}
	return nil
}
