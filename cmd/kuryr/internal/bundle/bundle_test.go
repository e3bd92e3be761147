package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

const secret = "hunter2-PLANTED"

func TestRedact(t *testing.T) {
	t.Parallel()
	key := "-----BEGIN EC PRIVATE KEY-----\n" + secret + "\nabc=\n-----END EC PRIVATE KEY-----"
	for _, text := range []string{
		"KURYR_OS_PASSWORD=" + secret, "OS_TOKEN: " + secret, `{"password": "` + secret + `"}`,
		`{"AdminToken":"a ` + secret + ` b"}`,
		`msg="login" password="x ` + secret + `" user=me`,
		"url=https://user:" + secret + "@example.org/x", "http://" + secret + "@example.org",
		key, "x " + strings.ReplaceAll(key, "\n", `\n`) + " y", key[:60],
		"Authorization: Bearer " + secret, "authorization=Basic " + secret + "==",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI" + "x.hunter2-PLANTED",
		"GET /x?access_token=" + secret + "&a=b", "--db-password " + secret, "--token=" + secret,
		`{\"secret\": \"` + secret + `\"}`, "my_private_key = '" + secret + "'", "clientSecret:" + secret,
		"X-Auth-Token: " + secret,
		`{"password":"a\"` + secret + `"}`, "Set-Cookie: sid=" + secret,
		"password:\n  " + secret + "\nmore: x", "token: |\n\n    " + secret, "\"secret\":\n\"" + secret + "\"",
	} {
		got := Redact(text)
		if strings.Contains(got, secret) || !strings.Contains(got, Hidden) {
			t.Errorf("%q becomes %q", text, got)
		}
		if again := Redact(got); strings.Contains(again, secret) {
			t.Errorf("%q becomes %q", got, again)
		}
	}
}

// What a bundle is for stays readable.
func TestRedactKeeps(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"tcp dport 8080 counter packets 3 bytes 180 drop comment \"published\"",
		`{"id":"0f3c","name":"blue","fixed_ips":[{"ip_address":"10.0.0.2"}]}`,
		"default via 198.51.100.2 dev eth0", "kuryr_docker_calls_total{method=\"Join\"} 3", "10.0.0.0/24 via fe80::1",
		"http://example.org:8080/path@x", "keyboard: de",
	} {
		if got := Redact(text); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}

func TestRedactYAML(t *testing.T) {
	t.Parallel()
	got, err := RedactYAML([]byte("# " + secret + `
log: {level: info} # ` + secret + `
docker:
  tls:
    key: ` + secret + `
    password: |
      ` + secret + `
      more
  tokens: [` + secret + `, b]
  api: /run/docker.sock
sdn:
  url: https://me:` + secret + `@example.org
`))
	if err != nil || strings.Contains(got, secret) {
		t.Errorf("%v\n%s", err, got)
	}
	for _, want := range []string{"level: info", "api: /run/docker.sock", "example.org"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is lost:\n%s", want, got)
		}
	}
	if got, err := RedactYAML([]byte("a: [" + secret)); err == nil || got != "" {
		t.Errorf("what is not YAML: %q, %v", got, err)
	}
	if got, err := RedactYAML(nil); err != nil || got != "" {
		t.Errorf("nothing: %q, %v", got, err)
	}
}

func files(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for reader := tar.NewReader(unzipped); ; {
		h, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(reader)
		if err != nil || h.Mode != 0o600 {
			t.Fatalf("%s: mode %o, %v", h.Name, h.Mode, err)
		}
		out[h.Name] = string(data)
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	text := func(s string, err error) func(context.Context, io.Writer) error {
		return func(_ context.Context, w io.Writer) error {
			_, _ = io.WriteString(w, s)
			return err
		}
	}
	var out bytes.Buffer
	err := Write(t.Context(), &out, "top", time.Unix(1, 0), []Part{
		{"a.txt", text("token="+secret, nil)},
		{"half.txt", text("half", fmt.Errorf("no more: password=%s\nsecond line", secret))},
		{"none.txt", text("", errors.New("nothing"))},
		{"long.txt", text(strings.Repeat("x", MaxPart)+"more", nil)},
		{"panics.txt", func(context.Context, io.Writer) error { panic("oh") }},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := files(t, out.Bytes())
	if got["top/a.txt"] != "token="+Hidden || got["top/half.txt"] != "half" || len(got["top/long.txt"]) != MaxPart {
		t.Errorf("%d bytes of a long part, others: %q %q", len(got["top/long.txt"]), got["top/a.txt"], got["top/half.txt"])
	}
	complaints := got["top/errors.txt"]
	if _, ok := got["top/none.txt"]; ok || strings.Count(complaints, "\n") != 4 || strings.Contains(complaints, secret) {
		t.Errorf("errors.txt:\n%s", complaints)
	}
	for _, want := range []string{"half.txt: no more", "none.txt: nothing", "long.txt: cut off", "panics.txt: panic: oh"} {
		if !strings.Contains(complaints, want) {
			t.Errorf("%q is not in errors.txt:\n%s", want, complaints)
		}
	}
	// A caller that has enough gets what there is immediately.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out.Reset()
	blocked := make(chan struct{})
	t.Cleanup(func() { close(blocked) })
	if err := Write(ctx, &out, "top", time.Unix(1, 0), []Part{{
		"slow.txt", func(context.Context, io.Writer) error { <-blocked; return nil },
	}}); err != nil {
		t.Fatal(err)
	}
	if got := files(t, out.Bytes()); !strings.Contains(got["top/errors.txt"], "slow.txt: it took too long") {
		t.Errorf("%v", got)
	}
}

func FuzzRedactYAML(f *testing.F) {
	f.Add([]byte("a: {password: x}\n"))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = RedactYAML(data) })
}
