// Command kurma-image writes the image of one of Kurma's network plugins, of the files of a folder: as an ACI (FILE.aci), and as an OCI archive (any other FILE).
//
// It is the command line of kurma/image/build, which says what is written, for kurma-images.sh beside it. It must not know what the files are.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kuryr/kuryr/internal/atomicfile"
	"github.com/kuryr/kuryr/kurma/image/build"
)

func main() {
	var spec build.Spec
	to := flag.String("to", "", "file to write")
	flag.StringVar(&spec.Name, "name", "", "name of the image, as an appc identifier")
	flag.StringVar(&spec.Version, "version", "", "its version")
	flag.StringVar(&spec.Arch, "arch", "", "architecture, as Go calls it; this machine's if empty")
	exec := flag.String("exec", "", "main executable, with its arguments")
	mounts := flag.String("mounts", "", "folders that the program wants mounted, with commas between")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "kurma-image -to FILE -name NAME -exec PROGRAM ROOT: makes an image of the folder ROOT")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 || *to == "" || spec.Name == "" || *exec == "" {
		flag.Usage()
		os.Exit(2)
	}
	spec.Exec, spec.Env = strings.Fields(*exec), []string{"PATH=/usr/sbin:/usr/bin"}
	spec.Mounts = strings.FieldsFunc(*mounts, func(r rune) bool { return r == ',' })
	spec.Rootfs = os.DirFS(flag.Arg(0))
	if err := write(*to, spec); err != nil {
		fmt.Fprintln(os.Stderr, "kurma-image:", err)
		os.Exit(1)
	}
}

func write(to string, spec build.Spec) error {
	if filepath.Ext(to) != ".aci" {
		return build.OCI(to, spec)
	}
	return atomicfile.Write(to, 0o644, func(f *os.File) error { return build.ACI(f, spec) })
}
