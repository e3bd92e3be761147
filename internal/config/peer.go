package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"gopkg.in/ini.v1"
)

// maxPeerFile bounds the peer's file, in bytes.
const maxPeerFile = 1 << 20

// peerOption is what an option of the Python kuryr-libnetwork's kuryr.conf means here.
type peerOption struct {
	names   string // section.option; further names of the same option after spaces
	setting string // its key; "" where translate does all
	// translate gives the setting's value; nil takes the option's unchanged. An error says
	// why the option is passed over.
	translate func(c *Config, value string) (string, error)
}

// peerOptions are those that mean something. All others are warned of.
var peerOptions = []peerOption{
	{"DEFAULT.capability_scope", "docker.capability_scope", nil},
	{"DEFAULT.bindir", "bind.executables", nil},
	{"DEFAULT.process_external_connectivity", "docker.process_external_connectivity", oslobool},
	{"DEFAULT.debug", "log.level", debugLevel},
	{"DEFAULT.default_port_driver", "bind.nested", portDriver},
	{"binding.default_driver binding.driver", "bind.nested", bindingDriver},
	{"binding.link_iface", "bind.link_interface", nil},
	{"neutron.auth_type neutron.auth_plugin", "neutron.auth_type", authType},
	{"neutron.auth_url", "", credential(func(c *Credentials) *string { return &c.AuthURL })},
	{"neutron.username neutron.user_name neutron.user-name", "", credential(
		func(c *Credentials) *string { return &c.Username },
	)},
	{"neutron.user_id", "", credential(func(c *Credentials) *string { return &c.UserID })},
	{"neutron.user_domain_name neutron.default_domain_name", "", credential(
		func(c *Credentials) *string { return &c.UserDomainName },
	)},
	{"neutron.user_domain_id neutron.default_domain_id", "", credential(func(c *Credentials) *string {
		return &c.UserDomainID
	})},
	{"neutron.project_name neutron.tenant_name", "", credential(func(c *Credentials) *string { return &c.ProjectName })},
	{"neutron.project_id neutron.tenant_id", "", credential(func(c *Credentials) *string { return &c.ProjectID })},
	{"neutron.project_domain_name", "", credential(func(c *Credentials) *string { return &c.ProjectDomainName })},
	{"neutron.project_domain_id", "", credential(func(c *Credentials) *string { return &c.ProjectDomainID })},
	{"neutron.application_credential_id", "", credential(func(c *Credentials) *string {
		return &c.ApplicationCredentialID
	})},
	{"neutron.application_credential_name", "", credential(func(c *Credentials) *string {
		return &c.ApplicationCredentialName
	})},
	{
		"neutron.password neutron.application_credential_secret neutron.token", "",
		credential(func(c *Credentials) *string { return &c.Secret }),
	},
	{"neutron.endpoint_override neutron.endpoint", "neutron.endpoint", nil},
	{"neutron.region_name", "neutron.region", nil},
	{"neutron.endpoint_type", "neutron.interface", func(_ *Config, v string) (string, error) {
		return strings.TrimSuffix(v, "URL"), nil
	}},
	{"neutron.valid_interfaces", "neutron.interface", func(_ *Config, v string) (string, error) {
		first, _, _ := strings.Cut(v, ",")
		return strings.TrimSpace(first), nil
	}},
	{"neutron.cafile", "neutron.ca_file", nil},
	{"neutron.certfile", "neutron.cert_file", nil},
	{"neutron.keyfile", "neutron.key_file", nil},
	{"neutron.insecure", "neutron.insecure", oslobool},
	{"neutron.timeout", "neutron.timeout", func(_ *Config, v string) (string, error) { return v + "s", nil }},
}

// passedOver are the options that need no warning: what they ask for is so in any case.
var passedOver = []string{"DEFAULT.pybasedir", "DEFAULT.deployment_type", "DEFAULT.port_driver",
	"DEFAULT.enabled_port_drivers", "binding.enabled_drivers",
	"DEFAULT.local_default_address_space", "DEFAULT.global_default_address_space"}

func credential(field func(*Credentials) *string) func(*Config, string) (string, error) {
	return func(c *Config, v string) (string, error) {
		*field(&c.Neutron.Credentials) = v
		return "", nil
	}
}

func oslobool(_ *Config, v string) (string, error) {
	switch strings.ToLower(v) {
	case "true", "1", "yes", "on", "t", "y":
		return "true", nil
	case "false", "0", "no", "off", "f", "n":
		return "false", nil
	}
	return "", fmt.Errorf("%q is neither true nor false", v)
}

func authType(_ *Config, v string) (string, error) {
	types := map[string]string{"password": "password", "v3password": "password",
		"v3applicationcredential": "application_credential", "token": "token",
		"v3token": "token", "none": "none", "noauth": "noauth"}
	if t := types[v]; t != "" {
		return t, nil
	}
	return "", fmt.Errorf("the way of authentication %q is not served", v)
}

// portDriver reads the last part of the module's path, as the peer names its port drivers.
func portDriver(_ *Config, v string) (string, error) {
	switch v[strings.LastIndexByte(v, '.')+1:] {
	case "veth", "sriov":
		return "", nil // chosen by each port's own type
	case "nested":
		return "macvlan", nil
	case "vlan":
		return "vlan", nil
	}
	return "", errors.New("is no driver that there is; see bind.nested")
}

func bindingDriver(_ *Config, v string) (string, error) {
	switch v[strings.LastIndexByte(v, '.')+1:] {
	case "veth", "hw_veb":
		return "", nil
	case "macvlan":
		return "macvlan", nil
	case "vlan":
		return "vlan", nil
	}
	return "", errors.New("is no driver that there is; see bind.nested")
}

// loadPeer lays the peer's file over c. Users of one run on Neutron.
func loadPeer(c *Config, src Source) error {
	data, err := readPeer(src.Peer, src.PeerMust)
	if err != nil || data == nil {
		return err
	}
	return parsePeer(c, src.Peer, data)
}

// readPeer reads a peer's file; nil is that there is none, nor need be.
func readPeer(path string, must bool) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && !must {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if info.Size() > maxPeerFile {
		return nil, &Error{Where: path, Detail: fmt.Sprintf("has %d bytes; at most %d are read", info.Size(), maxPeerFile)}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return append([]byte{}, data...), nil
}

func parsePeer(c *Config, path string, data []byte) error {
	file, err := readOptions(path, data)
	if err != nil {
		return err
	}
	waits := []string{"neutron.vif_plugging_is_fatal", "neutron.vif_plugging_timeout"}
	if err := layOptions(c, path, file, peerOptions, slices.Concat(passedOver, waits)); err != nil {
		return err
	}
	return waitAsPeer(c, path, file)
}

// readOptions reads a file of oslo.config's form, by section.option.
func readOptions(path string, data []byte) (map[string]string, error) {
	// Values go on in indented lines, a # within a value or a \ at its end is part of it, a
	// repeated option's last value holds.
	file, err := ini.LoadSources(
		ini.LoadOptions{
			AllowPythonMultilineValues: true, IgnoreContinuation: true, IgnoreInlineComment: true,
		},
		data,
	)
	if err != nil {
		// the library's words show the line, which may hold a password
		return nil, &Error{Where: path, Detail: "is not of kuryr.conf's form"}
	}
	values := map[string]string{}
	for _, s := range file.Sections() {
		for _, k := range s.Keys() {
			values[s.Name()+"."+k.Name()] = strings.TrimSpace(k.Value())
		}
	}
	return values, nil
}

// layOptions sets what a peer's options say. All that are neither among them nor passed
// over are told in Ignored.
func layOptions(c *Config, path string, values map[string]string, options []peerOption, passedOver []string) error {
	c.Provider = ProviderNeutron
	known := slices.Clone(passedOver)
	for _, o := range options {
		names := strings.Fields(o.names)
		known = append(known, names...)
		for _, name := range names {
			if err := o.apply(c, path, name, values[name]); err != nil {
				return err
			}
			if values[name] != "" {
				break
			}
		}
	}
	for name, value := range values {
		if !slices.Contains(known, name) && value != "" {
			c.Ignored = append(c.Ignored, path+": "+shownOption(name)+" is not served")
		}
	}
	slices.Sort(c.Ignored)
	return nil
}

// shownOption is an option's name as the file has it.
func shownOption(name string) string { return "[" + strings.Replace(name, ".", "] ", 1) }

// apply sets what the option says. An option without a value is as if it were not there.
func (o peerOption) apply(c *Config, path, name, value string) error {
	if value == "" {
		return nil
	}
	shown := shownOption(name)
	if o.translate != nil {
		translated, err := o.translate(c, value)
		if err != nil {
			c.Ignored = append(c.Ignored, path+": "+shown+" "+err.Error())
			return nil
		}
		value = translated
	}
	if o.setting == "" || value == "" {
		return nil
	}
	setting := Lookup(o.setting)
	return setting.apply(c, path+": "+shown, splitList(setting, value))
}

// waitAsPeer is the peer's waiting for a port: it waits where its end is fatal, without
// end where the time-out is 0, which is here the default of a start.
func waitAsPeer(c *Config, path string, values map[string]string) error {
	const name = "neutron.vif_plugging_is_fatal"
	if values[name] == "" {
		return nil
	}
	fatal, err := oslobool(nil, values[name])
	if err != nil {
		c.Ignored = append(c.Ignored, path+": "+shownOption(name)+" "+err.Error())
	}
	if fatal != "true" {
		return nil
	}
	seconds := values["neutron.vif_plugging_timeout"]
	if seconds == "" || seconds == "0" {
		seconds = "20"
	}
	return Lookup("docker.wait_active").apply(c, path+": [neutron] vif_plugging_timeout", []string{seconds + "s"})
}
