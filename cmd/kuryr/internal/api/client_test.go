package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
)

// answer is a server that says the same to everything.
type answer struct {
	status int
	body   []byte
}

func (a answer) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.status, Body: io.NopCloser(bytes.NewReader(a.body))}, nil
}

// FuzzAnswer checks that the client returns objects, or an error with a text and the status,
// whatever a server answers.
func FuzzAnswer(f *testing.F) {
	f.Add(200, []byte(`{"ports":[{"id":"a","fixed_ips":[{"ip_address":"10.0.0.1"}],"binding:vif_details":{"a":"b"}}]}`))
	f.Add(200, []byte(`{"ports":null}{`))
	f.Add(404, []byte(`{"NeutronError":{"type":"PortNotFound","message":"gone","detail":""}}`))
	f.Add(502, []byte(`{"NeutronError":"text"}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		c := &Client{HTTP: &http.Client{Transport: answer{status, body}}, Base: "http://x"}
		_, err := List(t.Context(), c, Ports, nil)
		var refused *Error
		success := status >= 200 && status < 300
		switch {
		case status >= 300 && status < 400: // net/http follows a redirect, which has no location
		case success && errors.As(err, &refused):
			t.Errorf("%d %q: a success is the refusal %v", status, body, err)
		case !success && (!errors.As(err, &refused) || refused.Status != status):
			t.Errorf("%d %q: error %v", status, body, err)
		case err != nil && err.Error() == "":
			t.Errorf("%d %q: an error without a text", status, body)
		}
	})
}

// TestProfileOfAnyNumber checks that a number that no Go type holds does not break the lists of the
// client.
func TestProfileOfAnyNumber(t *testing.T) {
	var p Port
	const profile = `{"id":"p","binding:profile":{"n":1e999,"i":9007199254740993}}`
	if err := json.Unmarshal([]byte(profile), &p); err != nil {
		t.Fatal(err)
	}
	if n, i := string(p.Profile["n"]), string(p.Profile["i"]); n != "1e999" || i != "9007199254740993" {
		t.Errorf("got %s and %s", n, i)
	}
}
