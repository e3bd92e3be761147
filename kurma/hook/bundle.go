//go:build linux

package hook

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// maxBundle bounds the config.json that is read.
const maxBundle = 16 << 20

// bundle is what is read of a config.json (runtime-spec, config.md: POSIX process user; config-linux.md: user namespace mappings).
type bundle struct {
	Process struct {
		User struct {
			UID uint32 `json:"uid"`
		} `json:"user"`
	} `json:"process"`
	Linux struct {
		UIDMappings []struct {
			ContainerID uint32 `json:"containerID"`
			HostID      uint32 `json:"hostID"`
			Size        uint32 `json:"size"`
		} `json:"uidMappings"`
	} `json:"linux"`
}

// userOf is the host's user that the container's first process runs as.
func userOf(folder string) (*uint32, error) {
	if folder == "" {
		return nil, fmt.Errorf("state: it names no bundle")
	}
	file, err := os.Open(filepath.Join(folder, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxBundle+1))
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	if len(text) > maxBundle {
		return nil, fmt.Errorf("bundle: %s has more than %d bytes", file.Name(), maxBundle)
	}
	var b bundle
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, fmt.Errorf("bundle: %s: %w", file.Name(), err)
	}
	uid := b.Process.User.UID
	if len(b.Linux.UIDMappings) == 0 {
		return &uid, nil
	}
	for _, m := range b.Linux.UIDMappings {
		if uid >= m.ContainerID && uid-m.ContainerID < m.Size {
			host := m.HostID + uid - m.ContainerID
			return &host, nil
		}
	}
	return nil, fmt.Errorf("bundle: %s: uidMappings do not have user %d, which the process runs as", file.Name(), uid)
}
