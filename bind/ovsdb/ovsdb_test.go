package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// server answers each request by script, in turn: %s stands for the request's id. What it
// was asked comes on the channel.
func server(t *testing.T, script ...string) (path string, asked <-chan string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "db.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		read := json.NewDecoder(c)
		for _, say := range script {
			var m map[string]json.RawMessage
			if read.Decode(&m) != nil {
				return
			}
			heard <- fmt.Sprintf("%s %s %s", m["method"], m["params"], m["result"])
			if _, err := c.Write([]byte(strings.ReplaceAll(say, "%s", string(m["id"])))); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return path, heard
}

func dial(t *testing.T, path string) *Conn {
	t.Helper()
	c, err := Dial(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestTransact(t *testing.T) {
	t.Parallel()
	path, asked := server(t, `{"id":"echo","method":"echo","params":["alive?"]}`,
		`{"id":77,"result":[],"error":null}`+
			`{"id":%s,"error":null,"result":[{"rows":[{"_uuid":["uuid","u1"],"name":"a","n":7,"one":["uuid","u2"],`+
			`"more":["set",[["uuid","u3"],["uuid","u4"]]],"none":["set",[]],`+
			`"ids":["map",[["k","v"],["l","w"]]]}]},{"uuid":["uuid","u9"]},{"count":3}]}`)
	c := dial(t, path)
	// The answer to the database's own question is what the script's second line waits for.
	results, err := c.Transact(t.Context(),
		Select("T", nil, "name"),
		Insert("T", "x", map[string]any{"ids": Map(map[string]string{"b": "2", "a": "1"}), "none": Set[string]()}),
		Mutate(
			"T",
			[]Condition{
				Equals("name", "a"), Differs("one", UUID("u5")), Includes("more", Set(UUID("u3"), UUID("u4"))),
			},
			Mutation{"more", "insert", Named("x")},
		),
		Comment("why"))
	if err == nil {
		t.Error("three results for four operations are an answer")
	}
	want := `"transact" ["Open_vSwitch",{"columns":["name"],"op":"select","table":"T","where":[]},` +
		`{"op":"insert","row":{"ids":["map",[["a","1"],["b","2"]]],"none":["set",[]]},"table":"T","uuid-name":"x"},` +
		`{"mutations":[["more","insert",["named-uuid","x"]]],"op":"mutate","table":"T",` +
		`"where":[["name","==","a"],["one","!=",["uuid","u5"]],` +
		`["more","includes",["set",[["uuid","u3"],["uuid","u4"]]]]]},` +
		`{"comment":"why","op":"comment"}] `
	if got := <-asked; got != want {
		t.Errorf("asked %s\nwant  %s", got, want)
	}
	if got := <-asked; got != ` null ["alive?"]` && got != `  ["alive?"]` {
		t.Errorf("the database's own question was answered by %s", got)
	}
	if results != nil {
		t.Errorf("results %v with an error", results)
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	path, _ := server(
		t,
		`{"id":%s,"error":null,"result":[{"rows":[{"_uuid":["uuid","u1"],"name":"a","n":7,"one":["uuid","u2"],`+
			`"more":["set",[["uuid","u3"],["uuid","u4"]]],"none":["set",[]],`+
			`"ids":["map",[["k","v"],["l","w"]]]}]},{"uuid":["uuid","u9"]},{"count":3}]}`,
	)
	got, err := dial(t, path).Transact(t.Context(), Select("T", nil), Insert("T", "x", nil), Mutate("T", nil))
	if err != nil {
		t.Fatal(err)
	}
	r := got[0].Rows[0]
	for what, is := range map[string]bool{
		"UUID":          r.UUID("_uuid") == "u1",
		"no UUID":       r.UUID("none") == "" && r.UUID("name") == "" && r.UUID("absent") == "",
		"set of one":    fmt.Sprint(r.UUIDs("one")) == "[u2]",
		"set":           fmt.Sprint(r.UUIDs("more")) == "[u3 u4]",
		"empty set":     len(r.UUIDs("none")) == 0,
		"text":          r.Text("name") == "a" && r.Text("none") == "",
		"number":        r.Number("n") == 7 && r.Number("none") == 0,
		"map":           fmt.Sprint(r.Map("ids")) == "map[k:v l:w]" && len(r.Map("none")) == 0,
		"inserted":      got[1].UUID == "u9",
		"rows that met": got[2].Count == 3,
	} {
		if !is {
			t.Errorf("%s is misread: %s", what, r)
		}
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer string
		op     int
		code   string
	}{
		"operation": {
			`{"id":%s,"error":null,"result":[{"rows":[]},{"error":"timed out","details":"waited"},null]}`, 1,
			"timed out",
		},
		"commit": {
			`{"id":%s,"error":null,"result":[{"rows":[]},{},{},{"error":"constraint violation","details":"two of one name"}]}`,
			3, ConstraintViolation,
		},
	} {
		path, _ := server(t, c.answer)
		_, err := dial(t, path).Transact(t.Context(), Select("T", nil), Comment("1"), Comment("2"))
		var refused *OpError
		if !errors.As(err, &refused) || refused.Op != c.op || refused.Code != c.code ||
			sdn.IsUnavailable(err) || !strings.Contains(err.Error(), refused.Details) {
			t.Errorf("%s: %v", name, err)
		}
	}
	path, _ := server(
		t,
		`{"id":%s,"result":null,"error":{"error":"unknown database","details":"no database Open_vSwitch"}}`,
	)
	if _, err := dial(t, path).Transact(t.Context(), Comment("")); err == nil ||
		sdn.IsUnavailable(err) || !strings.Contains(err.Error(), "unknown database") {
		t.Errorf("refused whole: %v", err)
	}
}

// TestUnavailable: whatever else may come instead of an answer tells nothing of what was done.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"half an answer":         `{"id":%s,"error":null,"res`,
		"nothing":                ``,
		"no JSON":                `HTTP/1.1 400 Bad Request`,
		"no list":                `{"id":%s,"error":null,"result":{"rows":[]}}`,
		"too few results":        `{"id":%s,"error":null,"result":[{}]}`,
		"too long":               `{"id":%s,"error":null,"result":["` + strings.Repeat("x", maxMessage) + `"]}`,
		"a UUID of another sort": `{"id":%s,"error":null,"result":[{"uuid":["named-uuid","x"]},{}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, _ := server(t, answer)
			if _, err := dial(t, path).Transact(
				t.Context(), Comment("1"), Comment("2"),
			); !sdn.IsUnavailable(err) || !strings.Contains(err.Error(), path) {
				t.Errorf("error is %.200v", err)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "none.sock")
	if _, err := Dial(t.Context(), path); !sdn.IsUnavailable(err) ||
		!strings.Contains(err.Error(), path) || !sdn.IsOfHost(err) {
		t.Errorf("no socket: %v", err)
	}
}

// TestGivenUp: a context's end ends a call that is not answered, and a watch of what does
// not change.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	silent, asked := server(t, " ", " ")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	go func() { <-asked; cancel(why) }()
	if _, err := dial(t, silent).Transact(ctx, Comment("")); !sdn.IsUnavailable(err) || !errors.Is(err, why) {
		t.Errorf("call: %v", err)
	}
	path, _ := server(t, `{"id":%s,"result":{},"error":null}`, " ")
	c := dial(t, path)
	if err := c.Watch(t.Context(), "T", nil, "x"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	cancel(why)
	if err := c.Changed(ctx); !errors.Is(err, why) {
		t.Errorf("watch: %v", err)
	}
}

// TestWatch: a change that comes before, or instead of, an answer is not lost.
func TestWatch(t *testing.T) {
	t.Parallel()
	const change = `{"id":null,"method":"update2","params":["kuryr",{"T":{"u":{"modify":{}}}}]}`
	path, asked := server(t, `{"id":%s,"result":{},"error":null}`, change+`{"id":%s,"result":[{}],"error":null}`+change)
	c := dial(t, path)
	if err := c.Watch(t.Context(), "T", []Condition{Equals("name", "a")}, "x"); err != nil {
		t.Fatal(err)
	}
	if got, want := <-asked, `"monitor_cond" `+
		`["Open_vSwitch","kuryr",{"T":[{"columns":["x"],"where":[["name","==","a"]]}]}] `; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	if _, err := c.Transact(t.Context(), Comment("")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Changed(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := c.Changed(t.Context()); !sdn.IsUnavailable(err) {
		t.Errorf("after the end: %v", err)
	}
}

// FuzzRow: no value makes a reader fail in another way than by reading nothing.
func FuzzRow(f *testing.F) {
	for _, s := range []string{
		`["uuid","u"]`, `["set",[["uuid","u"]]]`, `["map",[["a","b"]]]`, `["set"]`, `[]`, `7`, `null`,
		`{`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := Row{"c": b}
		for _, u := range r.UUIDs("c") {
			if !json.Valid(b) {
				t.Errorf("%q gives %s", b, u)
			}
		}
		_, _, _, _ = r.UUID("c"), r.Text("c"), r.Number("c"), r.Map("c")
	})
}
