package cni

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

func env(all ...string) func(string) string {
	return func(name string) string {
		for _, e := range all {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v
			}
		}
		return ""
	}
}

func TestReadCall(t *testing.T) {
	full := []string{"CNI_CONTAINERID=abc", "CNI_NETNS=/run/netns/a", "CNI_IFNAME=eth0", "CNI_ARGS=MTU=1", "CNI_PATH=/opt"}
	with := func(more ...string) []string { return append(more, full...) } // the first of a name counts
	for _, row := range []struct {
		env  []string
		want string // part of the error; "" is none
	}{
		{with("CNI_COMMAND=ADD"), ""},
		{with("CNI_COMMAND=CHECK"), ""},
		{[]string{"CNI_COMMAND=DEL", "CNI_CONTAINERID=abc", "CNI_IFNAME=eth0"}, ""},
		{[]string{"CNI_COMMAND=GC"}, ""},
		{[]string{"CNI_COMMAND=STATUS"}, ""},
		{[]string{"CNI_COMMAND=VERSION"}, ""},
		{full, "CNI_COMMAND"},
		{with("CNI_COMMAND=add"), "CNI_COMMAND"},
		{[]string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=abc", "CNI_IFNAME=eth0"}, "CNI_NETNS"},
		{[]string{"CNI_COMMAND=DEL", "CNI_IFNAME=eth0"}, "CNI_CONTAINERID"},
		{with("CNI_COMMAND=ADD", "CNI_CONTAINERID=../x"), "CNI_CONTAINERID"},
		{with("CNI_COMMAND=ADD", "CNI_CONTAINERID=_x"), "CNI_CONTAINERID"},
		{with("CNI_COMMAND=ADD", "CNI_CONTAINERID="+strings.Repeat("a", 111)), "CNI_CONTAINERID"},
		{with("CNI_COMMAND=ADD", "CNI_NETNS=netns/a"), "CNI_NETNS"},
		{with("CNI_COMMAND=ADD", "CNI_IFNAME=abcdefghijklmnop"), "CNI_IFNAME"},
		{with("CNI_COMMAND=ADD", "CNI_IFNAME=.."), "CNI_IFNAME"},
		{with("CNI_COMMAND=ADD", "CNI_IFNAME=a/b"), "CNI_IFNAME"},
		{with("CNI_COMMAND=ADD", "CNI_IFNAME=a b"), "CNI_IFNAME"},
	} {
		_, err := ReadCall(env(row.env...), strings.NewReader("{}"))
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want) || AsError(err).Code != BadEnvironment.Code) {
			t.Errorf("%v: %v, want %q", row.env, err, row.want)
		}
	}
	for name, stdin := range map[string]io.Reader{
		"too long":   bytes.NewReader(make([]byte, MaxInput+1)),
		"unreadable": iotest.ErrReader(errors.New("gone")),
	} {
		if _, err := ReadCall(env(with("CNI_COMMAND=ADD")...), stdin); err == nil || AsError(err).Code != IOFailure.Code {
			t.Errorf("standard input is %s: %v", name, err)
		}
	}
}

// A call is the same on the other side, also of another step; one that needs more is told who is too old.
func TestProtocol(t *testing.T) {
	call := Call{Add, "abc", "/run/netns/a", "eth0", "IP=10.0.0.1", []byte(`{"name": "a"}`)}
	var wire bytes.Buffer
	if err := WriteFrame(&wire, NewRequest(call)); err != nil {
		t.Fatal(err)
	}
	var r Request
	if err := ReadFrame(&wire, &r); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Call(); err != nil || !reflect.DeepEqual(got, call) {
		t.Errorf("%+v, %v", got, err)
	}
	r.Protocol = Protocol + 1
	if _, err := r.Call(); err != nil {
		t.Errorf("one step newer: %v", err)
	}
	r.Least = Protocol + 1
	if _, err := r.Call(); AsError(err).Code != IncompatibleVersion.Code {
		t.Errorf("a request that needs the next step: %v", err)
	}
}

func TestFrames(t *testing.T) {
	for name, wire := range map[string]string{
		"nothing":         "",
		"half a head":     "\x00\x00",
		"half a message":  "\x00\x00\x00\x09{\"verb",
		"too long":        "\xff\xff\xff\xff{}",
		"no JSON":         "\x00\x00\x00\x02{]",
		"more than asked": "\x00\x00\x00\x01{}",
	} {
		if err := ReadFrame(strings.NewReader(wire), new(Request)); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	if err := WriteFrame(io.Discard, make([]byte, MaxFrame)); err == nil {
		t.Error("a message that nobody would read is sent")
	}
}

func FuzzFrame(f *testing.F) {
	var wire bytes.Buffer
	_ = WriteFrame(&wire, NewRequest(Call{Verb: Add, Container: "a", Config: []byte("{}")}))
	f.Add(wire.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		var r Request
		if ReadFrame(bytes.NewReader(data), &r) != nil {
			return
		}
		if c, err := r.Call(); err == nil && c.Validate() != nil {
			t.Error("a call was taken that is not valid")
		}
	})
}
