//go:build e2e

package kurma_test

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// mynet is the specification's own example, with the image at a path, and the interface's name as a template.
func mynet(image string) string {
	return fmt.Sprintf(`{"name": "mynet", "aci": %q, "default": true, "containerInterface": "eth{{num}}", "type": "bridge", "bridge": "mynet0", "isGateway": true, "ipMasq": true,
  "ipam": {"type": "host-local", "subnet": "10.10.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}}`, image)
}

// blue is the SDN's network of that name.
func blue(image, more string) string {
	return fmt.Sprintf(`{"name": "blue", "aci": %q, "containerInterface": "sdn0"%s}`, image, more)
}

func file(name string) string { return "file://" + beside("images/"+name) }

// The specification's own example, and the SDN's network beside it, on both runtimes:
// pods by the hook, with and without a list of networks, talk with one another, the host
// and the outside; they outlive the daemon; and nothing is left of them, nor in the end
// of the networks.
func TestNetworks(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, runtime, mynet(file("cni-netplugin.aci")), blue(file("kuryr-netplugin.aci"), ""))
			r.start()
			r.running()
			idle := r.sight()
			a, b := r.mustLaunch("a", nil), r.mustLaunch("b", map[string]string{"kurma.io/networks": "blue,mynet"})
			c := r.mustLaunch("c", map[string]string{"kurma.io/networks": "blue"})
			if len(a.Attachments) != 1 || len(b.Attachments) != 2 ||
				b.Attachments[0].Interface != "sdn0" || b.Attachments[1].Interface != "eth1" {
				t.Errorf("pods %+v and %+v", a, b)
			}
			r.ping("a", b.address(t, "mynet"))
			r.ping("b", a.address(t, "mynet"))
			r.ping("a", "10.10.0.1")
			r.ping("a", privatehost.NeighbourIPv4.Addr().String())
			r.ping("b", c.address(t, "blue"))
			r.ping("c", b.address(t, "blue"))
			if lo := r.inside("a", "ip", "-br", "addr", "show", "lo"); !strings.Contains(lo, "127.0.0.1") {
				t.Errorf("lo is not up: %s", lo)
			}

			// A container is killed, and its runtime does not run the poststop hook yet.
			r.mustLaunch("d", nil)
			r.must(r.oci("kill", "d", "KILL")...)
			r.eventually("the pod of a killed container is removed", func() bool { return len(r.pods()) == 3 })
			r.remove("d")

			pids := map[string]int{}
			for _, n := range r.networks() {
				pids[n.Name] = n.PID
			}
			r.stop(syscall.SIGKILL)
			r.ping("a", b.address(t, "mynet"))
			r.must(r.oci("kill", "c", "KILL")...)
			r.start()
			r.running()
			for _, n := range r.networks() {
				if n.PID != pids[n.Name] {
					t.Errorf("the plugin of %s was started anew", n.Name)
				}
			}
			r.ping("b", a.address(t, "mynet"))
			for _, name := range []string{"a", "b", "c"} {
				r.remove(name)
			}
			if left := r.pods(); len(left) > 0 {
				t.Errorf("pods left: %+v", left)
			}
			r.same(idle, podsGone...)

			// Without a network, nothing of the daemon is left but its folders.
			r.must("ip", "link", "del", "mynet0") // CNI's bridge stays, as its plugin leaves it
			r.configure()
			r.stop(syscall.SIGTERM)
			r.start()
			r.eventually("no network is left", func() bool { return len(r.networks()) == 0 })
			r.stop(syscall.SIGTERM)
			r.same(
				r.bare, privatehost.Links, privatehost.Addresses, privatehost.Rules,
				privatehost.Namespaces, "mounts", "containers", "pins", "leases", "ports",
			)
			if rules := r.do("sh", "-c", "nft list ruleset | grep CNI-").Out(); rules != "" { // a chain of each pod's own
				t.Errorf("rules of pods are left:\n%s", rules)
			}
		})
	}
}

// Forty pods at once, each with an address of its own on two networks, and away again.
func TestForty(t *testing.T) {
	t.Parallel()
	r := newRig(t, "crun", mynet(file("cni-netplugin.aci")), blue(file("kuryr-netplugin.aci"), ""))
	r.start()
	r.running()
	idle := r.sight()
	const many = 40
	uuid := func(i int) string { return fmt.Sprintf("146d7cef-fbf6-41da-a2f8-0000000000%02d", i) }
	all := func(what func(i int) privatehost.Result) {
		var work sync.WaitGroup
		for i := range many {
			work.Go(func() {
				if result := what(i); !result.OK() {
					t.Error(result)
				}
			})
		}
		work.Wait()
	}
	all(func(i int) privatehost.Result { return r.do(kuryr, "kurma", "add", uuid(i), "--network", "mynet,blue") })
	seen := map[string]bool{}
	for _, p := range r.pods() {
		for _, n := range []string{"mynet", "blue"} {
			seen[p.address(t, n)] = true
		}
	}
	if len(seen) != 2*many {
		t.Errorf("%d pods have %d addresses", many, len(seen))
	}
	all(func(i int) privatehost.Result { return r.do(kuryr, "kurma", "del", uuid(i)) })
	r.same(idle, podsGone...)
}

// Containers of podman by annotation. One that is not granted a network is not created, whatever its user.
func TestPodman(t *testing.T) {
	t.Parallel()
	r := newRig(
		t, "runc", mynet(file("cni-netplugin.aci")),
		blue(file("kuryr-netplugin.aci"), `, "addresses": ["10.1.0.50"]`),
	)
	r.write("/etc/kuryr/kuryr.yaml", "kurma:\n  grants: [blue=1000+cgroup:/blue]\n")
	r.start()
	r.running()
	idle := r.sight()
	r.write(
		"/etc/containers/containers.conf",
		"[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n",
	)
	r.write(
		"/etc/containers/storage.conf",
		"[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\ngraphroot = "+
			"\"/var/lib/containers/storage\"\n",
	)
	r.must(kuryr, "kurma", "hook", "--program", beside("kuryr-oci-hook"), "--folder", "/run/hooks.d")
	podman := func(args ...string) privatehost.Result {
		return r.do(append([]string{"env", "-u", "DOCKER_CONFIG", "podman", "--hooks-dir", "/run/hooks.d"}, args...)...)
	}
	run := func(name, networks string, more ...string) privatehost.Result {
		argv := append(
			[]string{
				"run", "-d", "--name", name, "--network", "none", "--annotation",
				"kurma.io/networks=" + networks,
			},
			more...,
		)
		return podman(append(argv, "--rootfs", r.root(name), "sleep", "3600")...)
	}
	for _, result := range []privatehost.Result{
		run("defaults", ""),
		run("named", "mynet blue", "--cgroup-parent", "/blue", "--cap-add", "net_raw"),
	} {
		if !result.OK() {
			t.Fatal(result)
		}
	}
	if result := podman("exec", "named", "ping", "-c", "1", "-W", "5", "10.10.0.1"); !result.OK() {
		t.Error(result)
	}
	if addresses := podman("exec", "named", "ip", "addr"); !strings.Contains(addresses.Out(), "10.1.0.50/24") {
		t.Errorf("not the address of the entry: %s", addresses)
	}
	result := run("stranger", "blue", "--user", "1000")
	if result.OK() || !strings.Contains(result.String(), "network blue: kurma.grants does not name cgroup /") {
		t.Errorf("a network by the uid that an image can choose: %s", result)
	}
	if result := podman("rm", "-f", "-t", "0", "defaults", "named"); !result.OK() {
		t.Error(result)
	}
	podman("rm", "-f", "-t", "0", "stranger")
	r.same(idle, podsGone...)
}

// A bundle gets a network by its user namespace or its cgroup, not by the user of its process.
func TestGrants(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, runtime, mynet(file("cni-netplugin.aci")))
			r.write("/etc/kuryr/kuryr.yaml", "kurma:\n  grants: [mynet=1000+200000]\n")
			r.start()
			r.running()
			idle := r.sight()
			refused := func(err error, why string) bool { // crun 1.8 does not repeat what a hook says
				return strings.Contains(err.Error(), "network mynet: kurma.grants "+why) ||
					runtime == "crun" && strings.Contains(err.Error(), "error executing hook")
			}
			for _, user := range []int{0, 1000} {
				err := r.launch("hosts", user, nil)
				if err == nil || !refused(err, "does not name cgroup /") {
					t.Errorf("user %d of the host's user namespace: %v", user, err)
				}
				r.do(r.oci("delete", "-f", "hosts")...)
			}
			r.mapped = 199000 // user 1000 in it is the host's 200000
			if err := r.launch("others", 1000, nil); err == nil || !refused(err, "does not name user 199000") {
				t.Errorf("a user of another user namespace: %v", err)
			}
			r.do(r.oci("delete", "-f", "others")...)
			r.mapped = 200000
			p := r.mustLaunch("mapped", nil)
			r.ping("mapped", "10.10.0.1")
			if p.address(t, "mynet") == "" {
				t.Errorf("no address: %+v", p)
			}
			r.remove("mapped")
			r.same(idle, podsGone...)
		})
	}
}
