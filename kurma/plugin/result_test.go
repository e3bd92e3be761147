//go:build linux

package plugin

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestParseResult(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want, complaint string }{
		"kurma":       {in: `{"ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0"}]},"ip6":{"ip":"fd00::2/64"},"dns":{"nameservers":["10.1.0.1"]}}`, want: `"address":"10.1.0.2/24"`},
		"0.2.0":       {in: `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24"}}`, want: `"address":"10.1.0.2/24"`},
		"0.4.0":       {in: `{"cniVersion":"0.4.0","interfaces":[{"name":"eth0"}],"ips":[{"version":"4","address":"10.1.0.2/24","interface":0}]}`, want: `"interface":0`},
		"1.0.0":       {in: `{"cniVersion":"1.0.0","ips":[{"address":"fd00::2/64"}]}`, want: `"address":"fd00::2/64"`},
		"1.1.0":       {in: `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","mtu":1450}],"ips":[]}`, want: `"mtu":1450`},
		"no version":  {in: `{"ips":[{"address":"10.1.0.2/24"}]}`, want: `"address":"10.1.0.2/24"`},
		"with family": {in: `{"ips":[{"version":"4","address":"10.1.0.2/24"}]}`, want: `"address":"10.1.0.2/24"`},
		"loopback":    {in: "{}\n", want: `"cniVersion":"1.1.0"`},

		"nothing":        {in: " \n", complaint: "it answered nothing"},
		"no JSON":        {in: "done", complaint: "is no JSON object"},
		"a list":         {in: "[]", complaint: "is no JSON object"},
		"null":           {in: "null", complaint: "null"},
		"two":            {in: "{}{}", complaint: "is no JSON object"},
		"an error":       {in: `{"code":7,"msg":"no"}`, complaint: "it ended well, and answered an error: no (code 7)"},
		"no CIDR":        {in: `{"ip4":{"ip":"10.1.0.2"}}`, complaint: "invalid CIDR"},
		"no address":     {in: `{"ip4":{}}`, complaint: "ip4.ip: is missing"},
		"family of ip4":  {in: `{"ip4":{"ip":"fd00::2/64"}}`, complaint: "ip4.ip: fd00::2 is not IPv4"},
		"family of ip6":  {in: `{"ip6":{"ip":"10.1.0.2/24"}}`, complaint: "ip6.ip: 10.1.0.2 is not IPv6"},
		"gateway":        {in: `{"ip4":{"ip":"10.1.0.2/24","gateway":"fd00::1"}}`, complaint: "ip4.gateway: fd00::1 is not IPv4"},
		"route":          {in: `{"ip4":{"ip":"10.1.0.2/24","routes":[{"dst":"fd00::/64"}]}}`, complaint: "ip4.routes[0]"},
		"both forms":     {in: `{"ip4":{"ip":"10.1.0.2/24"},"ips":[]}`, complaint: "want the one or the other"},
		"form of later":  {in: `{"cniVersion":"1.0.0","ip4":{"ip":"10.1.0.2/24"}}`, complaint: "which CNI 1.0.0 has not"},
		"form of old":    {in: `{"cniVersion":"0.1.0","ips":[]}`, complaint: "which CNI 0.1.0 has not"},
		"version":        {in: `{"cniVersion":"9.0.0"}`, complaint: "9.0.0"},
		"version's type": {in: `{"cniVersion":1}`, complaint: "cniVersion is no text"},
		"interface":      {in: `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24","interface":2}]}`, complaint: "ips[0].interface: 2, and interfaces has 0"},
		"unspecified":    {in: `{"cniVersion":"1.0.0","ips":[{"address":"0.0.0.0/0"}]}`, complaint: "is no interface's address"},
		"other family":   {in: `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24","gateway":"fd00::1"}]}`, complaint: "ips[0].gateway"},
		"mac":            {in: `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"x"}]}`, complaint: "interfaces[0].mac"},
		"no name":        {in: `{"cniVersion":"1.0.0","interfaces":[{}]}`, complaint: "interfaces[0].name"},
		"name server":    {in: `{"dns":{"nameservers":["dns.example"]}}`, complaint: "dns.nameservers[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := parseResult([]byte(c.in))
			if c.complaint != "" {
				if err == nil || !strings.Contains(err.Error(), c.complaint) {
					t.Errorf("%+v, %v", r, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(r)
			if err != nil || !strings.Contains(string(text), c.want) {
				t.Errorf("%s, %v", text, err)
			}
		})
	}
}

func TestComplaint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ out, err, want string }{
		{`{"code":3,"msg":"no such bridge"}`, "trace", "no such bridge (code 3)"},
		{`{"code":3,"msg":"no","details":"really"}`, "", "no; really (code 3)"},
		{"{}", "trace", "{}; trace"},
		{"", "two\n\tlines\x1b[2J", "two lines[2J"},
		{"", "", ""},
		{"\xff", "", "?"},
		{strings.Repeat("é", 3000), "", strings.Repeat("é", 1000) + "…"},
	} {
		if got := complaint([]byte(c.out), []byte(c.err)); got != c.want {
			t.Errorf("%q and %q: %q", c.out, c.err, got)
		}
	}
}

func FuzzParseResult(f *testing.F) {
	f.Add([]byte(`{"ip4":{"ip":"10.1.0.2/24"}}`))
	f.Add([]byte(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","interface":0}],"interfaces":[{"name":"a"}]}`))
	f.Add([]byte(`{"ips":[null],"routes":[null],"interfaces":[null]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := parseResult(in)
		if err != nil {
			return
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("%q was taken, and cannot be shown: %v", in, err)
		}
		if _, err := parseResult(text); err != nil {
			t.Errorf("%q was taken, and what is shown of it is not: %s: %v", in, text, err)
		}
	})
}
