//go:build e2e

package docker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// fromEngine skips what older engines than major lack.
func fromEngine(t *testing.T, major int) {
	t.Helper()
	have, err := privatehost.EngineMajor(privatehost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if have < major {
		t.Skipf("Docker %d lacks it, from %d on it is there (%s picks the engine)", have, major, privatehost.EngineEnv)
	}
}

// untilEngine skips what later engines than major no longer do.
func untilEngine(t *testing.T, major int) {
	t.Helper()
	have, err := privatehost.EngineMajor(privatehost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if have > major {
		t.Skipf("not with Docker %d, only up to %d", have, major)
	}
}

type object = map[string]any

// api makes a call of the engine's API, which must succeed. Debian's docker command is
// older than some engines it speaks to, and lacks their options.
func (r rig) api(t *testing.T, method, path string, body object) []byte {
	t.Helper()
	status, answer := r.call(t, method, path, body)
	if status >= http.StatusBadRequest {
		t.Fatalf("%s %s: status %d: %s", method, path, status, answer)
	}
	return answer
}

// call is api for what may fail.
func (r rig) call(t *testing.T, method, path string, body object) (int, []byte) {
	t.Helper()
	return r.request(t, privatehost.DockerSocket, method, path, body)
}

// request sends a request to a socket of the host. A nil body is none.
func (r rig) request(t *testing.T, socket, method, path string, body object) (int, []byte) {
	t.Helper()
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://host"+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.UnixClient(socket).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}

// networkByAPI creates a network with members that no option of an older docker command
// stands for; the test removes it at its end.
func (r rig) networkByAPI(t *testing.T, name string, more object, subnets ...string) {
	t.Helper()
	config := []object{}
	for _, s := range subnets {
		config = append(config, object{"Subnet": s})
	}
	body := object{"Name": name, "Driver": driver, "IPAM": object{"Driver": driver, "Config": config}}
	for k, v := range more {
		body[k] = v
	}
	r.removed(t, name)
	r.api(t, http.MethodPost, "/networks/create", body)
}

// runByAPI starts a container with the endpoints given, by network.
func (r rig) runByAPI(t *testing.T, name string, endpoints object, host object) {
	t.Helper()
	t.Cleanup(func() { r.sh("docker", "rm", "-f", name) })
	exposed := object{}
	if bindings, ok := host["PortBindings"].(object); ok {
		for p := range bindings {
			exposed[p] = object{}
		}
	}
	r.api(t, http.MethodPost, "/containers/create?name="+name, object{
		"Image": "box", "Cmd": []string{"probe", "serve", port}, "StopTimeout": 1, "ExposedPorts": exposed,
		"HostConfig": host, "NetworkingConfig": object{"EndpointsConfig": endpoints},
	})
	r.api(t, http.MethodPost, "/containers/"+name+"/start", nil)
}

// bindings are the HostConfig that publishes the containers' port at a port of the host.
func bindings(hostPort int) object {
	return object{"PortBindings": object{port + "/tcp": []object{{"HostPort": fmt.Sprint(hostPort)}}}}
}
