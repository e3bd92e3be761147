package privatehost

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
)

// The sections that State adds to a Snapshot.
const (
	Processes  = "processes"
	Mounts     = "mounts"
	Files      = "files"
	Neighbour  = "neighbour"
	Containers = "containers"
	Networks   = "networks"
	Volumes    = "volumes"
	Images     = "images"
	Objects    = "objects"
	Findings   = "findings"
	Pending    = "pending"
)

// State is the Snapshot of a host with the rest of what a test may leave behind:
// processes, mounts, configuration files, pins and sockets, addresses and routes of the
// neighbour, the objects of the engine and those of Kuryr's store, what Kuryr's doctor
// finds, and what Kuryr has yet to clean up.
func (h *Host) State(ctx context.Context) (Snapshot, error) {
	s, err := h.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	const files = "find /etc/kuryr /etc/docker -type f -exec cksum {} +; find /run/kuryr /run/docker/plugins ! -type d"
	for _, look := range []struct {
		section string
		run     func(context.Context, ...string) Result
		argv    []string
	}{
		{Processes, h.Exec, []string{"ps", "-eo", "comm="}},
		{Files, h.Exec, []string{"sh", "-c", files}},
		{Neighbour, h.Outside, []string{"ps", "-eo", "comm="}},
		{Neighbour, h.Outside, []string{"ip", "-br", "addr"}},
		{Neighbour, h.Outside, []string{"ip", "-4", "route"}},
		{Neighbour, h.Outside, []string{"ip", "-6", "route"}},
	} {
		r := look.run(ctx, look.argv...)
		if !r.OK() {
			return nil, fmt.Errorf("read %s: %s", look.section, r)
		}
		for line := range strings.Lines(r.Stdout) {
			line = strings.Join(strings.Fields(volatile.ReplaceAllString(line, "")), " ")
			s[look.section] = append(s[look.section], line)
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", h.host.pid))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && !strings.Contains(line, " - nsfs ") {
			s[Mounts] = append(s[Mounts], fields[4])
		}
	}
	if h.opts.Docker {
		if err := h.engineState(ctx, s); err != nil {
			return nil, fmt.Errorf("read the engine's objects: %w", err)
		}
	}
	if h.opts.Kuryr != "" {
		if err := h.kuryrState(ctx, s); err != nil {
			return nil, fmt.Errorf("ask Kuryr: %w", err)
		}
	}
	return s, nil
}

// engineState adds the engine's containers, networks, volumes and images by name.
func (h *Host) engineState(ctx context.Context, s Snapshot) error {
	var (
		containers []struct{ Names []string }
		networks   []struct{ Name, Driver string }
		volumes    struct{ Volumes []struct{ Name string } }
		images     []struct{ RepoTags []string }
	)
	for _, look := range []struct {
		path string
		into any
	}{
		{"/containers/json?all=1", &containers},
		{"/networks", &networks},
		{"/volumes", &volumes},
		{"/images/json", &images},
	} {
		text, err := h.get(ctx, DockerSocket, look.path)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, look.into); err != nil {
			return fmt.Errorf("%s: %w", look.path, err)
		}
	}
	for _, c := range containers {
		s[Containers] = append(s[Containers], strings.Join(c.Names, " "))
	}
	for _, n := range networks {
		s[Networks] = append(s[Networks], n.Name+" "+n.Driver)
	}
	for _, v := range volumes.Volumes {
		s[Volumes] = append(s[Volumes], v.Name)
	}
	for _, i := range images {
		s[Images] = append(s[Images], strings.Join(i.RepoTags, " "))
	}
	return nil
}

// gauge matches a value without labels of Docker's driver.
var gauge = regexp.MustCompile(`^kuryr_docker_[a-z_]+ `)

// kuryrState adds what Kuryr's commands and its metrics tell.
func (h *Host) kuryrState(ctx context.Context, s Snapshot) error {
	for _, noun := range []string{"network", "subnet", "subnetpool", "port", "router", "floatingip", "securitygroup"} {
		var all []map[string]any
		r := h.Kuryr(ctx, noun, "list", "-o", "json")
		if err := json.Unmarshal([]byte(r.Stdout), &all); err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
		for _, o := range all {
			line := fmt.Sprint(noun, " ", o["id"], " ", o["name"], " ", o["device_id"], " ", o["fixed_ips"])
			s[Objects] = append(s[Objects], line)
		}
	}
	var diagnosis struct {
		Findings []struct{ Check, Verdict, What string }
	}
	r := h.Kuryr(ctx, "doctor", "-o", "json")
	if err := json.Unmarshal([]byte(r.Stdout), &diagnosis); err != nil {
		return fmt.Errorf("%s: %w", r, err)
	}
	for _, f := range diagnosis.Findings {
		if f.Verdict != "ok" {
			s[Findings] = append(s[Findings], f.Check+": "+f.What)
		}
	}
	// The gauges without a label are how much is yet to be cleaned up. One of them counts
	// the differences of the last comparison with the engine, which the doctor has just
	// repeated.
	metrics, err := h.get(ctx, KuryrSocket, "/metrics")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(metrics)) {
		if gauge.MatchString(line) && !strings.Contains(line, "suspects") && !strings.Contains(line, "candidates") {
			s[Pending] = append(s[Pending], strings.TrimSpace(line))
		}
	}
	return nil
}

// get returns what a daemon answers at a Unix socket of the host.
func (h *Host) get(ctx context.Context, socket, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://host"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := h.UnixClient(socket).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", path, resp.Status)
	}
	return io.ReadAll(resp.Body)
}
