package neutron

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/sdn"
	"pgregory.net/rapid"
)

// Rules that Neutron has, in its words, and the rule of the contract each is.
func TestRulesOfNeutron(t *testing.T) {
	web := sdn.Rule{ID: "r", Direction: sdn.Ingress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: 80, Last: 80}}
	numbered := web
	numbered.Numeric = true
	for said, want := range map[string]sdn.Rule{
		`{"protocol":"tcp","port_range_min":80,"port_range_max":80}`:                  web,
		`{"protocol":"6","port_range_min":80,"port_range_max":80,"description":null}`: numbered,
		`{"protocol":"any"}`: {ID: "r", Direction: sdn.Ingress},
		`{"protocol":"udp","port_range_min":1,"port_range_max":65535}`:                            {ID: "r", Direction: sdn.Ingress, Protocol: sdn.UDP},
		`{"protocol":null,"remote_ip_prefix":"0.0.0.0/0"}`:                                        {ID: "r", Direction: sdn.Ingress},
		`{"remote_ip_prefix":"10.1.2.3/8","normalized_cidr":"10.0.0.0/8"}`:                        {ID: "r", Direction: sdn.Ingress, RemotePrefix: netip.MustParsePrefix("10.0.0.0/8")},
		`{"remote_ip_prefix":"192.0.2.7"}`:                                                        {ID: "r", Direction: sdn.Ingress, RemotePrefix: netip.MustParsePrefix("192.0.2.7/32")},
		`{"ethertype":"IPv6","protocol":"icmp","port_range_min":128}`:                             {ID: "r", Direction: sdn.Ingress, IPv6: true, Protocol: 58, ICMPType: octet(128)},
		`{"ethertype":"IPv6","protocol":"icmpv6"}`:                                                {ID: "r", Direction: sdn.Ingress, IPv6: true, Protocol: 58},
		`{"protocol":"icmp","port_range_min":3,"port_range_max":0}`:                               {ID: "r", Direction: sdn.Ingress, Protocol: 1, ICMPType: octet(3), ICMPCode: octet(0)},
		`{"protocol":"vrrp","remote_group_id":"g"}`:                                               {ID: "r", Direction: sdn.Ingress, Protocol: 112, RemoteGroup: "g"},
		`{"protocol":"dccp","port_range_min":5,"port_range_max":7,"remote_address_group_id":"s"}`: {ID: "r", Direction: sdn.Ingress, Protocol: 33, Ports: sdn.PortRange{First: 5, Last: 7}, RemoteSet: "s"},
	} {
		w := ruleWire{ID: "r", Direction: "ingress", EtherType: "IPv4"}
		if err := json.Unmarshal([]byte(said), &w); err != nil {
			t.Fatal(err)
		}
		got, ok := w.decode()
		if !ok || !sameRule(got, want) {
			t.Errorf("%s is %+v (%v), want %+v", said, got, ok, want)
		}
	}
	for _, said := range []string{`{"protocol":"hopopt"}`, `{"protocol":"0"}`, `{"protocol":"of-tomorrow"}`, `{"remote_ip_prefix":"?"}`} {
		w := ruleWire{ID: "r", Direction: "ingress", EtherType: "IPv4"}
		if err := json.Unmarshal([]byte(said), &w); err != nil {
			t.Fatal(err)
		}
		if got, ok := w.decode(); ok {
			t.Errorf("%s, which the contract cannot say, is %+v", said, got)
		}
	}
}

func sameRule(a, b sdn.Rule) bool {
	same := func(x, y *uint8) bool { return (x == nil) == (y == nil) && (x == nil || *x == *y) }
	ok := same(a.ICMPType, b.ICMPType) && same(a.ICMPCode, b.ICMPCode)
	a.ICMPType, a.ICMPCode, b.ICMPType, b.ICMPCode = nil, nil, nil, nil
	return ok && a == b
}

// What is sent, as Neutron would say it back, is the same rule; so what was applied is found to be there.
func TestRulesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.Uint8Range(0, 3)
		r := sdn.Rule{
			Direction: rapid.SampledFrom([]sdn.Direction{sdn.Ingress, sdn.Egress}).Draw(t, "direction"),
			IPv6:      rapid.Bool().Draw(t, "ipv6"),
			Protocol:  rapid.SampledFrom([]sdn.Protocol{0, 1, 6, 17, 33, 47, 58, 132, 255}).Draw(t, "protocol"),
		}
		if ipproto.HasPorts(r.Protocol) {
			r.Ports.First = rapid.Uint16().Draw(t, "first")
			if r.Ports.First != 0 {
				r.Ports.Last = rapid.Uint16().Draw(t, "last")
			}
		}
		r.Numeric = ipproto.Named(r.Protocol) && rapid.Bool().Draw(t, "numeric")
		if r.Protocol == 1 || r.Protocol == 58 {
			if n := small.Draw(t, "type"); n != 0 {
				r.ICMPType = &n
				if code := small.Draw(t, "code"); code != 0 {
					r.ICMPCode = &code
				}
			}
		}
		switch small.Draw(t, "remote") {
		case 1:
			base := "10.1.2.3"
			if r.IPv6 {
				base = "fd00::1:2:3"
			}
			r.RemotePrefix = netip.PrefixFrom(netip.MustParseAddr(base), rapid.IntRange(0, 32).Draw(t, "bits"))
		case 2:
			r.RemoteGroup = "g"
		case 3:
			r.RemoteSet = "s"
		}
		k, err := keyOf(r, "rules[0]")
		if err != nil {
			if !sdn.IsInvalid(err) || sdn.FieldOf(err) == "" {
				t.Fatalf("the error %v names no field", err)
			}
			return
		}
		body := k.body("group", "project", sdn.Rule{Description: "words", Numeric: r.Numeric})
		again, ok := body.key()
		if !ok || again != k {
			t.Fatalf("%+v was sent as %+v, which is %+v", k, body, again)
		}
		shown, ok := body.decode()
		if !ok {
			t.Fatalf("%+v cannot be said", body)
		}
		if shown.Numeric != r.Numeric {
			t.Fatalf("by number is %t, was said %t", shown.Numeric, r.Numeric)
		}
		if back, err := keyOf(shown, "rules[0]"); err != nil || back != k {
			t.Fatalf("%+v is shown as %+v, which is %+v (%v)", k, shown, back, err)
		}
	})
}
