//go:build linux

package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kuryr/kuryr/internal/mounts"
	"github.com/moby/sys/mountinfo"
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
	mine, err := mounts.Read(mounts.Here, nil)
	if err != nil {
		return 0, 0
	}
	firsts, err := mounts.Read("/proc/1/mountinfo", nil)
	if err != nil {
		return 0, 0 // without the right to look
	}
	own, first := pointsIn(folder, mine), pointsIn(folder, firsts)
	for point := range own {
		if first[point] {
			seen++
		}
	}
	return len(own), seen
}

// pointsIn returns the mount points directly in the folder.
func pointsIn(folder string, all []*mountinfo.Info) map[string]bool {
	points := map[string]bool{}
	for _, m := range all {
		if filepath.Dir(m.Mountpoint) == folder {
			points[m.Mountpoint] = true
		}
	}
	return points
}
