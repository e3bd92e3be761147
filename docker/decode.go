package docker

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"path"
	"regexp"
	"strings"
)

// decode reads a request and checks it. Every error is an httpError that names the field. Fields it does not know are left
// alone: engines add some with time.
func decode(body []byte, r request) error {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return &httpError{http.StatusBadRequest,
			"the call came without a body: the engine repeated it after its connection broke; try again"}
	}
	if body[0] != '{' {
		return malformed("body", "must be a JSON object")
	}
	if err := unmarshal("", body, r); err != nil {
		return err
	}
	return r.check()
}

// unmarshal decodes JSON and says in what field, below the one given, a value has the wrong type.
func unmarshal(field string, data []byte, v any) error {
	err := json.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		name := strings.Trim(field+"."+wrong.Field, ".")
		if name == "" {
			name = "body"
		}
		return malformed(name, "must be %s, not a JSON %s", jsonKind(wrong), wrong.Value)
	}
	if field == "" {
		field = "body"
	}
	return malformed(field, "cannot be read: %v", err)
}

// jsonKind names the type a field must have in a JSON author's words.
func jsonKind(e *json.UnmarshalTypeError) string {
	switch k := e.Type.Kind().String(); {
	case k == "string":
		return "a string"
	case k == "bool":
		return "true or false"
	case strings.HasPrefix(k, "int"), strings.HasPrefix(k, "uint"):
		return "a whole number (" + k + ")"
	case k == "slice":
		return "a list"
	default:
		return "an object"
	}
}

// idPattern is what an engine's ids look like: 64 hexadecimal digits, or swarm's 25 of base 36. More is let through, as long
// as it can be part of a Key and of nothing else.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

func checkID(field, id string) error {
	if !idPattern.MatchString(id) {
		return malformed(field, "must be 1 to 128 letters, digits, '_', '.' or '-', not %q", clip(id, 140))
	}
	return nil
}

// checkPoolID: a pool's id is the SDN's and opaque; it only must be one.
func checkPoolID(id string) error {
	if id == "" || len(id) > 255 || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return malformed("PoolID", "must be 1 to 255 printable characters, not %q", clip(id, 140))
	}
	return nil
}

func checkSandboxKey(key string) error {
	if len(key) > 4095 || !path.IsAbs(key) || path.Clean(key) != key || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' }) {
		return malformed("SandboxKey", "must be a clean absolute path, not %q", clip(key, 140))
	}
	return nil
}

// parseAddr reads an address; "" is the invalid one. A prefix length after it, as some callers
// write, is cut off.
func parseAddr(field, s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(s)
	if strings.Contains(s, "/") {
		var p netip.Prefix
		p, err = netip.ParsePrefix(s)
		a = p.Addr()
	}
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return netip.Addr{}, malformed(field, "must be an IP address, not %q", clip(s, 140))
	}
	return a, nil
}

// parsePrefix reads an address with a length; "" is the invalid prefix. Host bits are kept.
func parsePrefix(field, s string, v6 bool) (netip.Prefix, error) {
	if s == "" {
		return netip.Prefix{}, nil
	}
	family := "IPv4"
	if v6 {
		family = "IPv6"
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, malformed(field, "must be an %s address with a length, such as %s, not %q", family, example(v6), clip(s, 140))
	}
	if p.Addr().Is6() != v6 {
		return netip.Prefix{}, malformed(field, "must be of %s, not %s", family, p)
	}
	return p, nil
}

func example(v6 bool) string {
	if v6 {
		return "fd00:1::/64"
	}
	return "10.0.0.0/24"
}

// parseMAC reads a MAC; "" is nil.
func parseMAC(field, s string) (net.HardwareAddr, error) {
	if s == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(s)
	if err != nil {
		return nil, malformed(field, "must be a MAC such as 02:42:ac:11:00:02, not %q", clip(s, 140))
	}
	return mac, checkMAC(field, mac)
}

func checkMAC(field string, mac net.HardwareAddr) error {
	if len(mac) != 6 || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) {
		return malformed(field, "must be a unicast MAC of 6 bytes, not %s", mac)
	}
	return nil
}
