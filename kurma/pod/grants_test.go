//go:build linux

package pod

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"golang.org/x/sys/unix"
)

func TestParseGrants(t *testing.T) {
	t.Parallel()
	g, err := ParseGrants([]string{"a=1000+1001", "b=*", "c=", "d=cgroup:/x.slice/y+7", "*=9"})
	if err != nil {
		t.Fatal(err)
	}
	user := func(id uint32) requester { return requester{user: &id} }
	in := func(cgroup string) requester { return requester{container: true, cgroup: cgroup} }
	for _, c := range []struct {
		who     requester
		network string
		may     bool
	}{
		{requester{root: true}, "a", true},
		{requester{root: true}, "c", true},
		{user(1000), "a", true},
		{user(7), "a", false},
		{user(7), "b", true},
		{user(1000), "c", false},
		{user(7), "d", true},
		{in("/x.slice/y"), "d", true},
		{in("/x.slice/y/z"), "d", true},
		{in("/x.slice/yz"), "d", false},
		{in("/x.slice"), "d", false},
		{in("/"), "d", false},
		{in(""), "d", false},
		{in("/../x.slice/y"), "d", false}, // outside of the daemon's cgroup namespace
		{in("/x.slice/y"), "a", false},
		{user(9), "unlisted", true},
		{user(7), "unlisted", false},
	} {
		if err := g.check(c.who, c.network); (err == nil) != c.may {
			t.Errorf("%+v on %s: %v", c.who, c.network, err)
		}
	}
	if err := (Grants{}).check(user(7), "unlisted"); err != nil {
		t.Error(err)
	}
	for _, bad := range [][]string{
		{"a"}, {"=1"}, {"a=x"}, {"a=-1"}, {"a=1", "a=2"}, {"a=4294967296"},
		{"a=cgroup:"}, {"a=cgroup:/"}, {"a=cgroup:x"}, {"a=cgroup:/x/"}, {"a=cgroup:/x/../y"},
	} {
		if _, err := ParseGrants(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// startContainer starts what stands for a container's first process.
func startContainer(t *testing.T, attr *syscall.SysProcAttr) int {
	t.Helper()
	c := exec.Command("sleep", "600")
	attr.Cloneflags |= syscall.CLONE_NEWNET
	c.SysProcAttr = attr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(c) })
	return c.Process.Pid
}

// mapped is a user namespace whose root is that user of the host.
func mapped(root int, uid uint32) *syscall.SysProcAttr {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: root, Size: 10000}}
	return &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
		Credential: &syscall.Credential{Uid: uid, Gid: uid},
	}
}

// A container gets a network by its user namespace or its cgroup, never by the uid that its
// image has chosen, nor by the user that a hook names.
func TestContainersAreGranted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nstest.RootsFiles(t)
	hierarchy := t.TempDir()
	if err := unix.Mount("none", hierarchy, "cgroup2", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(hierarchy, unix.MNT_DETACH) })
	name := "kuryr-test-" + rand.Text()
	if err := os.MkdirAll(filepath.Join(hierarchy, name, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the processes in them, which are waited for
		_ = os.Remove(filepath.Join(hierarchy, name, "below"))
		_ = os.Remove(filepath.Join(hierarchy, name))
	})
	folder, err := os.Open(filepath.Join(hierarchy, name, "below"))
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	grouped := func() *syscall.SysProcAttr {
		return &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(folder.Fd())}
	}
	grants, err := ParseGrants([]string{"a=1000+200000+cgroup:/" + name, "b=200000", "c="})
	if err != nil {
		t.Fatal(err)
	}
	w.SetGrants(grants)
	user, root := uint32(1000), uint32(0)
	own, err := cgroupOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	hosts := "cgroup " + own + "; the uid of a container in the host's user namespace does not count: want a=cgroup:PATH"
	for _, c := range []struct {
		name    string
		attr    *syscall.SysProcAttr
		user    *uint32 // named by a hook of an earlier version
		network string
		text    string // of the refusal; "" is none
	}{
		{"root of the host's user namespace", &syscall.SysProcAttr{}, nil, "a", hosts},
		{"root, as the hook says", &syscall.SysProcAttr{}, &root, "a", hosts},
		{"a user that is granted, in the host's user namespace",
			&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}, nil, "a", hosts},
		{"such a user, as the hook says", &syscall.SysProcAttr{}, &user, "a", hosts},
		{"a user namespace", mapped(200000, 0), nil, "a", ""},
		{"a user namespace, whatever the uid in it", mapped(200000, 7), nil, "b", ""},
		{"a uid in another user namespace", mapped(199000, 1000), nil, "b", "does not name user 199000"},
		{"a user namespace of the host's root", mapped(0, 1000), nil, "a", hosts},
		{"a cgroup", grouped(), nil, "a", ""},
		{"a cgroup on another network", grouped(), nil, "b", "does not name cgroup /" + name + "/below"},
		{"root's network", mapped(200000, 0), nil, "c", "network c: kurma.grants does not name user 200000"},
	} {
		r := Request{Container: c.name, PID: startContainer(t, c.attr), User: c.user, Networks: []string{c.network}}
		p, err := w.Add(t.Context(), r)
		if c.text == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			} else {
				w.del(p.UUID)
			}
			continue
		}
		if ReasonOf(err) != Denied || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v (%s), want it denied with %q", c.name, err, ReasonOf(err), c.text)
		}
	}
	w.clean()
}
