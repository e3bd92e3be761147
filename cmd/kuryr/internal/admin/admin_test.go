package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/rootsock"
)

type fake struct {
	unready   []string
	status    Status
	reconcile Reconcile
	check     Check
	backup    func(io.Writer) error
	asked     DownOptions
	down      bool
	err       error

	orphans Orphans
	purge   PurgeOptions
	repairs Repairs
}

func (f *fake) Unready() []string                            { return f.unready }
func (f *fake) Status(context.Context) (Status, error)       { return f.status, f.err }
func (f *fake) Reconcile(context.Context) (Reconcile, error) { return f.reconcile, f.err }
func (f *fake) Check(context.Context) (Check, error)         { return f.check, f.err }
func (f *fake) Backup(_ context.Context, w io.Writer) error  { return f.backup(w) }
func (f *fake) Orphans(context.Context) (Orphans, error)     { return f.orphans, f.err }
func (f *fake) Repair(context.Context) (Repairs, error)      { return f.repairs, f.err }
func (f *fake) Purge(_ context.Context, o PurgeOptions) (Repairs, error) {
	f.purge = o
	return f.repairs, f.err
}
func (f *fake) Stop(context.Context) error { return f.err }
func (f *fake) Down(_ context.Context, o DownOptions) (DownReport, error) {
	f.asked, f.down = o, true
	return DownReport{Done: []string{"gone"}}, f.err
}

// start serves d on a socket and gives a client of it.
func start(t *testing.T, d Daemon) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "k.sock")
	l, err := rootsock.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, Handler(config(d))) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return NewClient(path)
}

func config(d Daemon) Config {
	say := func(s string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) })
	}
	return Config{Daemon: d, SDN: say("sdn"), Metrics: say("metrics"), Logger: slog.New(slog.DiscardHandler)}
}

func TestClientGetsWhatTheDaemonSays(t *testing.T) {
	t.Parallel()
	d := &fake{
		status: Status{
			Version: "1", Reasons: []string{"a"}, Objects: map[string]int64{"port": 3},
			Findings: []Finding{{"w", "m", true}}, Started: time.Unix(100, 0).UTC(),
		},
		reconcile: Reconcile{Changed: []string{"x"}, Error: "half"},
		check:     Check{Differences: []string{"d"}, Findings: []Finding{}},
	}
	c := start(t, d)
	status, err := c.Status(t.Context())
	if err != nil || !reflect.DeepEqual(status, d.status) {
		t.Errorf("status %+v, %v; want %+v", status, err, d.status)
	}
	reconcile, err := c.Reconcile(t.Context())
	if err != nil || !reflect.DeepEqual(reconcile, d.reconcile) {
		t.Errorf("reconcile %+v, %v", reconcile, err)
	}
	check, err := c.Check(t.Context())
	if err != nil || !reflect.DeepEqual(check, d.check) {
		t.Errorf("check %+v, %v", check, err)
	}
	report, err := c.Down(t.Context(), DownOptions{Force: true, Purge: true})
	if err != nil || report.Done[0] != "gone" || d.asked != (DownOptions{Force: true, Purge: true}) {
		t.Errorf("down %+v, %v, asked %+v", report, err, d.asked)
	}
}

func TestClientGetsTheError(t *testing.T) {
	t.Parallel()
	c := start(t, &fake{err: errors.New("the store is away")})
	for name, ask := range map[string]func() error{
		"status":    func() error { _, err := c.Status(t.Context()); return err },
		"reconcile": func() error { _, err := c.Reconcile(t.Context()); return err },
		"check":     func() error { _, err := c.Check(t.Context()); return err },
		"down":      func() error { _, err := c.Down(t.Context(), DownOptions{}); return err },
	} {
		if err := ask(); err == nil || err.Error() != "the store is away" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBackup(t *testing.T) {
	t.Parallel()
	whole := bytes.Repeat([]byte("page"), 1<<16)
	d := &fake{backup: func(w io.Writer) error { _, err := w.Write(whole); return err }}
	c := start(t, d)
	var got bytes.Buffer
	if err := c.Backup(t.Context(), &got); err != nil || !bytes.Equal(got.Bytes(), whole) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
}

func TestBackupThatBreaksOff(t *testing.T) {
	t.Parallel()
	c := start(t, &fake{backup: func(w io.Writer) error {
		_, _ = io.WriteString(w, "half")
		return errors.New("disk is away")
	}})
	if err := c.Backup(t.Context(), io.Discard); err == nil || err.Error() != "disk is away" {
		t.Errorf("error = %v", err)
	}
}

func TestNotRunning(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "none.sock")
	_, err := NewClient(path).Status(t.Context())
	if !IsNotRunning(err) ||
		!strings.Contains(
			err.Error(), "kuryr is not running: nothing answers at "+path+"; start it with `kuryr up`",
		) {
		t.Errorf("error = %v", err)
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		method, path, body string
		unready            []string
		all, public        int
		want               string
	}{
		{"GET", "/healthz", "", []string{"x"}, 200, 200, "ok"},
		{"GET", "/readyz", "", nil, 200, 200, "ok"},
		{"GET", "/readyz", "", []string{"one", "two"}, 503, 503, "one\ntwo"},
		{"GET", "/metrics", "", nil, 200, 200, "metrics"},
		{"GET", "/v2.0/ports", "", nil, 200, 404, "sdn"},
		{"GET", "/admin/status", "", nil, 200, 404, "{"},
		{"GET", "/admin/down", "", nil, 405, 404, ""},
		{"POST", "/admin/down", `{"forse":true}`, nil, 400, 404, "forse"},
		{"POST", "/admin/down", "", nil, 200, 404, "gone"},
		{"GET", "/other", "", nil, 404, 404, ""},
	} {
		d := &fake{unready: tc.unready}
		for name, h := range map[string]struct {
			handler http.Handler
			status  int
		}{"all": {Handler(config(d)), tc.all}, "public": {PublicHandler(config(d)), tc.public}} {
			w := httptest.NewRecorder()
			h.handler.ServeHTTP(w, httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.body)))
			if w.Code != h.status || h.status != 404 && !strings.Contains(w.Body.String(), tc.want) {
				t.Errorf("%s: %s %s: %d %q; want %d %q", name, tc.method, tc.path, w.Code, w.Body.String(), h.status, tc.want)
			}
		}
	}
}

// FuzzDownBody: only what can be read whole goes down, and all else is the caller's fault.
func FuzzDownBody(f *testing.F) {
	for _, body := range []string{"", "{}", `{"Purge":true}`, `{"purge":1}`, `{"purge":true}{`, `[]`, `{"purj":true}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		d := &fake{}
		w := httptest.NewRecorder()
		Handler(config(d)).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/admin/down", bytes.NewReader(body)))
		switch {
		case w.Code == http.StatusOK && d.down && (len(bytes.TrimSpace(body)) == 0 || json.Valid(body)):
		case w.Code == http.StatusBadRequest && !d.down:
		default:
			t.Errorf("%q: status %d, went down %v: %s", body, w.Code, d.down, w.Body)
		}
	})
}

func TestRepairs(t *testing.T) {
	t.Parallel()
	d := &fake{
		orphans: Orphans{
			Engine: "e", After: "2m",
			Orphans: []Orphan{{Noun: "network", Name: "n", Why: "w", Due: time.Unix(100, 0).UTC()}},
			Unknown: []UnknownNetwork{{"i", "blue"}},
		},
		repairs: Repairs{Done: []string{"a"}, Failed: []string{"b"}},
	}
	c := start(t, d)
	if got, err := c.Orphans(t.Context()); err != nil || !reflect.DeepEqual(got, d.orphans) {
		t.Errorf("orphans %+v, %v", got, err)
	}
	if got, err := c.Repair(t.Context()); err != nil || !reflect.DeepEqual(got, d.repairs) {
		t.Errorf("repaired %+v, %v", got, err)
	}
	want := PurgeOptions{Now: true, Engine: "x"}
	if got, err := c.Purge(t.Context(), want); err != nil || !reflect.DeepEqual(got, d.repairs) || d.purge != want {
		t.Errorf("purged %+v, %v, asked %+v", got, err, d.purge)
	}
	d.err = errors.New("no")
	for _, path := range []string{"/admin/forget", "/admin/mend"} {
		if err := c.call(t.Context(), http.MethodPost, path, nil, new(Repairs)); err == nil || err.Error() != "no" {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := c.call(
		t.Context(), http.MethodPost, "/admin/forget", map[string]any{"nwo": true}, new(Repairs),
	); err == nil || !strings.Contains(err.Error(), "nwo") {
		t.Errorf("a misspelt option: %v", err)
	}
	for _, path := range []string{"/admin/forget", "/admin/down"} {
		r, err := c.http.Post(base+path, "application/json", strings.NewReader("{} {}"))
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if r.StatusCode != http.StatusBadRequest {
			t.Errorf("%s answers data after its options with %s", path, r.Status)
		}
	}
}
