//go:build linux

// Package mounts reads the tables of mounts of /proc. It owns how a table is read whose
// lines are longer than moby/sys/mountinfo reads. It must not know what is mounted.
package mounts

import (
	"io"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Here is the table of the calling thread, whose mount namespace may differ from the
// process's.
const Here = "/proc/thread-self/mountinfo"

// Read returns the mounts of a table that the filter does not skip, without the options of
// their file systems (VFSOptions). A nil filter skips none.
func Read(path string, filter mountinfo.FilterFunc) ([]*mountinfo.Info, error) {
	table, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer table.Close()
	return ReadFrom(table, filter)
}

// ReadFrom is Read of an open table.
func ReadFrom(table io.Reader, filter mountinfo.FilterFunc) ([]*mountinfo.Info, error) {
	text, err := io.ReadAll(table)
	if err != nil {
		return nil, err
	}
	// mountinfo fails if a line has 64 KiB, as that of an overlay with hundreds of layers. The
	// options of the file system are the last field.
	var cut strings.Builder
	for line := range strings.Lines(string(text)) {
		mount, fs, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		fields := append(strings.SplitN(fs, " ", 3), "", "")
		cut.WriteString(mount + " - " + fields[0] + " " + fields[1] + " none\n")
	}
	return mountinfo.GetMountsFromReader(strings.NewReader(cut.String()), filter)
}
