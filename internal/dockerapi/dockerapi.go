// Package dockerapi asks the Docker engine what it has: the names it gave to what Kuryr knows by ids only, networks and containers
// to be compared with what Kuryr keeps for them, and what happens to them.
//
// It reads only. It must not be called on the path of a plugin call: the engine holds locks while it waits for
// its plugins, and would wait for itself.
package dockerapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Timeout is how long Ask waits for the engine in all.
const Timeout = 2 * time.Second

// maxAnswer bounds what is read of an answer, in bytes: some 50,000 containers.
const maxAnswer = 128 << 20

// Names are what the engine calls things.
type Names struct {
	Endpoints map[string]string // containers' names by endpoint id
	Networks  map[string]string // names by network id
}

// Socket is the engine's socket that DOCKER_HOST names, or fallback if it names none; "" if it names something else than a
// Unix socket.
func Socket(dockerHost, fallback string) string {
	if dockerHost == "" {
		return fallback
	}
	path, ok := strings.CutPrefix(dockerHost, "unix://")
	if !ok {
		return ""
	}
	return path
}

// Ask gets the names of running containers and of all networks from the engine at the Unix socket.
func Ask(ctx context.Context, socket string) (Names, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	client := New(socket)
	defer client.Close()
	return ask(ctx, client.http)
}

func ask(ctx context.Context, client *http.Client) (Names, error) {
	names := Names{Endpoints: map[string]string{}, Networks: map[string]string{}}
	var containers []struct {
		Names           []string
		NetworkSettings struct {
			Networks map[string]struct{ EndpointID string }
		}
	}
	if err := get(ctx, client, "/containers/json", &containers); err != nil {
		return names, err
	}
	for _, c := range containers {
		for _, endpoint := range c.NetworkSettings.Networks {
			if len(c.Names) > 0 && endpoint.EndpointID != "" {
				names.Endpoints[endpoint.EndpointID] = strings.TrimPrefix(c.Names[0], "/")
			}
		}
	}
	var networks []struct{ ID, Name string }
	if err := get(ctx, client, "/networks", &networks); err != nil {
		return names, err
	}
	for _, n := range networks {
		names.Networks[n.ID] = n.Name
	}
	return names, nil
}

func get(ctx context.Context, client *http.Client, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("ask the Docker engine: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return &statusError{path, response.StatusCode}
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(into); err != nil {
		return fmt.Errorf("ask the Docker engine: %s: %w", path, err)
	}
	return nil
}
