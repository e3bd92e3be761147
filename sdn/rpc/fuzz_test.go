package rpc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

func failureReader(failed **failure) func(io.Reader) error {
	return func(r io.Reader) (err error) {
		*failed, err = readAnswer(r, func([]byte) bool { return true })
		return err
	}
}

// A line without its end, and one that is too long, is not a line of the answer.
func TestReadAnswer(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for text, want := range map[string][]string{
		"": nil, "-null": nil, "+1\n+2": {"1"}, "\n+" + long + "\n\n-null\n": {long},
		"+1\n-null\n+2\n": {"1"}, "1\n": nil, "+1\n-{\n": {"1"},
	} {
		var got []string
		_, err := readAnswer(strings.NewReader(text), func(line []byte) bool {
			got = append(got, string(line))
			return true
		})
		if !slices.Equal(got, want) || (err == nil) != strings.HasSuffix(text, "\n\n-null\n") {
			t.Errorf("%.9q: %.9q, %v", text, got, err)
		}
	}
	endless := io.MultiReader(strings.NewReader("+"), zeros{})
	_, err := readAnswer(endless, func([]byte) bool { return true })
	if !errors.Is(err, bufio.ErrTooLong) {
		t.Errorf("an endless line: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// FuzzRequest decodes arguments of each method: they are refused, or they are the same when
// they are encoded again.
func FuzzRequest(f *testing.F) {
	table := methods((*Client)(nil))
	f.Add("EnsureNetwork", []byte(`[{"Name":"n","Subnets":[{"CIDR":"10.0.0.0/24"}]}]`))
	f.Add("UpdatePort", []byte(`["1",{"Groups":[],"MAC":"AgAAAAAB","Addresses":[{"Addr":"10.0.0.1"}]}]`))
	f.Add("ApplyLoadBalancer", []byte(`[{"Listeners":[{"Pool":{"Members":[{"Addr":"10.0.0.1:80","Tags":[]}]}}]}]`))
	f.Add("SetQuota", []byte(`["p",{"port":-1}]`))
	f.Add("WaitPorts", []byte(`[["1"],"ACTIVE"]`))
	f.Fuzz(func(t *testing.T, method string, body []byte) {
		m := table[method]
		if m == nil {
			return
		}
		decode := func(body []byte) (args []any, err error) {
			values, err := decodeArgs(body, reflect.TypeOf(m))
			for _, v := range values {
				args = append(args, v.Interface())
			}
			return args, err
		}
		args, err := decode(body)
		if err != nil {
			return
		}
		again, err := encodeArgs(args)
		if err != nil {
			return // such as an address that JSON has and text has not
		}
		same, err := decode(again)
		if err != nil {
			t.Fatalf("%s: %s became %s: %v", method, body, again, err)
		}
		third, err := encodeArgs(same)
		if err != nil || !bytes.Equal(again, third) {
			t.Fatalf("%s: %s became %s, %v", method, again, third, err)
		}
	})
}

// FuzzAnswer reads answers: no text of a server ends the client, and an error keeps its
// text.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("\n\n+{}\n+1\n-null\n"))
	f.Add([]byte(`-{"text":"port 4: gone","kind":"not found","noun":"port","id":"4",` +
		`"cause":{"text":"x","of_host":true}}` + "\n"))
	f.Add([]byte(`-{"text":"2","bulk":[null,{"text":"y","ended":"deadline"}]}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var failed *failure
		err := failureReader(&failed)(bytes.NewReader(text))
		if err != nil || failed == nil {
			return
		}
		got := failed.err()
		if got.Error() != failed.Text {
			t.Fatalf("%q became %q", failed.Text, got)
		}
		data, err := json.Marshal(failureOf(got))
		if err != nil {
			t.Fatal(err)
		}
		var again *failure
		if err := json.Unmarshal(data, &again); err != nil {
			t.Fatal(err)
		}
		second := again.err()
		if second.Error() != got.Error() || sdn.FieldOf(second) != sdn.FieldOf(got) ||
			sdn.IsUnavailable(second) != sdn.IsUnavailable(got) {
			t.Fatalf("%#v became %#v", got, second)
		}
	})
}
