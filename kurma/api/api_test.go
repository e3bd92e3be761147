//go:build linux

package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/kurma/hook"
	"github.com/kuryr/kuryr/kurma/pod"
)

const someUUID = "146d7cef-fbf6-41da-a2f8-eba218597f9c"

// pods answer what they are told to, and note what they were asked.
type pods struct {
	asked pod.Request
	calls []string
	err   error
}

func (p *pods) Add(_ context.Context, r pod.Request) (pod.Pod, error) {
	p.asked = r
	return pod.Pod{UUID: someUUID, State: pod.Ready}, p.err
}

func (p *pods) Del(_ context.Context, uuid string, force bool) error {
	p.calls = append(p.calls, fmt.Sprint("del ", uuid, " ", force))
	return p.err
}

func (p *pods) DelContainer(_ context.Context, id string) error {
	p.calls = append(p.calls, "container "+id)
	return p.err
}

func (p *pods) Get(uuid string) (pod.Pod, error) { return pod.Pod{UUID: uuid}, p.err }

func (p *pods) List() []pod.Pod { return []pod.Pod{{UUID: someUUID}} }

type images struct{ removed string }

func (i *images) List(context.Context) ([]Image, error) {
	return []Image{{ID: "sha512-1", Size: 7}}, nil
}

func (i *images) Get(_ context.Context, r ImageRequest, progress func(Progress)) (Image, error) {
	progress(Progress{Stage: "fetching", Done: 1, Total: 2})
	if r.Reference == "bad" {
		return Image{}, errors.New("no such image")
	}
	return Image{ID: "sha512-1", Reference: r.Reference}, nil
}

func (i *images) Remove(_ context.Context, id string) error { i.removed = id; return nil }

// daemon serves the API on a socket.
func daemon(t *testing.T, p *pods) (socket string, i *images) {
	t.Helper()
	i = &images{}
	h := Handler(Config{
		Pods: p, Images: i, Metrics: http.NotFoundHandler(), Unready: func() []string { return []string{"network blue is starting"} },
		Networks: func() []Network {
			return []Network{{Name: "blue", State: "running", Output: "hello", Config: []byte(`{"name":"blue"}`)}}
		},
	})
	socket = filepath.Join(t.TempDir(), "kurma.sock")
	l, err := rootsock.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, h) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket, i
}

func TestCalls(t *testing.T) {
	t.Parallel()
	p := &pods{}
	socket, stored := daemon(t, p)
	c := NewClient(socket)
	user := uint32(1000)
	got, err := c.Add(t.Context(), PodRequest{UUID: someUUID, Networks: &[]string{}, PID: 7, Container: "c", User: &user})
	if err != nil || got.UUID != someUUID || got.State != pod.Ready {
		t.Errorf("Add: %+v, %v", got, err)
	}
	if want := (pod.Request{UUID: someUUID, Networks: []string{}, PID: 7, Container: "c", User: &user}); !reflect.DeepEqual(p.asked, want) {
		t.Errorf("asked %+v, want %+v", p.asked, want)
	}
	if _, err := c.Add(t.Context(), PodRequest{}); err != nil || p.asked.Networks != nil {
		t.Errorf("by default: %+v, %v", p.asked, err)
	}
	if err := errors.Join(c.Del(t.Context(), someUUID, false), c.Del(t.Context(), someUUID, true)); err != nil {
		t.Error(err)
	}
	if want := []string{"del " + someUUID + " false", "del " + someUUID + " true"}; !reflect.DeepEqual(p.calls, want) {
		t.Errorf("called %q", p.calls)
	}
	if list, err := c.Pods(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	if one, err := c.Pod(t.Context(), someUUID); err != nil || one.UUID != someUUID {
		t.Errorf("%v, %v", one, err)
	}
	if list, err := c.Networks(t.Context()); err != nil || len(list) != 1 || list[0].Output != "" {
		t.Errorf("%v, %v", list, err)
	}
	if list, err := c.Network(t.Context(), "blue"); err != nil || len(list) != 1 || list[0].Output != "hello" {
		t.Errorf("%v, %v", list, err)
	}
	if list, err := c.Images(t.Context()); err != nil || len(list) != 1 || list[0].Size != 7 {
		t.Errorf("%v, %v", list, err)
	}
	if err := c.RemoveImage(t.Context(), "example.com/a"); err != nil || stored.removed != "example.com/a" {
		t.Errorf("removed %q, %v", stored.removed, err)
	}
	var seen []Progress
	if image, err := c.Fetch(t.Context(), ImageRequest{Reference: "good"}, func(p Progress) { seen = append(seen, p) }); err != nil || image.Reference != "good" || len(seen) != 1 {
		t.Errorf("%v, %v, %v", image, seen, err)
	}
	if _, err := c.Fetch(t.Context(), ImageRequest{Reference: "bad"}, func(Progress) {}); err == nil || err.Error() != "no such image" {
		t.Errorf("%v", err)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for reason, status := range statuses {
		p := &pods{err: &pod.Error{Reason: reason, Err: errors.New("because")}}
		socket, _ := daemon(t, p)
		_, err := NewClient(socket).Pod(t.Context(), someUUID)
		if pod.ReasonOf(err) != reason || err.Error() != "because" {
			t.Errorf("%s: %v", reason, err)
		}
		w := httptest.NewRecorder()
		Handler(Config{Pods: p, Metrics: http.NotFoundHandler()}).ServeHTTP(w, httptest.NewRequest("GET", "/v1/pods/"+someUUID, nil))
		if want := fmt.Sprintf(`{"error":"because","reason":%q}`+"\n", reason); w.Code != status || w.Body.String() != want {
			t.Errorf("%d %s, want %d %s", w.Code, w.Body, status, want)
		}
	}
	if _, err := NewClient(filepath.Join(t.TempDir(), "none")).Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "kuryr kurma is not running") {
		t.Errorf("%v", err)
	}
}

// What cannot be parsed is answered 4xx, and reaches nobody.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	p := &pods{}
	h := Handler(Config{Pods: p, Images: &images{}, Networks: func() []Network { return nil }, Metrics: http.NotFoundHandler(), Unready: func() []string { return nil }})
	for _, c := range []struct {
		method, path, body string
		status             int
		text               string
	}{
		{"POST", "/v1/pods", "{", 400, "unexpected EOF"},
		{"POST", "/v1/pods", "null", 400, "want a JSON object"},
		{"POST", "/v1/pods", " [] ", 400, "want a JSON object"},
		{"POST", "/v1/pods", `"a"`, 400, "want a JSON object"},
		{"POST", "/v1/pods", `{"pid":1,"pid":2}`, 400, `key \"pid\" is there twice`},
		{"POST", "/v1/pods", `{"networks":[],"Networks":["a"]}`, 400, `key \"Networks\" is there twice`},
		{"POST", "/v1/pods", `{"uuid":{}}`, 400, "uuid"},
		{"POST", "/v1/pods", `{"uuid"}`, 400, "colon"},
		{"POST", "/v1/pods", `{} x`, 400, "something follows"},
		{"POST", "/v1/images", "null", 400, "want a JSON object"},
		{"POST", "/v1/images", `{"reference":"a","reference":"b"}`, 400, "there twice"},
		{"POST", "/v1/images", `{"reference":["a"]}`, 400, "reference"},
		{"POST", "/v1/pods", `{"network":"a"}`, 400, `unknown field \"network\"`},
		{"POST", "/v1/pods", `{"networks":"a"}`, 400, "networks"},
		{"POST", "/v1/pods", `{"user":-1}`, 400, "user"},
		{"POST", "/v1/pods", `{} {}`, 400, "something follows"},
		{"POST", "/v1/pods", `{"uuid":"` + strings.Repeat("x", maxBody) + `"}`, 413, "longer than"},
		{"POST", "/v1/images", `{}`, 400, "reference"},
		{"DELETE", "/v1/pods/x?force=maybe", "", 400, "maybe"},
		{"GET", "/v1/networks/none", "", 404, "none"},
		{"GET", "/v2/pods", "", 404, "/v2/pods"},
		{"PUT", "/v1/pods", "", 404, "PUT"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.text) || !strings.Contains(w.Body.String(), `"reason":`) {
			t.Errorf("%s %s %.50s: %d %.200s, want %d with %s", c.method, c.path, c.body, w.Code, w.Body, c.status, c.text)
		}
	}
	if p.asked.Networks != nil || p.calls != nil {
		t.Errorf("it was called: %+v %v", p.asked, p.calls)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	socket, _ := daemon(t, &pods{})
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) }}}
	for path, want := range map[string]string{"/healthz": "200 ok\n", "/readyz": "503 network blue is starting\n"} {
		r, err := client.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if got := fmt.Sprintf("%d %s", r.StatusCode, text); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// The hook and the API know the same socket.
func TestSocket(t *testing.T) {
	t.Parallel()
	if DefaultSocket != hook.DefaultSocket {
		t.Errorf("%s and %s", DefaultSocket, hook.DefaultSocket)
	}
}
