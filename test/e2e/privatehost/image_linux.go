package privatehost

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
)

// ImportBusybox makes the image "busybox" from the machine's static busybox, since a private host reaches no registry.
// More programs, name to file, are added under /bin.
func (h *Host) ImportBusybox(ctx context.Context) error { return h.ImportImage(ctx, "busybox", nil) }

// ImportImage makes an image of busybox and more static programs (name in /bin to file on the machine).
func (h *Host) ImportImage(ctx context.Context, name string, programs map[string]string) error {
	busybox := lookPath("busybox")
	list := h.Exec(ctx, busybox, "--list")
	if !list.OK() {
		return fmt.Errorf("busybox is missing (package busybox-static): %s", list)
	}
	var image bytes.Buffer
	tw := tar.NewWriter(&image)
	for _, dir := range []string{"bin/", "etc/", "tmp/", "root/", "proc/", "sys/", "dev/"} {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}); err != nil {
			return err
		}
	}
	files := map[string]string{"busybox": busybox}
	for name, file := range programs {
		files[name] = file
	}
	for name, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := tw.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: "bin/" + name, Mode: 0o755, Size: int64(len(data)),
		}); err != nil {
			return err
		}
		if _, err := tw.Write(data); err != nil {
			return err
		}
	}
	for _, applet := range strings.Fields(list.Stdout) {
		if _, taken := files[applet]; taken {
			continue
		}
		if err := tw.WriteHeader(
			&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox"},
		); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	r := h.ExecIn(ctx, &image, "docker", "import", "-c", `CMD ["/bin/sh"]`, "-c", "ENV PATH=/bin", "-", name)
	if !r.OK() {
		return fmt.Errorf("import image %s: %s", name, r)
	}
	return nil
}
