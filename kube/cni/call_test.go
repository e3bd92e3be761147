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

// What kuryr-cni asks in the plain form is answered in it, whole as the runtime is to have it; what it cannot do by itself it is told in JSON.
func TestPlain(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, verb, config string
		err                error
		status             byte
		says               string
	}{
		{"a result", Add, `{"cniVersion": "1.0.0", "name": "a"}`, nil, 0, "out"},
		{"an error", Add, `{"cniVersion": "1.0.0", "name": "a"}`, Exhausted.Errorf("none"), byte(Exhausted.Exit), `"cniVersion": "1.0.0"`},
		{"an error of a configuration without a version", Add, `{"name": "a"}`, Exhausted.Errorf("none"), byte(Exhausted.Exit), `"cniVersion": "` + DefaultVersion + `"`},
		{"no JSON", Add, `{]`, Undecodable.Errorf("no"), byte(Undecodable.Exit), `"code": 6`},
		{"a DEL that fails", Del, `{"name": "a"}`, Denied.Errorf("no"), byte(Denied.Exit), `"code": 103`},
		{"a DEL that comes too early", Del, `{"name": "a"}`, TryAgain.Errorf("no"), '{', `"code":11`},
	} {
		body := "\x00\x01" + row.verb + "\x00abc\x00/run/netns/a\x00eth0\x00IP=10.0.0.1\x00" + row.config
		q, reply, err := ReadRequest(strings.NewReader("\x00\x00\x00" + string(rune(len(body))) + body))
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		want := Call{row.verb, "abc", "/run/netns/a", "eth0", "IP=10.0.0.1", []byte(row.config)}
		if got, err := q.Call(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", row.name, got, err)
		}
		var wire bytes.Buffer
		if err := reply(&wire, []byte("out"), row.err); err != nil {
			t.Errorf("%s: %v", row.name, err)
		}
		answer := strings.TrimPrefix(string(wire.Bytes()[4:]), "\x00\x01")
		if answer[0] != row.status || !strings.Contains(answer, row.says) {
			t.Errorf("%s: answered %q, want the status %d and %s", row.name, answer, row.status, row.says)
		}
	}
	for _, cut := range []string{"\x00\x00\x00\x06\x00\x01ADD\x00", "\x00\x00\x00\x02\x00\x02"} {
		if _, _, err := ReadRequest(strings.NewReader(cut)); err == nil {
			t.Errorf("%q is read", cut)
		}
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
