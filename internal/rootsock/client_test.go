package rootsock

import (
	"errors"
	"path/filepath"
	"testing"
)

func TestClientOfNobody(t *testing.T) {
	t.Parallel()
	absent := errors.New("no server")
	client := Client(filepath.Join(t.TempDir(), "none.sock"), absent)
	response, err := client.Get("http://any/") //nolint:noctx // nothing is waited for
	if err == nil {
		_ = response.Body.Close()
	}
	if !errors.Is(err, absent) {
		t.Fatalf("%v, want the error for an absent listener", err)
	}
}
