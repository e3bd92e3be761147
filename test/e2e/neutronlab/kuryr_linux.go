package neutronlab

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
)

// The clouds of the file that a lab with Keystone or Octavia has for Kuryr: the user demo by his
// password, by his application credential, and by one that has no role but member.
const (
	CloudPassword   = "password"
	CloudCredential = "credential"
	CloudMember     = "member"
)

// CloudsFile is that file, an OpenStack clouds.yaml, the same path on each host.
func (l *Lab) CloudsFile() string { return filepath.Join(l.Central.Dir(), "clouds.yaml") }

func (l *Lab) writeClouds() error {
	id := l.identity
	_, err := writeFile(l.Central, "clouds.yaml", fmt.Sprintf(`clouds:
  %s:
    region_name: RegionOne
    auth:
      auth_url: %s
      username: %s
      password: %s
      project_name: %s
      user_domain_id: default
      project_domain_id: default
  %s:
    region_name: RegionOne
    auth_type: v3applicationcredential
    auth:
      auth_url: %s
      application_credential_id: %s
      application_credential_secret: %s
  %s:
    region_name: RegionOne
    auth_type: v3applicationcredential
    auth:
      auth_url: %s
      application_credential_id: %s
      application_credential_secret: %s
`, CloudPassword, KeystoneURL, id.Name, id.Password, id.Name, CloudCredential, KeystoneURL, id.Credential, id.Secret, CloudMember, KeystoneURL, id.Member, id.MemberSecret))
	return err
}

// KuryrEnv is the environment of kuryr on the host: which SDN, where it is, as whom, and
// what a machine adds.
func (h *Host) KuryrEnv() []string {
	env := []string{"KURYR_PROVIDER=neutron", "KURYR_HOST=" + h.Name}
	if h.lab.opts.Keystone {
		env = append(
			env, "KURYR_NEUTRON_CLOUDS_FILE="+h.lab.CloudsFile(), "KURYR_NEUTRON_CLOUD="+CloudPassword,
		)
	} else {
		env = append(
			env, "KURYR_NEUTRON_AUTH_TYPE=none", "KURYR_NEUTRON_ENDPOINT="+Endpoint,
			"KURYR_NEUTRON_PROJECT="+h.lab.Project(),
		)
	}
	return append(env, h.env...)
}

// StartKuryr starts kuryr for the host's engine, with env added to KuryrEnv, and returns
// when its plugin socket answers.
func (h *Host) StartKuryr(ctx context.Context, env ...string) error {
	return h.Host.StartKuryr(ctx, []string{"docker"}, append(h.KuryrEnv(), env...))
}

// Project is the id of the project that Kuryr makes its objects in.
func (l *Lab) Project() string {
	return cmp.Or(l.identity.Project, "demo")
}
