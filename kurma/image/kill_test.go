//go:build failpoints

package image_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kuryr/kuryr/kurma/image"
)

// The environment of a child that gets or removes an image until it is killed.
const killFolder, killRef, killRemove = "KURYR_TEST_FOLDER", "KURYR_TEST_REF", "KURYR_TEST_REMOVE"

// TestKilledChild is not a test of its own: it is the process that TestKilled kills.
func TestKilledChild(t *testing.T) {
	if os.Getenv(killRef) == "" {
		t.Skip("it is started by TestKilled")
	}
	s := openAt(t, os.Getenv(killFolder), image.Config{Insecure: []string{"127.0.0.1"}})
	i := get(t, s, os.Getenv(killRef))
	if os.Getenv(killRemove) != "" {
		if err := s.Remove(i.ID); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("it was not killed")
}

// Whenever a process is killed, what the next one finds is an image that is whole or none, and it can get it, and remove it without a rest.
func TestKilled(t *testing.T) {
	data := packACI(t, entry{name: "rootfs/noise", content: noise(3 << 20)}, entry{name: "rootfs/last", content: "3"})
	w := serve(t, data, `"one"`)
	host := hub(t)
	tag, err := name.NewTag(host + "/user/plugin:1")
	if err == nil {
		err = remote.Write(tag, imageOf(t, runtime.GOARCH, layers(t)...))
	}
	if err != nil {
		t.Fatal(err)
	}
	docker := "docker://" + host + "/user/plugin:1"
	for _, c := range []struct{ at, ref, remove string }{
		{"image.download.begun", w.URL, ""}, {"image.download.part", w.URL, ""}, {"image.download.part:2", w.URL, ""}, {"image.download.whole", w.URL, ""},
		{"image.keep.unpacked", w.URL, ""}, {"image.install.recorded", w.URL, ""}, {"image.install.synced", w.URL, ""}, {"image.install.named", w.URL, ""},
		{"image.download.begun:2", docker, ""}, {"image.registry.layer", docker, ""}, {"image.registry.layer:3", docker, ""}, {"image.install.named", docker, ""},
		{"image.remove.forgotten", w.URL, "yes"}, {"image.remove.moved", w.URL, "yes"},
	} {
		t.Run(c.at, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			child := exec.Command(os.Args[0], "-test.run", "^TestKilledChild$")
			child.Env = append(os.Environ(), "KURYR_FAILPOINT="+c.at, killFolder+"="+dir, killRef+"="+c.ref, killRemove+"="+c.remove)
			out, err := child.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child was not killed: %v\n%s", err, out)
			}
			s := openAt(t, dir, image.Config{Insecure: []string{"127.0.0.1"}})
			images, err := s.List()
			if err != nil {
				t.Error(err)
			}
			for _, i := range images {
				if content(t, i, "last") != "3" {
					t.Errorf("%s is not whole", i.ID)
				}
			}
			if i := get(t, s, c.ref); content(t, i, "last") != "3" {
				t.Errorf("%s is not whole", i.ID)
			}
			if _, err := s.Collect(nil, nil); err != nil {
				t.Error(err)
			}
			if rest := left(t, dir); len(rest) > 0 {
				t.Errorf("left: %q", rest)
			}
		})
	}
}
