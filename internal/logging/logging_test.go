package logging

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
)

func TestLinesCarryTheRequest(t *testing.T) {
	t.Parallel()
	ctx, id := WithRequest(context.Background(), "")
	if id == "" || Request(ctx) != id {
		t.Fatalf("request id %q, in context %q", id, Request(ctx))
	}
	var out bytes.Buffer
	log, err := New(&out, slog.LevelInfo, JSON)
	if err != nil {
		t.Fatal(err)
	}
	log.With("part", "docker").InfoContext(ctx, "served")
	log.DebugContext(ctx, "hidden")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("not one line of JSON: %v: %s", err, out.String())
	}
	if line["request"] != id || line["part"] != "docker" || line["msg"] != "served" {
		t.Errorf("line = %v", line)
	}
}

func TestWithoutRequest(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := New(&out, slog.LevelDebug, Text)
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("plain")
	if got := out.String(); strings.Contains(got, "request=") || !strings.Contains(got, "msg=plain") {
		t.Errorf("line = %s", got)
	}
}

func TestNewRefusesFormat(t *testing.T) {
	t.Parallel()
	if _, err := New(nil, slog.LevelInfo, "xml"); err == nil || !strings.Contains(err.Error(), `"xml"`) {
		t.Errorf("error = %v", err)
	}
}

func TestParseLevel(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn,
		"error": slog.LevelError,
	} {
		if got, err := ParseLevel(in); err != nil || got != want {
			t.Errorf("ParseLevel(%q) = %v, %v", in, got, err)
		}
	}
	if _, err := ParseLevel("loud"); err == nil {
		t.Error("ParseLevel(loud) succeeded")
	}
}
