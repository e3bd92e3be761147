//go:build linux

package doctor

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Look fills in what there is to know of files and folders.
func Look(files []File, folders ...string) FileFacts {
	facts := FileFacts{Now: time.Now()}
	for _, f := range files {
		info, err := os.Lstat(f.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			f.Absent = true
		case err != nil:
			f.Err = err
		default:
			f.Mode = info.Mode()
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				f.UID = int(stat.Uid)
			}
		}
		facts.Files = append(facts.Files, f)
	}
	for _, folder := range folders {
		var s unix.Statfs_t
		if err := unix.Statfs(nearest(folder), &s); err == nil {
			size := uint64(s.Bsize)
			facts.Disks = append(facts.Disks, Disk{
				Path: folder, Free: s.Bavail * size, Size: s.Blocks * size, Inodes: s.Ffree, Within: s.Files,
				ReadOnly: s.Flags&unix.ST_RDONLY != 0,
			})
		}
	}
	return facts
}

// nearest is the folder itself, or the one above it that is there.
func nearest(folder string) string {
	for ; folder != "/"; folder = filepath.Dir(folder) {
		if exists(folder) {
			break
		}
	}
	return folder
}

// Changed is when a file was changed, zero if there is none.
func Changed(path string) time.Time {
	if info, err := os.Stat(path); err == nil {
		return info.ModTime()
	}
	return time.Time{}
}

// CountPins counts the namespaces that are pinned in a folder, and those of them that the
// first process sees.
func CountPins(folder string) (here, seen int) {
	mine, err := mountPoints("/proc/self/mountinfo", folder)
	if err != nil {
		return 0, 0
	}
	firsts, err := mountPoints("/proc/1/mountinfo", folder)
	if err != nil {
		return 0, 0 // who may not look cannot tell
	}
	for point := range mine {
		if firsts[point] {
			seen++
		}
	}
	return len(mine), seen
}

// mountPoints are those right in the folder.
func mountPoints(path, folder string) (map[string]bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	points := map[string]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && filepath.Dir(fields[4]) == folder {
			points[fields[4]] = true
		}
	}
	return points, lines.Err()
}
