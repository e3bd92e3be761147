package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// A server without this version of the protocol is told from one that does not run.
func TestOtherVersions(t *testing.T) {
	for text, want := range map[string]error{
		`{}`: ErrEarlier, `{"versions":[0]}`: ErrEarlier, `{"versions":[2]}`: errLater, `{"versions":[1,2]}`: nil,
	} {
		_, socket := paths(t)
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		other := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != Path && want != nil {
				t.Errorf("%s: %s was called", text, r.URL.Path)
			}
			_, _ = io.WriteString(w, text)
		})}
		go func() { _ = other.Serve(l) }()
		defer other.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := Dial(ctx, socket, Options{}); !errors.Is(err, want) || ctx.Err() != nil {
			t.Errorf("%s: got error %v", text, err)
		}
		if want == nil {
			continue
		}
		err = dial(t, socket, Options{Known: &Peer{Versions: []int{1}}}).Ping(ctx)
		if !errors.Is(err, want) || !errors.Is(err, sdn.ErrNotSent) || !sdn.IsUnavailable(err) {
			t.Errorf("%s: got error %v of a call", text, err)
		}
	}
}
