package cni

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/kube/cni/ferry"
)

// MaxInput is the longest standard input in bytes.
const MaxInput = ferry.MaxInput

// The verbs (CNI specification 1.1.0, section 2).
const (
	Add     = "ADD"
	Del     = "DEL"
	Check   = "CHECK"
	GC      = "GC"
	Status  = "STATUS"
	Version = "VERSION"
)

// Call is one run of a CNI plugin as the runtime asks for it.
type Call struct {
	Verb      string
	Container string // CNI_CONTAINERID
	Namespace string // CNI_NETNS; may be "" for DEL
	Interface string // CNI_IFNAME
	Args      string // CNI_ARGS, as it came
	Config    []byte // standard input, as it came
}

// ReadCall reads a call from the environment and from standard input, and checks it (Call.Validate).
func ReadCall(getenv func(string) string, stdin io.Reader) (Call, error) {
	c := Call{
		Verb: getenv("CNI_COMMAND"), Container: getenv("CNI_CONTAINERID"), Namespace: getenv("CNI_NETNS"),
		Interface: getenv("CNI_IFNAME"), Args: getenv("CNI_ARGS"),
	}
	if c.Verb == "" {
		return c, BadEnvironment.Errorf("CNI_COMMAND: is missing: this program is run by a container runtime (CNI), see kuryr-cni(1)")
	}
	var err error
	c.Config, err = io.ReadAll(io.LimitReader(stdin, MaxInput+1))
	if err != nil {
		return c, IOFailure.Errorf("standard input: %v", err)
	}
	if len(c.Config) > MaxInput {
		return c, IOFailure.Errorf("standard input: has more than %d bytes", MaxInput)
	}
	return c, c.Validate()
}

// needs are the variables that a verb cannot do without. DEL can without CNI_NETNS, which may be gone.
var needs = map[string][]string{
	Add:     {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"},
	Check:   {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"},
	Del:     {"CNI_CONTAINERID", "CNI_IFNAME"},
	GC:      nil,
	Status:  nil,
	Version: nil,
}

// Validate checks what the verb needs. Its errors are BadEnvironment and name the variable.
func (c Call) Validate() error {
	want, known := needs[c.Verb]
	if !known {
		return BadEnvironment.Errorf("CNI_COMMAND: %q is none of ADD, DEL, CHECK, GC, STATUS and VERSION", c.Verb)
	}
	for _, f := range []struct {
		name, value string
		check       func(string) error
	}{
		{"CNI_CONTAINERID", c.Container, checkContainer},
		{"CNI_NETNS", c.Namespace, checkPath},
		{"CNI_IFNAME", c.Interface, CheckInterface},
	} {
		if f.value == "" && slices.Contains(want, f.name) {
			return BadEnvironment.Errorf("%s: is missing, and %s needs it", f.name, c.Verb)
		}
		if f.value == "" || want == nil {
			continue
		}
		if err := f.check(f.value); err != nil {
			return BadEnvironment.Errorf("%s: %v", f.name, err)
		}
	}
	return nil
}

// maxContainer is the longest container id: with an interface's name it must fit what a port is found by.
const maxContainer = 110

// checkContainer wants what the specification says of container ids: a letter or digit, then these, '_', '.' and '-'.
func checkContainer(id string) error {
	if len(id) > maxContainer {
		return fmt.Errorf("has %d bytes; at most %d are taken", len(id), maxContainer)
	}
	for i, r := range []byte(id) {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("_.-", rune(r))) {
			return fmt.Errorf("%q is no container id: a letter or digit, then letters, digits, '_', '.' and '-'", id)
		}
	}
	return nil
}

func checkPath(path string) error {
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return fmt.Errorf("%q is no absolute path", path)
	}
	return nil
}

// maxInterface is what the kernel takes (IFNAMSIZ without its closing zero byte).
const maxInterface = 15

// CheckInterface tells whether the kernel would take the name for an interface (dev_valid_name).
func CheckInterface(name string) error {
	switch {
	case len(name) > maxInterface:
		return fmt.Errorf("%q has %d bytes; the kernel takes at most %d", name, len(name), maxInterface)
	case name == "." || name == "..":
		return fmt.Errorf("%q is no interface name", name)
	case strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == ':' || r <= ' ' || r > '~' }):
		return fmt.Errorf("%q is no interface name: '/', ':' and spaces are not allowed", name)
	}
	return nil
}

// parseMAC reads a unicast MAC of 6 bytes.
func parseMAC(text string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("%q is no MAC of 6 bytes", text)
	}
	if mac[0]&1 != 0 || [6]byte(mac) == [6]byte{} {
		return nil, fmt.Errorf("%s is no MAC of one interface", mac)
	}
	return mac, nil
}

var errTwice = errors.New("is given twice")
