//go:build linux

package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv("KURYR_NETNS_CHILD"); kind != "" {
		os.Exit(child(kind, os.Getenv("KURYR_NETNS_DIR"), os.Getenv("KURYR_NETNS_INIT")))
	}
	os.Exit(nstest.Main(m))
}

// child lives in a mount namespace of its own, pins a namespace, and is killed.
func child(kind, dir, init string) int {
	must := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	switch kind {
	case "shared":
	case "slave":
		must(unix.Mount("", dir, "", unix.MS_SLAVE, ""))
	case "private":
		must(unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
	case "elsewhere": // the slave's master lies under another path
		must(unix.Mount(dir, dir+"-other", "", unix.MS_BIND, ""))
		dir += "-other"
		must(unix.Mount("", dir, "", unix.MS_SLAVE, ""))
	}
	s, err := openIn(dir, init)
	must(err)
	_, created, err := s.Create("one")
	must(err)
	if !created {
		must(errors.New("it was there already"))
	}
	ns, err := s.Handle("one")
	must(err)
	must(ns.Close())
	seen, err := s.Seen()
	must(err)
	if want := kind != "private"; seen != want {
		must(fmt.Errorf("Seen is %v, want %v", seen, want))
	}
	must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	return 1
}

// shared makes a folder on a mount that has peers, as /run is on a machine.
func shared(t *testing.T) string {
	t.Helper()
	nstest.Require(t)
	dir, err := os.MkdirTemp("/run", "pins-")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestPinsSurviveTheirMaker(t *testing.T) {
	t.Parallel()
	here := fmt.Sprintf("/proc/%d/ns/mnt", os.Getpid())
	for _, test := range []struct {
		kind, init string
		killed     bool // after having pinned; otherwise it gave ErrInvisible
		survives   bool
	}{
		{"shared", "/proc/self/ns/mnt", true, true},
		{"slave", here, true, true},
		{"slave", "/proc/self/ns/mnt", false, false},
		{"slave", "/proc/absent", false, false},
		{"elsewhere", here, false, false},
		{"private", here, true, false},
	} {
		t.Run(test.kind+strings.ReplaceAll(test.init, "/", "_"), func(t *testing.T) {
			dir := shared(t)
			if err := os.MkdirAll(dir+"-other", 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), "KURYR_NETNS_CHILD="+test.kind, "KURYR_NETNS_DIR="+dir, "KURYR_NETNS_INIT="+test.init)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || (exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL) != test.killed {
				t.Fatalf("child: %v: %s", err, out)
			}
			if !test.killed &&
				(!strings.Contains(
					string(out), ErrInvisible.Error(),
				) || !strings.Contains(string(out), "mountPropagation")) {
				t.Errorf("the error does not tell the mend: %s", out)
			}
			s := &Store{dir: dir}
			ns, err := s.Handle("one")
			if got := err == nil; got != test.survives {
				t.Errorf("survives %v, want %v (%v)", got, test.survives, err)
			}
			if err == nil {
				_ = ns.Close()
			} else if !errors.Is(err, os.ErrNotExist) {
				t.Errorf("want os.ErrNotExist, got %v", err)
			}
			if left, _ := filepath.Glob(dir + "-other/*"); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
			// whatever the child left, the next one finishes it
			s, err = openIn(dir, here)
			if err != nil {
				t.Fatal(err)
			}
			ns, created, err := s.Create("one")
			if err != nil || created == test.survives {
				t.Fatalf("created %v, %v", created, err)
			}
			_ = ns.Close()
			if err := s.Delete("one"); err != nil {
				t.Error(err)
			}
		})
	}
}

func open(t *testing.T) *Store {
	t.Helper()
	s, err := openIn(shared(t), fmt.Sprintf("/proc/%d/ns/mnt", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCreateHandleDelete(t *testing.T) {
	t.Parallel()
	s := open(t)
	if _, err := s.Handle("a"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("handle of nothing: %v", err)
	}
	for _, bad := range []string{"", "A", "a/b", "..", ".x", strings.Repeat("a", 129)} {
		if _, _, err := s.Create(bad); err == nil {
			t.Errorf("name %q accepted", bad)
		}
	}
	first, created, err := s.Create("a")
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	defer first.Close()
	again, created, err := s.Create("a")
	if err != nil || created || !again.Equal(first) {
		t.Fatalf("second call: created %v, same %v, %v", created, again.Equal(first), err)
	}
	defer again.Close()
	// an empty file is what is left by a kill between file and mount
	if err := os.WriteFile(s.Path("half"), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Handle("half"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("handle of a half-made one: %v", err)
	}
	if names, err := s.List(); err != nil || !slices.Equal(names, []string{"a", "half"}) {
		t.Errorf("list: %v, %v", names, err)
	}
	half, created, err := s.Create("half")
	if err != nil || !created {
		t.Fatalf("finish: created %v, %v", created, err)
	}
	_ = half.Close()
	for range 2 {
		for _, name := range []string{"a", "half", "never"} {
			if err := s.Delete(name); err != nil {
				t.Error(err)
			}
		}
	}
	if names, err := s.List(); err != nil || len(names) != 0 {
		t.Errorf("list after delete: %v, %v", names, err)
	}
	reopened, err := openIn(s.dir, s.init)
	if err != nil || reopened.foreign {
		t.Errorf("reopen: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Count(string(mounts), " "+s.dir+" ") != 1 {
		t.Errorf("the folder is not mounted once:\n%s", mounts)
	}
}

// TestThreadsComeHome checks that no thread of the process is left in another namespace.
func TestThreadsComeHome(t *testing.T) {
	s := open(t)
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			name := fmt.Sprintf("n-%d", i)
			ns, _, err := s.Create(name)
			if err != nil {
				t.Error(err)
				return
			}
			defer ns.Close()
			err = Do(ns, func() error {
				links, err := netlink.LinkList()
				if err == nil && (len(links) != 1 || links[0].Attrs().Name != "lo") {
					err = fmt.Errorf("links in a new namespace: %v", links)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			if err := s.Delete(name); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	main, err := netns.GetFromPath("/proc/self/ns/net")
	if err != nil || !main.Equal(home) {
		t.Errorf("the first thread is elsewhere: %v", err)
	}
	for range 100 {
		group.Go(func() {
			if now, err := netns.GetFromPath("/proc/thread-self/ns/net"); err != nil || !now.Equal(home) {
				t.Errorf("a thread is elsewhere: %v", err)
			} else {
				_ = now.Close()
			}
		})
	}
	group.Wait()
}

func TestHolder(t *testing.T) {
	t.Parallel()
	// The line of an overlay with many layers may be longer than 64 KiB.
	layers := "20 1 0:19 / /layers rw - overlay overlay rw,lowerdir=" + strings.Repeat("/a:", 1<<15) + "\n"
	table := layers + `21 1 8:1 / / rw shared:1 - ext4 /dev/root rw
22 21 0:20 / /run rw,nosuid shared:5 master:2 - tmpfs tmpfs rw
23 22 0:20 /k /run/kuryr rw master:9 - tmpfs tmpfs rw
24 22 0:21 / /run/a\040b rw - tmpfs tmpfs rw
25 24 0:21 / /run/a\040b rw shared:7 - tmpfs tmpfs rw
`
	for path, want := range map[string]mount{
		"/etc":             {"/", "1", false},
		"/run":             {"/run", "5", true},
		"/run/kuryrx":      {"/run", "5", true},
		"/run/kuryr/netns": {"/run/kuryr", "", true},
		"/run/a b/c":       {"/run/a b", "7", false},
	} {
		if got, err := holder(strings.NewReader(table), path); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", path, got, err, want)
		}
	}
}

// In a container of its own, what counts is whether the host has a mount with the same
// peers, under whatever path.
func TestSeenByTheHostOfAContainer(t *testing.T) {
	t.Parallel()
	s := open(t)
	file := filepath.Join(t.TempDir(), "mountinfo")
	if _, told, err := s.seenBy(file); told || err != nil {
		t.Errorf("of no file: told %v, %v", told, err)
	}
	here, err := holderHere(s.dir)
	if err != nil || here.Peers == "" {
		t.Fatalf("%+v, %v", here, err)
	}
	for _, tc := range []struct {
		line string
		want bool
	}{
		{"36 35 98:0 / /run rw shared:" + here.Peers + " - tmpfs tmpfs rw", true},
		{"36 35 98:0 / /run rw master:" + here.Peers + " - tmpfs tmpfs rw", false},
		{"36 35 98:0 / " + s.dir + " rw - tmpfs tmpfs rw", false},
		{"36 35 98:0 / " + s.dir + " rw shared:" + here.Peers + "0 - tmpfs tmpfs rw", false},
	} {
		if err := os.WriteFile(
			file, []byte("1 1 0:1 / / rw shared:1234567 - ext4 /dev/x rw\n"+tc.line+"\n"), 0o600,
		); err != nil {
			t.Fatal(err)
		}
		if seen, told, err := s.seenBy(file); seen != tc.want || !told || err != nil {
			t.Errorf("%s: seen %v, told %v, %v", tc.line, seen, told, err)
		}
	}
}
