package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// engineVersion is how a version of the engine reads answers (moby: libnetwork's drivers/remote and ipams/remote).
type engineVersion struct {
	version string
	prefix  func(string) error
}

var engines = []engineVersion{
	{"20.10", func(s string) error { _, _, err := net.ParseCIDR(s); return err }},
	{"29", func(s string) error { _, err := netip.ParsePrefix(s); return err }},
}

// answer has every field that engines decode, with the type they have it in.
type answer struct {
	Err, Error                                          string
	Implements                                          []string
	Scope, ConnectivityScope                            string
	GwAllocChecker, SkipIPv4, SkipIPv6                  bool
	RequiresMACAddress, RequiresRequestReplay           bool
	LocalDefaultAddressSpace, GlobalDefaultAddressSpace string
	PoolID, Pool, Address                               string
	Data, Options                                       map[string]string
	Value                                               map[string]any
	Interface                                           *struct{ Address, AddressIPv6, MacAddress string }
	InterfaceName                                       *struct{ SrcName, DstPrefix, DstName string }
	Gateway, GatewayIPv6                                string
	StaticRoutes                                        []struct {
		Destination, NextHop string
		RouteType            int
	}
	DisableGatewayService bool
}

// judge tells what an engine finds wrong in an answer to a call that it takes to be done.
func (e engineVersion) judge(method string, body map[string]any, raw []byte) error {
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil {
		return err
	}
	if a.Err != "" || a.Error != "" {
		return errors.New(a.Err + a.Error)
	}
	asked := func(field string) string { s, _ := body[field].(string); return s }
	switch method {
	case "Plugin.Activate":
		return must(
			slices.Contains(a.Implements, "NetworkDriver") &&
				slices.Contains(a.Implements, "IpamDriver"),
			"not both drivers",
		)
	case "NetworkDriver.GetCapabilities":
		return errors.Join(
			must(scope(a.Scope), "scope"),
			must(a.ConnectivityScope == "" || scope(a.ConnectivityScope), "connectivity scope"),
		)
	case "IpamDriver.GetDefaultAddressSpaces":
		return must(a.LocalDefaultAddressSpace != "" && a.GlobalDefaultAddressSpace != "", "no address spaces")
	case "IpamDriver.RequestPool":
		return errors.Join(
			e.prefix(a.Pool), must(a.PoolID != "", "no id"),
			must(asked("Pool") == "" || asked("Pool") == a.Pool, "another range"),
		)
	case "IpamDriver.RequestAddress":
		bare, _, _ := strings.Cut(a.Address, "/")
		return errors.Join(e.prefix(a.Address), must(asked("Address") == "" || asked("Address") == bare, "another address"))
	case "NetworkDriver.AllocateNetwork":
		given, _ := body["Options"].(map[string]any)
		return must(len(given) == len(a.Options), "the user's options are lost")
	case "NetworkDriver.CreateEndpoint":
		given, _ := body["Interface"].(map[string]any)
		return e.judgeInterface(given, a)
	case "NetworkDriver.Join":
		return e.judgeJoin(a)
	case "NetworkDriver.EndpointOperInfo":
		return must(a.Value != nil, "no value")
	}
	return nil
}

func must(ok bool, what string) error {
	if ok {
		return nil
	}
	return errors.New(what)
}

func scope(s string) bool { return s == string(Local) || s == string(Global) }

// judgeInterface: what the engine gave must come back empty, and what it did not give must be fit to be set.
func (e engineVersion) judgeInterface(given map[string]any, a answer) error {
	i := a.Interface
	if i == nil {
		return must(given["MacAddress"] != "", "no MAC")
	}
	var errs []error
	for _, f := range []struct{ field, value string }{{"Address", i.Address}, {"AddressIPv6", i.AddressIPv6}} {
		if f.value != "" {
			errs = append(errs, e.prefix(f.value), must(given[f.field] == "", f.field+" was given and came back"))
		}
	}
	if i.MacAddress != "" {
		_, err := net.ParseMAC(i.MacAddress)
		errs = append(errs, err, must(given["MacAddress"] == "", "the MAC was given and came back"))
	}
	return errors.Join(append(errs, must(given["MacAddress"] != "" || i.MacAddress != "", "no MAC"))...)
}

func (e engineVersion) judgeJoin(a answer) error {
	var errs []error
	if n := a.InterfaceName; n == nil || n.SrcName == "" || len(n.SrcName) > 15 || n.DstPrefix == "" {
		errs = append(errs, fmt.Errorf("interface name %+v", n))
	}
	for _, g := range []struct {
		text string
		v6   bool
	}{{a.Gateway, false}, {a.GatewayIPv6, true}} {
		if g.text != "" {
			ip := net.ParseIP(g.text)
			errs = append(errs, must(ip != nil && (ip.To4() == nil) == g.v6, "gateway "+g.text))
		}
	}
	for _, route := range a.StaticRoutes {
		errs = append(errs, e.prefix(route.Destination), must(route.RouteType == 0 || route.RouteType == 1, "route type"),
			must((route.RouteType == 0) == (net.ParseIP(route.NextHop) != nil), "next hop "+route.NextHop))
	}
	return errors.Join(errs...)
}

// answeredError tells what keeps an engine from taking an answer for an error that it can show.
func answeredError(method string, status int, raw []byte) error {
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil {
		return err
	}
	switch {
	case status == http.StatusNotFound && strings.Contains(method, "ExternalConnectivity"):
		return errors.New("taken for a method that is not there")
	case status != http.StatusOK:
		return must(a.Err != "", "no text") // of both sides
	case strings.HasPrefix(method, "IpamDriver."):
		return must(a.Error != "", "taken for done")
	}
	return must(a.Err != "", "taken for done")
}
