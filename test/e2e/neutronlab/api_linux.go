package neutronlab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// HTTP is a client that speaks from the central host, a new connection for each request.
func (l *Lab) HTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: l.Central.Dial}}
}

// Refused is an answer of Neutron or Keystone that is not a success.
type Refused struct {
	Status int
	Text   string
}

func (r *Refused) Error() string { return fmt.Sprintf("status %d: %s", r.Status, r.Text) }

// Object is a JSON object as Neutron sends it, without the envelope of its noun.
type Object map[string]any

// ID is the object's id.
func (o Object) ID() string { return o.Text("id") }

// Text is a field's text; empty where the field is missing or null.
func (o Object) Text(field string) string {
	s, _ := o[field].(string)
	return s
}

// API speaks with Neutron as the administrator; without Keystone every caller is one.
type API struct{ lab *Lab }

// API is the lab's Neutron.
func (l *Lab) API() API { return API{l} }

// Get reads one object: Get(ctx, "networks", id).
func (a API) Get(ctx context.Context, nouns, id string) (Object, error) {
	return a.one(ctx, http.MethodGet, nouns+"/"+id, nouns, nil)
}

// List reads the objects that a query ("name=a&project_id=b") matches.
func (a API) List(ctx context.Context, nouns, query string) ([]Object, error) {
	answer := map[string][]Object{}
	if err := a.call(ctx, http.MethodGet, nouns+"?"+query, nil, &answer); err != nil {
		return nil, err
	}
	return answer[underscored(nouns)], nil
}

// Create makes one object.
func (a API) Create(ctx context.Context, nouns string, o Object) (Object, error) {
	return a.one(ctx, http.MethodPost, nouns, nouns, map[string]any{singular(nouns): o})
}

// Update changes the fields that o has.
func (a API) Update(ctx context.Context, nouns, id string, o Object) (Object, error) {
	return a.one(ctx, http.MethodPut, nouns+"/"+id, nouns, map[string]any{singular(nouns): o})
}

// Act puts a body to an action below a noun ("routers/ID/add_router_interface", "ports/ID/tags").
func (a API) Act(ctx context.Context, path string, body any) error {
	return a.call(ctx, http.MethodPut, path, body, nil)
}

// Delete removes one object; one that is gone already is no error.
func (a API) Delete(ctx context.Context, nouns, id string) error {
	err := a.call(ctx, http.MethodDelete, nouns+"/"+id, nil, nil)
	var refused *Refused
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return nil
	}
	return err
}

func (a API) one(ctx context.Context, method, path, nouns string, body any) (Object, error) {
	answer := map[string]Object{}
	if err := a.call(ctx, method, path, body, &answer); err != nil {
		return nil, err
	}
	return answer[singular(nouns)], nil
}

func (a API) call(ctx context.Context, method, path string, body, into any) error {
	token := ""
	if a.lab.opts.Keystone {
		var err error
		if token, err = a.lab.adminToken(ctx); err != nil {
			return err
		}
	}
	_, err := a.lab.request(ctx, method, Endpoint+"/v2.0/"+path, token, body, into)
	return err
}

// adminToken is a token of the administrator's: always the same one, but where tokens are short-lived.
func (l *Lab) adminToken(ctx context.Context) (string, error) {
	l.admin.Lock()
	defer l.admin.Unlock()
	if l.admin.token != "" && l.tokenLife == 0 {
		return l.admin.token, nil
	}
	token, err := l.Login(ctx, "admin", adminPassword, "admin")
	if err == nil && l.tokenLife == 0 {
		l.admin.token = token
	}
	return token, err
}

// request sends JSON and reads JSON; what is not a success is a *Refused.
func (l *Lab) request(ctx context.Context, method, url, token string, body, into any) (http.Header, error) {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		sent = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, sent)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("X-Auth-Token", token)
	}
	resp, err := l.HTTP().Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, &Refused{resp.StatusCode, string(text)}
	}
	if into != nil {
		err = json.Unmarshal(text, into)
	}
	return resp.Header, err
}

func singular(nouns string) string {
	nouns = underscored(nouns)
	if root, ok := strings.CutSuffix(nouns, "policies"); ok {
		return root + "policy"
	}
	return strings.TrimSuffix(nouns, "s")
}

// underscored is the name in bodies of a noun that has a dash, or folders before it, in paths.
func underscored(nouns string) string {
	return strings.ReplaceAll(nouns[strings.LastIndex(nouns, "/")+1:], "-", "_")
}
