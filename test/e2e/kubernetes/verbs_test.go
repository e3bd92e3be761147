//go:build e2e

package kubernetes_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sync/errgroup"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// call is one of a container runtime's: of the container, and its network namespace, called name.
type call struct {
	verb, name string
	args       string   // CNI_ARGS; where empty those of the pod of that name
	env        []string // over the usual
	config     string   // fields of the configuration besides the usual
}

// do runs kuryr-cni as a container runtime does, and gives its exit status and what it printed.
func (n *bareNode) do(c call) (code int, out string) {
	n.Helper()
	if c.args == "" {
		c.args = podArgs(c.name, "")
	}
	argv := append(
		[]string{
			"env", "CNI_COMMAND=" + c.verb, "CNI_CONTAINERID=" + c.name,
			"CNI_NETNS=/run/netns/" + c.name, "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
			"CNI_ARGS=" + c.args,
		},
		c.env...,
	)
	said := n.host.ExecIn(
		n.ctx,
		strings.NewReader(`{"cniVersion": "1.1.0", "name": "kuryr", "type": "kuryr"`+c.config+`}`),
		append(argv, filepath.Join(filepath.Dir(kuryr), "kuryr-cni"))...,
	)
	return said.Code, said.Stdout + said.Stderr
}

// podArgs are CNI_ARGS as containerd gives them.
func podArgs(name, uid string) string {
	args := "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + name
	if uid != "" {
		args += ";K8S_POD_UID=" + uid
	}
	return args
}

// wants does a call that ends with an exit status of docs/cni.md's table, and says what.
func (n *bareNode) wants(what string, c call, code int, says string) string {
	n.Helper()
	is, out := n.do(c)
	if is != code || !strings.Contains(out, says) {
		n.Errorf("%s: exit status %d, want %d and %q\n%s", what, is, code, says, out)
	}
	return out
}

// pod makes one in the API, with a network namespace of its name, and gives its UID.
func (n *bareNode) pod(name string) string {
	n.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: serverSpec()}
	pod.Spec.NodeName = bareName
	n.must(n.api.Create(n.ctx, pod))
	n.must(n.host.Exec(n.ctx, "ip", "netns", "add", name).Err())
	return string(pod.UID)
}

func (n *bareNode) ip(args ...string) {
	n.Helper()
	n.must(n.host.Exec(n.ctx, append([]string{"ip"}, args...)...).Err())
}

// Every verb by the real plugin, with a cluster's daemon: what it is asked wrongly,
// twice, in the wrong order or for another pod is refused or done once, by the status
// that the manual says, and leaves nothing.
func TestVerbs(t *testing.T) {
	t.Parallel()
	n := startBareNode(t, "the test is the container runtime")
	first := n.ups("first", 1) // with which the network comes into the kernel, to stay
	n.agree(first)
	n.downs(first)
	n.agree(nil)
	before, err := n.host.Snapshot(n.ctx)
	n.must(err)

	uid := n.pod("a")
	n.pod("b")
	n.ip("-n", "b", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
	const stranger = "7d9bcd1c-1a2b-4c3d-8e4f-5a6b7c8d9e0f"
	n.wants("DEL before ADD", call{verb: "DEL", name: "a"}, 0, "")
	n.wants("CHECK before ADD", call{verb: "CHECK", name: "a"}, 106, "a")
	for _, row := range []struct {
		what string
		call call
		code int
		says string
	}{
		{"CNI_ARGS without a sense", call{args: "MTU=none;" + podArgs("a", "")}, 14, "MTU"},
		{"CNI_ARGS without a value", call{args: "K8S_POD_NAME"}, 14, "K8S_POD_NAME"},
		{"an argument that is unknown", call{args: "COLOUR=red;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a"}, 14, "COLOUR"},
		{"no pod", call{args: "IgnoreUnknown=1"}, 17, "K8S_POD_NAME"},
		{"an unknown pod", call{args: podArgs("nobody", "")}, 100, "nobody"},
		{"another pod's UID", call{args: podArgs("a", stranger)}, 102, "UID"},
		{"an interface name that is too long", call{env: []string{"CNI_IFNAME=abcdefghijklmnop"}}, 14, "CNI_IFNAME"},
		{"an interface name in use", call{name: "b"}, 102, "eth0"},
		{"a namespace that is gone", call{env: []string{"CNI_NETNS=/run/netns/gone"}}, 13, "CNI_NETNS"},
		{"the host's own namespace", call{env: []string{"CNI_NETNS=/proc/self/ns/net"}}, 18, "CNI_NETNS"},
	} {
		row.call.verb = "ADD"
		if row.call.name == "" {
			row.call.name = "a"
		}
		n.wants(row.what, row.call, row.code, row.says)
	}
	n.agree(nil)

	// Two at once, and one more, are one.
	var g errgroup.Group
	results := make([]string, 3)
	for i := range 2 {
		g.Go(func() error {
			code, out := n.do(call{verb: "ADD", name: "a", args: podArgs("a", uid)})
			if results[i] = out; code != 0 {
				return fmt.Errorf("two ADDs at once: %d %s", code, out)
			}
			return nil
		})
	}
	n.must(g.Wait())
	results[2] = n.wants("a third ADD", call{verb: "ADD", name: "a"}, 0, "")
	if results[0] != results[1] || results[1] != results[2] {
		t.Errorf("the ADDs of one container tell of several ports: %s", results)
	}
	a := n.told("a", results[0])
	n.ip("-n", "b", "link", "del", "eth0")
	b := n.told("b", n.wants("ADD where the name is free again", call{verb: "ADD", name: "b"}, 0, ""))
	n.agree([]sandbox{a, b})

	// CHECK after changes by hand.
	check := call{verb: "CHECK", name: "a", config: `, "prevResult": ` + results[0]}
	n.wants("CHECK", check, 0, "")
	mtu := n.host.Exec(n.ctx, "ip", "netns", "exec", "a", "cat", "/sys/class/net/eth0/mtu").Out()
	n.ip("-n", "a", "link", "set", "eth0", "mtu", "1280")
	n.wants("CHECK of another MTU", check, 106, "its MTU is 1280")
	n.ip("-n", "a", "link", "set", "eth0", "mtu", mtu)
	n.wants("CHECK of what was put right", check, 0, "")
	n.ip("-n", "a", "addr", "flush", "dev", "eth0")
	n.wants("CHECK without the address", check, 106, "it lacks the address "+a.address)
	n.ip("-n", "a", "link", "del", "eth0")
	n.wants("CHECK without the interface", check, 106, "")
	if again := n.wants("ADD after that", call{verb: "ADD", name: "a"}, 0, ""); again != results[0] {
		t.Errorf("ADD gives %s, it was %s", again, results[0])
	}
	n.wants("CHECK after that", check, 0, "")
	n.ip("netns", "exec", "a", "ping", "-c1", "-W10", b.address)

	// Another pod's DEL takes nothing away.
	n.wants("a stale DEL", call{verb: "DEL", name: "a", args: podArgs("a", stranger)}, 0, "")
	n.wants("CHECK after it", check, 0, "")
	n.agree([]sandbox{a, b})

	// GC keeps what is listed, and nothing else.
	n.wants("GC without a list", call{verb: "GC"}, 17, "valid-attachments")
	n.wants(
		"GC of what is all there",
		call{
			verb: "GC",
			config: `, "cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}, ` +
				`{"containerID": "b", "ifname": "eth0"}]`,
		},
		0, "",
	)
	n.wants("CHECK after it", check, 0, "")
	n.wants("GC of an empty list", call{verb: "GC", config: `, "cni.dev/valid-attachments": []`}, 0, "")
	n.wants("CHECK of what GC took", check, 106, "no port")
	n.agree(nil)
	n.wants("DEL after GC", call{verb: "DEL", name: "a"}, 0, "")
	n.living()

	for _, name := range []string{"a", "b"} {
		n.ip("netns", "del", name)
	}
	now, err := n.host.Snapshot(n.ctx)
	n.must(err)
	if left := before.Diff(now, privatehost.Links, privatehost.Addresses, privatehost.Namespaces); len(left) > 0 {
		t.Errorf("left when all pods have gone:\n%s", strings.Join(left, "\n"))
	}
}

// told is what an ADD's result tells of a pod.
func (n *bareNode) told(name, text string) sandbox {
	n.Helper()
	var result struct{ IPs []struct{ Address string } }
	if err := json.Unmarshal([]byte(text), &result); err != nil || len(result.IPs) != 1 {
		n.Fatalf("the result of ADD of %s: %v, %s", name, err, text)
	}
	address, _, _ := strings.Cut(result.IPs[0].Address, "/")
	return sandbox{name, address}
}
