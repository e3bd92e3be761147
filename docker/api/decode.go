package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
)

// Request is a request that Decode reads.
type Request interface{ decode(d *decoder) }

// Decode reads the body of a call. It ignores fields that it does not know: new engines add some.
func Decode(body []byte, r Request) error {
	d := &decoder{body: bytes.TrimSpace(body)}
	if len(d.body) == 0 {
		return &Error{http.StatusBadRequest,
			"the call came without a body: the engine repeated it after its connection broke; try again"}
	}
	d.check(d.body[0] == '{', "body", "must be a JSON object")
	if d.err == nil {
		r.decode(d)
	}
	return d.err
}

// decoder reads a request and keeps the first error. What it reads after that is not used.
type decoder struct {
	body []byte
	err  error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// check fails with an error of the field unless ok.
func (d *decoder) check(ok bool, field, format string, args ...any) {
	if !ok && d.err == nil {
		d.err = &Error{http.StatusBadRequest, field + ": " + fmt.Sprintf(format, args...)}
	}
}

func (d *decoder) object(v any) { d.unmarshal("", d.body, v) }

// unmarshal decodes JSON. Its errors name the field, which is below the given one.
func (d *decoder) unmarshal(field string, data []byte, v any) {
	err := json.Unmarshal(data, v)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		field = strings.Trim(field+"."+wrong.Field, ".")
	}
	if field == "" {
		field = "body"
	}
	if wrong != nil {
		d.check(false, field, "must be %s, not a JSON %s", jsonKind(wrong), wrong.Value)
	}
	d.check(err == nil, field, "invalid JSON value: %v", err)
}

func jsonKind(e *json.UnmarshalTypeError) string {
	switch kind := e.Type.Kind(); kind {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	default:
		return "a whole number (" + kind.String() + ")"
	}
}

// options are values by their keys. Each key has a type of its own.
type options map[string]json.RawMessage

// option decodes one of the options. It leaves v unchanged if the option is absent or null.
func (d *decoder) option(o options, name string, v any) {
	if raw, ok := o[name]; ok {
		d.unmarshal("Options."+name, raw, v)
	}
}

// idPattern matches the ids of engines: 64 hexadecimal digits, or 25 digits of base 36 in a swarm.
// It allows others that can be part of an sdn.Key.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

func (d *decoder) checkID(field, id string) {
	d.check(idPattern.MatchString(id), field,
		"must be 1 to 128 letters, digits, '_', '.' or '-', not %q", Clip(id, 140))
}

// addr parses an address, see parseAddr. The result for "" is invalid.
func (d *decoder) addr(field, s string) netip.Addr {
	a, ok := parseAddr(s)
	d.check(ok || s == "", field, "must be an IP address, not %q", Clip(s, 140))
	return a
}

// parseAddr parses an address. It ignores a prefix length: some engines send one.
func parseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if strings.Contains(s, "/") {
		var p netip.Prefix
		p, err = netip.ParsePrefix(s)
		a = p.Addr()
	}
	return a, err == nil && a.Zone() == "" && !a.Is4In6()
}

// prefix parses an address of a family with a prefix length. It keeps host bits. The result for ""
// is invalid.
func (d *decoder) prefix(field, s string, v6 bool) netip.Prefix {
	if s == "" {
		return netip.Prefix{}
	}
	form := "an IPv4 address with a prefix length, such as 10.0.0.0/24"
	if v6 {
		form = "an IPv6 address with a prefix length, such as fd00:1::/64"
	}
	p, err := netip.ParsePrefix(s)
	d.check(err == nil && !p.Addr().Is4In6() && p.Addr().Is6() == v6, field,
		"must be %s, not %q", form, Clip(s, 140))
	return p
}

// mac parses a MAC address. The result for "" is nil.
func (d *decoder) mac(field, s string) net.HardwareAddr {
	if s == "" {
		return nil
	}
	mac, err := net.ParseMAC(s)
	d.check(err == nil, field, "must be a MAC address such as 02:42:ac:11:00:02, not %q", Clip(s, 140))
	d.checkMAC(field, mac)
	return mac
}

func (d *decoder) checkMAC(field string, mac net.HardwareAddr) {
	d.check(isUnicast(mac), field, "must be a unicast MAC address of 6 bytes, not %s", mac)
}

func isUnicast(mac net.HardwareAddr) bool {
	return len(mac) == 6 && mac[0]&1 == 0 && !bytes.Equal(mac, make([]byte, 6))
}

// isText reports whether a text has 1 to 255 bytes and no control characters.
func isText(s string) bool {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	return s != "" && len(s) <= 255 && !strings.ContainsFunc(s, control)
}

// split splits a list at commas and spaces: docker --driver-opt takes commas only in quotes. It
// keeps empty items, which are invalid everywhere.
func split(text string) []string {
	var list []string
	for part := range strings.SplitSeq(text, ",") {
		if words := strings.Fields(part); len(words) > 0 {
			list = append(list, words...)
		} else {
			list = append(list, "")
		}
	}
	return list
}

// Error is an error in the call itself. It is answered with an HTTP status.
type Error struct {
	Status int
	Text   string
}

// Error returns the text.
func (e *Error) Error() string { return e.Text }

// Refusal is an error whose text is shown to the user of Docker. It is answered with status 200.
type Refusal struct {
	Text  string
	Cause error // only logged; nil if there is none
}

// Error returns the text and the cause.
func (e *Refusal) Error() string {
	if e.Cause != nil {
		return e.Text + ": " + e.Cause.Error()
	}
	return e.Text
}

// Unwrap returns the cause.
func (e *Refusal) Unwrap() error { return e.Cause }

// Refuse returns a refusal.
func Refuse(format string, args ...any) error { return RefuseFor(nil, format, args...) }

// RefuseFor returns a refusal with a cause.
func RefuseFor(cause error, format string, args ...any) error {
	return &Refusal{Text: fmt.Sprintf(format, args...), Cause: cause}
}

// ErrorResponse answers a call that failed. The network side of Docker reads Err, the IPAM side
// Error.
type ErrorResponse struct{ Err, Error string }

// Line makes a text one line of at most 1,000 bytes without control characters.
func Line(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return ' '
		}
		return r
	}, s)
	return Clip(s, 1000)
}

// Clip cuts a text to n bytes.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
