package restapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// ask sends a request as a caller and gives the status and the body.
func (w *world) ask(t *testing.T, caller Caller, method, path, body string, headers ...string) (int, map[string]any) {
	t.Helper()
	r := httptest.NewRequestWithContext(WithCaller(t.Context(), caller), method, path, strings.NewReader(body))
	if body == "" {
		r.Body = http.NoBody
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	recorder := httptest.NewRecorder()
	w.handler.ServeHTTP(recorder, r)
	var out map[string]any
	if recorder.Body.Len() > 0 {
		decoder := json.NewDecoder(bytes.NewReader(recorder.Body.Bytes()))
		decoder.UseNumber()
		must(t, decoder.Decode(&out))
	}
	return recorder.Code, out
}
