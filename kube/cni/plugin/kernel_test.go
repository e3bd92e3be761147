//go:build linux

package plugin

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// links lists the links of a namespace but lo.
func links(t *testing.T, ns netns.NsHandle) (names []string) {
	t.Helper()
	nstest.Do(t, ns, func() {
		list, err := netlink.LinkList()
		if err != nil {
			t.Error(err)
		}
		for _, l := range list {
			if name := l.Attrs().Name; name != "lo" {
				names = append(names, name)
			}
		}
	})
	return names
}

// Without the daemon, DEL and a failed ADD leave no interface, neither in the container nor on the host.
func TestNothingLeftWithoutDaemon(t *testing.T) {
	host, container := nstest.New(t), nstest.New(t)
	r := newRig(t)
	r.netns = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(container))
	const port = "PORT_UUID=a28c7404-7495-4557-b7fc-3e293508dbc6;PORT_TYPE=tap;IPV4=10.0.0.15/16;GW="
	run := func(verb, args string) (code int, out string) {
		nstest.Do(t, host, func() { code, out = r.run(t, verb, args) })
		return code, out
	}
	empty := func(after string) {
		t.Helper()
		if there := append(links(t, host), links(t, container)...); len(there) != 0 {
			t.Errorf("after %s there are links %v", after, there)
		}
	}
	if code, out := run(cni.Add, port+"224.0.0.1"); code == 0 { // no gateway can have this address
		t.Fatalf("ADD succeeds\n%s", out)
	}
	empty("a failed ADD")
	if code, out := run(cni.Add, port+"10.0.0.1"); code != 0 {
		t.Fatalf("ADD: exit status %d\n%s", code, out)
	}
	if there := links(t, container); strings.Join(there, " ") != "eth0" {
		t.Errorf("after ADD the container has links %v", there)
	}
	if err := os.Rename(r.state+"/bound", r.state+"/other"); err != nil { // as if the daemon had plugged it
		t.Fatal(err)
	}
	if code, out := run(cni.Del, ""); code != 0 || r.owed(t) != 1 {
		t.Errorf("DEL of the daemon's: exit status %d, %d owed\n%s", code, r.owed(t), out)
	}
	empty("DEL of the daemon's")
	if code, out := run(cni.Add, port+"10.0.0.1"); code != 0 {
		t.Fatalf("ADD: exit status %d\n%s", code, out)
	}
	for range 2 {
		if code, out := run(cni.Del, port+"10.0.0.1"); code != 0 {
			t.Errorf("DEL: exit status %d\n%s", code, out)
		}
		empty("DEL")
	}
}
