package doctor

import (
	"fmt"
	"io/fs"
	"time"
)

// File is a file or folder of Kuryr's.
type File struct {
	Path   string
	What   string      // "admin socket"
	Secret bool        // nobody but root may open it; else nobody but root may write to it
	Mode   fs.FileMode // with its type
	UID    int
	Err    error // it is there and cannot be looked at
	Absent bool
}

// Disk is the file system of a folder.
type Disk struct {
	Path           string
	Free, Size     uint64 // bytes
	Inodes, Within uint64 // free, and in all; 0: the file system does not count them
	ReadOnly       bool
}

// FileFacts are what Kuryr has on disk.
type FileFacts struct {
	Files []File
	Disks []Disk
	// Pins is how many network namespaces are pinned where this program looks, Seen how many
	// of them the first process sees.
	Pins, Seen int
	Now        time.Time
	Newest     time.Time // the store's last change; zero where there is none
}

// Files judges permissions, room on disk, mounts and the clock.
func Files(c FileFacts) []Finding {
	all := permissions(c.Files)
	all = append(all, room(c.Disks)...)
	all = append(all, pins(c)...)
	return append(all, clock(c)...)
}

func permissions(files []File) []Finding {
	f := findings{check: "permissions"}
	for _, file := range files {
		bad := fs.FileMode(0o022)
		if file.Secret {
			bad = 0o077
		}
		whose := file.What + " " + file.Path
		switch {
		case file.Absent:
		case file.Err != nil:
			f.add(Problem, whose+": "+file.Err.Error(), "run this as root")
		case file.UID != 0:
			f.add(Problem, fmt.Sprintf("%s belongs to user %d", whose, file.UID), "`chown root "+file.Path+"`")
		case file.Mode.Perm()&bad != 0 && file.Mode&fs.ModeSymlink == 0:
			f.add(Problem, fmt.Sprintf("%s is open to others (%04o)", whose, file.Mode.Perm()), fmt.Sprintf(
				"`chmod go-%s %s`", map[bool]string{true: "rwx", false: "w"}[file.Secret], file.Path,
			))
		}
	}
	return f.orOK("sockets, store and configuration are root's")
}

// The room below which the store cannot grow, and that at which it is time to look.
const (
	tooLittle, little = 16 << 20, 128 << 20
	fewInodes         = 100
)

func room(disks []Disk) []Finding {
	f := findings{check: "disk"}
	for _, d := range disks {
		free := fmt.Sprintf("%s has %d MiB free of %d", d.Path, d.Free>>20, d.Size>>20)
		enough, least := min(uint64(little), d.Size/20), min(uint64(tooLittle), d.Size/100)
		switch {
		case d.ReadOnly:
			f.add(Problem, d.Path+" cannot be written to: its file system is read-only", "mount it read-write")
		case d.Free < least:
			f.add(Problem, free, "make room: no network or container can be made")
		case d.Within > 0 && d.Inodes < fewInodes:
			f.add(Problem, fmt.Sprintf("%s has %d inodes free", d.Path, d.Inodes), "delete files: no namespace can be pinned")
		case d.Free < enough:
			f.add(Warning, free, "make room")
		}
	}
	return f.orOK("state_dir and run_dir have room")
}

func pins(c FileFacts) []Finding {
	f := findings{check: "mounts"}
	if c.Seen < c.Pins {
		f.add(Problem, fmt.Sprintf(
			"%d of %d pinned network namespaces are in a mount namespace of their own, and go with it",
			c.Pins-c.Seen, c.Pins,
		),
			"run kuryr in the host's mount namespace, or in one whose mounts propagate (not private)")
	}
	return f.orOK("pinned network namespaces are seen by all")
}

// begun is when no clock is right that is before it.
var begun = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

func clock(c FileFacts) []Finding {
	f := findings{check: "clock"}
	switch {
	case c.Now.Before(begun):
		f.add(
			Problem, "the clock says "+c.Now.UTC().Format(time.DateTime)+", which is past",
			"set it: times in the store, in logs and of certificates are wrong",
		)
	case c.Newest.After(c.Now.Add(time.Minute)):
		f.add(
			Warning,
			"the store was changed at "+c.Newest.UTC().Format(time.DateTime)+
				", which is yet to come: the clock was set back, or is wrong",
			"set it, if it is wrong",
		)
	}
	return f.orOK("it is not past")
}
