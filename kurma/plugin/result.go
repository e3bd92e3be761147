//go:build linux

package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"
	types020 "github.com/containernetworking/cni/pkg/types/020"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// parseResult reads what an add has written to stdout: the form of the Kurma specification, which is CNI's until 0.2.0 (ip4, ip6, dns), or that of any
// later version of CNI. An error says what makes no sense.
func parseResult(out []byte) (*Result, error) {
	out = bytes.TrimSpace(out)
	if len(out) == 0 {
		return nil, errors.New("it answered nothing, where a result is wanted")
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(out, &keys); err != nil {
		return nil, fmt.Errorf("its answer is no JSON object: %w: %s", err, words(out))
	}
	if keys == nil {
		return nil, errors.New("its answer is null")
	}
	if said := parseError(out); said != "" {
		return nil, fmt.Errorf("it ended well, and answered an error: %s", said)
	}
	version, err := versionOf(keys)
	if err != nil {
		return nil, err
	}
	if _, said := keys["cniVersion"]; !said && version != "0.2.0" { // those of later forms must say it
		keys["cniVersion"], _ = json.Marshal(version)
		if out, err = json.Marshal(keys); err != nil {
			return nil, fmt.Errorf("its answer is no result: %w", err)
		}
	}
	r, err := create.Create(version, out)
	if err != nil {
		return nil, fmt.Errorf("its answer is no result of CNI %s: %w", version, err)
	}
	if old, ok := r.(*types020.Result); ok {
		if err := errors.Join(checkOld("ip4", old.IP4, true), checkOld("ip6", old.IP6, false)); err != nil {
			return nil, err
		}
	}
	now, err := r.GetAsVersion(types100.ImplementedSpecVersion)
	if err != nil {
		return nil, fmt.Errorf("its answer is no result: %w", err)
	}
	result := now.(*Result)
	return result, check(result)
}

// versionOf is the version of CNI whose form the answer has. The form of the Kurma specification says none.
func versionOf(keys map[string]json.RawMessage) (version string, err error) {
	if text, there := keys["cniVersion"]; there {
		if err := json.Unmarshal(text, &version); err != nil {
			return "", fmt.Errorf("its answer's cniVersion is no text: %s", words(text))
		}
	}
	_, later := keys["ips"]
	_, four := keys["ip4"]
	_, six := keys["ip6"]
	switch old := version == "" || version == "0.1.0" || version == "0.2.0"; {
	case later && (four || six):
		return "", errors.New("its answer has ips, and ip4 or ip6: want the one or the other")
	case !old && (four || six):
		return "", fmt.Errorf("its answer has ip4 or ip6, which CNI %s has not", version)
	case version != "":
		if old && later {
			return "", fmt.Errorf("its answer has ips, which CNI %s has not", version)
		}
		return version, nil
	case !later:
		return "0.2.0", nil
	}
	var ips []struct {
		Version string `json:"version"`
	}
	if json.Unmarshal(keys["ips"], &ips) == nil && slices.ContainsFunc(ips, func(ip struct {
		Version string `json:"version"`
	}) bool {
		return ip.Version != ""
	}) {
		return "0.4.0", nil // the last that says the family of an address
	}
	return types100.ImplementedSpecVersion, nil
}

func checkOld(key string, c *types020.IPConfig, four bool) error {
	if c == nil {
		return nil
	}
	family := "IPv6"
	if four {
		family = "IPv4"
	}
	switch {
	case c.IP.IP == nil:
		return fmt.Errorf("%s.ip: is missing", key)
	case (c.IP.IP.To4() != nil) != four:
		return fmt.Errorf("%s.ip: %s is not %s", key, c.IP.IP, family)
	case c.Gateway != nil && (c.Gateway.To4() != nil) != four:
		return fmt.Errorf("%s.gateway: %s is not %s", key, c.Gateway, family)
	}
	for i, r := range c.Routes {
		if r.Dst.IP == nil || (r.Dst.IP.To4() != nil) != four || r.GW != nil && (r.GW.To4() != nil) != four {
			return fmt.Errorf("%s.routes[%d]: want an %s dst, and gw of the same family", key, i, family)
		}
	}
	return nil
}

func check(r *Result) error {
	for i, ip := range r.IPs {
		switch {
		case ip == nil || ip.Address.IP == nil:
			return fmt.Errorf("ips[%d].address: is missing", i)
		case ip.Address.IP.IsUnspecified() || ip.Address.IP.IsMulticast():
			return fmt.Errorf("ips[%d].address: %s is no interface's address", i, ip.Address.IP)
		case ip.Gateway != nil && (ip.Gateway.To4() != nil) != (ip.Address.IP.To4() != nil):
			return fmt.Errorf("ips[%d].gateway: %s is of another family than %s", i, ip.Gateway, ip.Address.IP)
		case ip.Interface != nil && (*ip.Interface < 0 || *ip.Interface >= len(r.Interfaces)):
			return fmt.Errorf("ips[%d].interface: %d, and interfaces has %d", i, *ip.Interface, len(r.Interfaces))
		}
	}
	for i, route := range r.Routes {
		if route == nil || route.Dst.IP == nil {
			return fmt.Errorf("routes[%d].dst: is missing", i)
		}
		if route.GW != nil && (route.GW.To4() != nil) != (route.Dst.IP.To4() != nil) {
			return fmt.Errorf("routes[%d].gw: %s is of another family than %s", i, route.GW, route.Dst.IP)
		}
	}
	for i, link := range r.Interfaces {
		if link == nil || link.Name == "" {
			return fmt.Errorf("interfaces[%d].name: is missing", i)
		}
		if link.Mac != "" {
			if _, err := net.ParseMAC(link.Mac); err != nil {
				return fmt.Errorf("interfaces[%d].mac: %w", i, err)
			}
		}
	}
	for i, server := range r.DNS.Nameservers {
		if net.ParseIP(server) == nil {
			return fmt.Errorf("dns.nameservers[%d]: %q is no address", i, server)
		}
	}
	return nil
}

// parseError is the message of CNI's error object, "" where out is none.
func parseError(out []byte) string {
	var e types.Error
	if json.Unmarshal(out, &e) != nil || e.Msg == "" || e.Code == 0 {
		return ""
	}
	text := e.Msg
	if e.Details != "" {
		text += "; " + e.Details
	}
	return words([]byte(fmt.Sprintf("%s (code %d)", text, e.Code)))
}

// complaint is what a failed call has said: the error that it answered, else whatever it wrote.
func complaint(stdout, stderr []byte) string {
	if text := parseError(bytes.TrimSpace(stdout)); text != "" {
		return text
	}
	said := []string{}
	for _, stream := range [][]byte{stdout, stderr} {
		if text := words(stream); text != "" {
			said = append(said, text)
		}
	}
	return strings.Join(said, "; ")
}

// words makes what a plugin has written one line of a message: bounded, and without what would move a terminal's cursor.
func words(b []byte) string {
	const most = 2000
	cut := ""
	if b = bytes.TrimSpace(b); len(b) > most {
		b, cut = b[:most], "…"
		for len(b) > 0 && !utf8.Valid(b[len(b)-1:]) && !utf8.Valid(b[max(0, len(b)-utf8.UTFMax):]) {
			b = b[:len(b)-1]
		}
	}
	text := strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(b), "?"))
	return strings.Join(strings.Fields(text), " ") + cut
}
