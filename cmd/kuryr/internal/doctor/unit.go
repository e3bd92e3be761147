package doctor

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// UnitFacts are what systemd is told of Kuryr.
type UnitFacts struct {
	Managed bool   // Docker runs Kuryr itself
	Systemd bool   // it runs this machine
	Docker  bool   // it starts Docker
	Path    string // of Kuryr's unit; "" where there is none
	Text    []byte // of the unit and what is dropped in
}

// mountNamespace are the settings by which systemd gives a service a mount namespace of its own
// (systemd.exec(5)), with their former names. Network and IPC namespaces imply one.
var mountNamespace = []string{
	"BindLogSockets", "BindPaths", "BindReadOnlyPaths", "DynamicUser", "ExecPaths", "ExtensionDirectories",
	"ExtensionImages", "IPCNamespacePath", "InaccessibleDirectories", "InaccessiblePaths", "LogNamespace",
	"MountAPIVFS", "MountFlags", "MountImages", "NetworkNamespacePath", "NoExecPaths", "PrivateDevices",
	"PrivateIPC", "PrivateMounts", "PrivateNetwork", "PrivateTmp", "ProcSubset", "ProtectControlGroups",
	"ProtectHome", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc",
	"ProtectSystem", "ReadOnlyDirectories", "ReadOnlyPaths", "ReadWriteDirectories", "ReadWritePaths",
	"RootDirectory", "RootImage", "TemporaryFileSystem",
}

// sharedMounts are the values of those settings that make no namespace.
var sharedMounts = []string{"no", "false", "0", "off", "default", "all", "shared"}

// Unit judges whether Kuryr is there before Docker.
func Unit(u UnitFacts) []Finding {
	f := findings{check: "order of start"}
	const why = "Docker waits for the plugin in vain at boot, and containers that should restart stay down"
	switch {
	case u.Managed:
		return f.orOK("Docker starts its managed plugin before its networks")
	case !u.Systemd:
		return f.orOK("systemd does not run this machine: see to it that kuryr is up before Docker starts")
	case !u.Docker:
		return f.orOK("systemd does not start Docker")
	case u.Path == "":
		f.add(
			Warning, "systemd has no kuryr.service: "+why,
			"install deploy/systemd/kuryr.service, and `systemctl enable kuryr`",
		)
		return f.list
	}
	if !slices.Contains(values(u.Text, "Before"), "docker.service") {
		f.add(
			Problem, u.Path+" is not ordered before docker.service: "+why,
			"add Before=docker.service to its [Unit] section, then `systemctl daemon-reload`",
		)
	}
	for _, key := range mountNamespace {
		for _, v := range values(u.Text, key) {
			if !slices.Contains(sharedMounts, v) {
				f.add(
					Problem,
					u.Path+" has "+key+"="+v+": kuryr's mounts, which pin network namespaces, are seen by nobody else and end with it",
					"take it out, then `systemctl daemon-reload` and reboot",
				)
				break
			}
		}
	}
	if kill := values(u.Text, "KillMode"); len(kill) == 0 || kill[len(kill)-1] != "process" {
		f.add(
			Warning, u.Path+" has no KillMode=process: helpers of namespaces end with kuryr",
			"add KillMode=process to its [Service] section",
		)
	}
	return f.orOK(u.Path + " is before Docker")
}

// values are the words that a unit gives a key.
func values(text []byte, key string) []string {
	var all []string
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, ok := strings.Cut(strings.TrimSpace(lines.Text()), "=")
		if ok && strings.TrimSpace(name) == key {
			all = append(all, strings.Fields(value)...)
		}
	}
	return all
}

// unitFolders are where systemd looks first to last.
var unitFolders = []string{
	"etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system",
	"usr/lib/systemd/system", "lib/systemd/system",
}

// FindUnit reads what systemd is told.
func FindUnit() UnitFacts { return findUnit("/") }

func findUnit(root string) UnitFacts {
	u := UnitFacts{Systemd: exists(filepath.Join(root, "run/systemd/system"))}
	for _, folder := range unitFolders {
		folder = filepath.Join(root, folder)
		u.Docker = u.Docker || exists(filepath.Join(folder, "docker.service"))
		if text, err := readSmall(filepath.Join(folder, "kuryr.service")); err == nil && u.Path == "" {
			u.Path, u.Text = filepath.Join(folder, "kuryr.service"), append(text, u.Text...)
		}
		dropped, err := filepath.Glob(filepath.Join(folder, "kuryr.service.d", "*.conf"))
		if err != nil {
			continue
		}
		for _, path := range dropped {
			if text, err := readSmall(path); err == nil {
				u.Text = append(append(u.Text, '\n'), text...)
			}
		}
	}
	return u
}

// maxUnit bounds what is read of a unit, in bytes.
const maxUnit = 64 << 10

func readSmall(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxUnit {
		return nil, fmt.Errorf("%s is no unit", path)
	}
	return os.ReadFile(path)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
