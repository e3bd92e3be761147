//go:build e2e

package docker_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// hop is a line of `kuryr trace`.
type hop struct {
	Where, Device, What, Rule, Mend string
	Answer, Stop                    bool
}

// traced is what `kuryr trace -o json` tells.
type traced struct {
	Plan        []hop
	Differences []string
	Probe       *struct {
		Outcome, Text string
		Hops          []hop
		At            int
	}
	Verdict string
	Reached bool
	said    string
}

// trace runs `kuryr trace` and checks that its exit code says what its report does.
func (r rig) trace(t *testing.T, args ...string) traced {
	t.Helper()
	res := r.sh(append([]string{kuryr, "trace", "-o", "json"}, args...)...)
	out := traced{said: res.String()}
	if err := json.Unmarshal([]byte(res.Stdout), &out); err != nil {
		t.Fatalf("%v: %s", err, res)
	}
	if res.OK() != out.Reached {
		t.Errorf("the exit code is not the verdict's: %s", res)
	}
	if len(out.Differences) > 0 && args[0] != "guardless" {
		t.Errorf("store and kernel differ: %s", out.Differences)
	}
	return out
}

// wants checks the probe's outcome, and that the verdict holds words.
func (tr traced) wants(t *testing.T, outcome string, reached bool, words ...string) {
	t.Helper()
	if tr.Probe == nil || tr.Probe.Outcome != outcome || tr.Reached != reached {
		t.Errorf("want %s, reached %v: %s", outcome, reached, tr.said)
		return
	}
	for _, w := range words {
		if !strings.Contains(tr.Verdict, w) {
			t.Errorf("the verdict does not hold %q: %s", w, tr.said)
		}
	}
}

// plans checks where the plan ends, and whether it stops there.
func (tr traced) plans(t *testing.T, stop bool, words ...string) {
	t.Helper()
	if len(tr.Plan) == 0 || tr.Plan[len(tr.Plan)-1].Stop != stop {
		t.Errorf("want a plan that stops: %v: %s", stop, tr.said)
		return
	}
	last := tr.Plan[len(tr.Plan)-1]
	for _, w := range words {
		if !strings.Contains(last.Where+" "+last.What+" "+last.Mend, w) {
			t.Errorf("the plan's last hop does not hold %q: %s", w, tr.said)
		}
	}
}

// `kuryr trace` says which way packets go, and who drops them.
func TestTrace(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	needs(t, ownKernel)
	r := newRig(t)
	r.network(t, "tr-blue", "--ipv6", "--subnet", "10.70.1.0/24", "--subnet", "fd70:1::/64")
	r.network(t, "tr-red", "--subnet", "10.70.2.0/24")
	r.network(t, "tr-lab1", "--subnet", "10.70.3.0/24", "-o", "kuryr.router=tr-lab")
	r.network(t, "tr-lab2", "--subnet", "10.70.4.0/24", "-o", "kuryr.router=tr-lab")
	r.network(t, "tr-inner", "--internal", "--subnet", "10.70.5.0/24")
	web := r.run(t, "web", "tr-blue", "-p", "8070:7000")
	r.run(t, "db", "tr-blue")
	red := r.run(t, "red", "tr-red")
	r.run(t, "lab1", "tr-lab1")
	r.run(t, "lab2", "tr-lab2")
	r.run(t, "inner", "tr-inner")
	outside := out4.String() + ":" + port

	t.Run("one network", func(t *testing.T) {
		for _, to := range [][]string{
			{"db"}, {"db", "-6"}, {"db:" + port + "/tcp"}, {"db:" + port + "/udp", "--family", "6"},
		} {
			tr := r.trace(t, append([]string{"web"}, to...)...)
			tr.plans(t, false, "bridge br-", "container db")
			tr.wants(t, "answered", true, "answered: ")
		}
		// Whatever the container is called.
		for _, name := range []string{strings.TrimSpace(r.docker(t, "inspect", "-f", "{{.Id}}", "web")), web.ip4.String()} {
			r.trace(t, name, "db", "--plan").plans(t, false, "container db")
		}
	})
	t.Run("networks of a router", func(t *testing.T) {
		tr := r.trace(t, "lab1", "lab2:"+port+"/udp")
		tr.plans(t, false, "router tr-lab", "container lab2")
		tr.wants(t, "answered", true, "datagram from 10.70.4.")
	})
	t.Run("another router", func(t *testing.T) {
		tr := r.trace(t, "web", "red:"+port)
		tr.plans(t, true, "host", "nothing else into a router")
		tr.wants(t, "dropped", false, "inet kuryr forward", "nothing else into a router", "in host")
	})
	t.Run("outside", func(t *testing.T) {
		for _, to := range []string{
			out4.String(), out6.String(), outside, outside + "/udp",
			"[" + out6.String() + "]:" + port,
		} {
			tr := r.trace(t, "web", to)
			tr.plans(t, false, "host", "SNAT")
			tr.wants(t, "answered", true)
		}
	})
	t.Run("published", func(t *testing.T) {
		for _, from := range []string{"red", "web"} { // the other is its own
			tr := r.trace(t, from, "host:8070/tcp")
			tr.plans(t, false, "router of tr-blue", "container web")
			tr.wants(t, "answered", true, "SYN-ACK from "+host4.String()+":8070")
		}
		r.trace(t, "red", host4.String()+":8071").wants(t, "answered", true, "RST", "nothing listens there")
		if list := r.must(t, kuryr, "port", "published", "web"); list != port+
			"/tcp -> 0.0.0.0:8070\n"+port+"/tcp -> [::]:8070" {
			t.Errorf("kuryr port published web:\n%s", list)
		}
		if res := r.sh(kuryr, "port", "published", "db"); res.OK() || !strings.Contains(res.Stderr, "publishes no port") {
			t.Errorf("of one that publishes nothing: %s", res)
		}
		if list := r.must(t, kuryr, "port", "published"); !strings.Contains(list, "web") ||
			!strings.Contains(list, "0.0.0.0:8070") ||
			!strings.Contains(list, web.ip4.String()+":"+port+"/tcp") {
			t.Errorf("kuryr port published:\n%s", list)
		}
	})
	t.Run("DOCKER-USER", func(t *testing.T) {
		rule := []string{"DOCKER-USER", "-d", out4.String(), "-m", "comment", "--comment", "not there", "-j", "DROP"}
		r.must(t, append([]string{"iptables", "-I"}, rule...)...)
		tr := r.trace(t, "web", outside)
		tr.wants(t, "dropped", false, "ip filter DOCKER-USER", `"not there"`, "in host")
		if tr.Probe.At < 1 || !strings.Contains(tr.Probe.Hops[tr.Probe.At-1].Rule, out4.String()) {
			t.Errorf("the rule's text is missing: %s", tr.said)
		}
		r.must(t, append([]string{"iptables", "-D"}, rule...)...)
		r.trace(t, "web", outside).wants(t, "answered", true)
	})
	t.Run("Docker's isolation", func(t *testing.T) {
		r.docker(t, "network", "create", "-d", "bridge", "--subnet", "10.70.9.0/24", "tr-dockers")
		t.Cleanup(func() { r.sh("docker", "network", "rm", "tr-dockers") })
		d := r.run(t, "dockers", "tr-dockers")
		major, err := privatehost.EngineMajor(privatehost.Options{})
		if err != nil {
			t.Fatal(err)
		}
		chain := "ip filter DOCKER"
		if major >= 28 { // which let nobody past the bridge to a container's own address
			chain = "ip raw PREROUTING"
		}
		r.trace(t, "web", d.ip4.String()+":"+port).wants(t, "dropped", false, chain, "in host")
	})
	t.Run("internal", func(t *testing.T) {
		tr := r.trace(t, "inner", out4.String())
		tr.plans(t, true, "container inner", "no route", "--internal")
		tr.wants(t, "unsent", false, "no route")
	})
	t.Run("several networks", func(t *testing.T) {
		r.run(t, "several", "tr-lab1")
		r.docker(t, "network", "connect", "tr-red", "several")
		for from, c := range map[string]struct{ to, router string }{
			"tr-lab1": {outside, "router tr-lab"}, "tr-red": {"red", "router of tr-red"},
		} {
			tr := r.trace(t, "several", c.to, "--from", from)
			tr.wants(t, "answered", true)
			if len(tr.Probe.Hops) < 2 || tr.Probe.Hops[1].Where != c.router {
				t.Errorf("from %s: %s", from, tr.said)
			}
		}
		// Docker gives one network of a container the default route.
		r.trace(t, "several", outside, "--from", "tr-red", "--plan").plans(t, true, "no route", "by eth1")
		// Without it as the container's routes say.
		r.trace(t, "several", "red").plans(t, false, "router of tr-red", "container red")
		r.trace(t, "several", "lab1").plans(t, false, "router tr-lab", "container lab1")
	})
	t.Run("no guard", func(t *testing.T) {
		g := r.run(t, "guardless", "tr-red")
		reaches(t, g.in, red.ip4, g.ip4) // so that the neighbour is known
		var ports []struct {
			VIF map[string]string `json:"binding:vif_details"`
		}
		text := r.must(t, kuryr, "port", "list", "-o", "json", "--filter", "fixed_ips=ip_address="+g.ip4.String())
		if err := json.Unmarshal([]byte(text), &ports); err != nil || len(ports) != 1 {
			t.Fatalf("%v:\n%s", err, text)
		}
		r.must(t, "nsenter", "--net="+ports[0].VIF["netns"], "nft", "flush", "set", "bridge", "kuryr", "ip4")
		tr := r.trace(t, "guardless", "red")
		tr.plans(t, true, "anti-spoofing has no element", "kuryr sdn reconcile")
		tr.wants(t, "dropped", false, "bridge kuryr ip4_source")
		if len(tr.Differences) == 0 {
			t.Errorf("it does not tell what differs from the store: %s", tr.said)
		}
		r.must(t, kuryr, "sdn", "reconcile")
		r.trace(t, "guardless", "red").wants(t, "answered", true)
	})
	t.Run("killed", func(t *testing.T) {
		// Nobody is at this address, so that the command waits when it is killed.
		res := r.sh("timeout", "-s", "KILL", "1", kuryr, "trace", "web", "10.70.1.99", "--wait", "30s")
		if res.OK() {
			t.Fatalf("it ended before it was killed: %s", res)
		}
		for _, in := range []runner{r.sh, web.in} {
			eventually(t, limit, func() string { // timeout does not wait until the kernel has done with the killed
				if tables := in("nft", "list", "tables"); !tables.OK() || strings.Contains(tables.Stdout, "kuryr-trace") {
					return "left behind: " + tables.String()
				}
				return ""
			})
		}
	})
	t.Run("mistakes", func(t *testing.T) {
		for _, c := range []struct{ from, to, says string }{
			{"nobody", "db", "there is no running container"},
			{"web", "nobody", "there is no running container"},
			{"web", "db:0", "want a number from 1 to 65535"},
			{"web", "db:80/sctp", "want tcp or udp"},
		} {
			if res := r.sh(kuryr, "trace", c.from, c.to); res.OK() ||
				!strings.Contains(res.Stderr, c.says) || strings.Count(res.Stderr, "\n") != 1 {
				t.Errorf("trace %s %s: %s", c.from, c.to, res)
			}
		}
	})
}

// A bundle is made whether Kuryr runs or not, and keeps nobody's secrets.
func TestSupportBundle(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	r := newRig(t)
	const secret = "hunter2-e2e"
	r.network(t, "sb-net", "--subnet", "10.71.1.0/24")
	r.run(t, "sb", "sb-net", "-e", "PASSWORD="+secret, "--label", "token="+secret, "-p", "8071:7000")
	contents := func() string {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		res := r.Exec(ctx, "sh", "-c", kuryr+" support-bundle - | tar -xzO")
		if !res.OK() {
			t.Fatal(res)
		}
		return res.Stdout
	}
	text := contents()
	wanted := []string{"10.71.1.0/24", "sb-net", "kuryr_build_info", "ip_forward"}
	if has(ownKernel) {
		wanted = append(wanted, "table inet kuryr", "published4")
	}
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("the bundle does not hold %q", want)
		}
	}
	if strings.Contains(text, secret) {
		t.Error("the bundle holds a container's secret")
	}
}
