// Package api asks a Kuryr for its objects by the SDN's API, which is Neutron's and Octavia's. Its
// types are what commands show of them, and print as JSON: the tables of package neutronapi say
// which attributes there are.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
)

// Resource names a resource in bodies. Its path is the collection with '-' for '_'.
type Resource[E any] struct{ Member, Collection string }

// Client asks a server of this API.
type Client struct {
	HTTP *http.Client
	Base string // "http://kuryr", without a slash at its end
}

// List gives the objects that match all filters, however many pages they are. What the server refuses is an *Error.
func List[E any](ctx context.Context, c *Client, noun Resource[E], filters url.Values) ([]E, error) {
	all := []E{}
	err := c.pages(ctx, noun.Collection, filters, func(data json.RawMessage) (int, error) {
		var page []E
		err := unmarshal(data, &page)
		all = append(all, page...)
		return len(page), err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// pages calls add with the objects of each page of a list. add returns how many they are.
func (c *Client) pages(
	ctx context.Context, collection string, filters url.Values, add func(json.RawMessage) (int, error),
) error {
	for query := maps.Clone(filters); ; {
		path := pathOf(collection)
		if len(query) > 0 {
			path += "?" + query.Encode()
		}
		var body map[string]json.RawMessage
		if err := c.get(ctx, path, &body); err != nil {
			return err
		}
		var links []link
		n, err := add(body[collection])
		if err := errors.Join(err, unmarshal(body[collection+"_links"], &links)); err != nil {
			return fmt.Errorf("answer to GET %s: %w", path, err)
		}
		if query = following(links); query == nil || n == 0 {
			return nil
		}
	}
}

func pathOf(collection string) string {
	switch collection {
	case LoadBalancers.Collection, Listeners.Collection, Pools.Collection:
		return "/v2.0/lbaas/" + collection
	}
	return "/v2.0/" + strings.ReplaceAll(collection, "_", "-")
}

// unmarshal decodes what may be absent.
func unmarshal(data json.RawMessage, into any) error {
	if len(data) == 0 {
		return nil
	}
	return json.Unmarshal(data, into)
}

// following is the query of the next page, nil where there is none.
func following(links []link) url.Values {
	for _, l := range links {
		if next, err := url.Parse(l.Href); err == nil && l.Rel == "next" {
			return next.Query()
		}
	}
	return nil
}

// Get gives the object of this id. One that is absent is an *Error with status 404.
func Get[E any](ctx context.Context, c *Client, noun Resource[E], id string) (E, error) {
	var body map[string]E
	err := c.get(ctx, pathOf(noun.Collection)+"/"+url.PathEscape(id), &body)
	return body[noun.Member], err
}

// PortForwardings gives those of a floating IP.
func (c *Client) PortForwardings(ctx context.Context, floatingIP string) ([]PortForwarding, error) {
	var body struct {
		All []PortForwarding `json:"port_forwardings"`
	}
	err := c.get(ctx, "/v2.0/floatingips/"+url.PathEscape(floatingIP)+"/port_forwardings", &body)
	return body.All, err
}

// PoolMembers gives those of a pool.
func (c *Client) PoolMembers(ctx context.Context, pool string) ([]PoolMember, error) {
	var body struct {
		All []PoolMember `json:"members"`
	}
	err := c.get(ctx, pathOf(Pools.Collection)+"/"+url.PathEscape(pool)+"/members", &body)
	return body.All, err
}

// Create makes an object of what body tells, and reads it as the server made it.
func Create[E any](ctx context.Context, c *Client, noun Resource[E], body any) (E, error) {
	var made map[string]E
	err := c.send(ctx, http.MethodPost, pathOf(noun.Collection), map[string]any{noun.Member: body}, &made)
	return made[noun.Member], err
}

// Delete deletes the object of this id. One that is absent is an *Error with status 404.
func Delete[E any](ctx context.Context, c *Client, noun Resource[E], id string) error {
	return c.send(ctx, http.MethodDelete, pathOf(noun.Collection)+"/"+url.PathEscape(id), nil, nil)
}

// RouterInterface puts a subnet on a router, or takes it off.
func (c *Client) RouterInterface(ctx context.Context, router, subnet string, add bool) error {
	action := "/remove_router_interface"
	if add {
		action = "/add_router_interface"
	}
	path := pathOf(Routers.Collection) + "/" + url.PathEscape(router) + action
	return c.send(ctx, http.MethodPut, path, map[string]string{"subnet_id": subnet}, nil)
}

func (c *Client) get(ctx context.Context, path string, into any) error {
	return c.send(ctx, http.MethodGet, path, nil, into)
}

// send makes a request with a body, unless that is nil, and reads the answer into a
// value, unless that is nil.
func (c *Client) send(ctx context.Context, method, path string, body, into any) error {
	var text io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		text = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.Base+path, text)
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.HTTP.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return decodeError(response)
	}
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		return fmt.Errorf("answer to %s %s: %w", method, path, err)
	}
	return nil
}

// Error is an answer that is not a success.
type Error struct {
	Status  int    `json:"-"`
	Type    string `json:"type"` // of Neutron's; "" if the answer has none
	Message string `json:"message"`
}

func (e *Error) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("the API answers %d %s", e.Status, http.StatusText(e.Status))
	}
	return e.Message
}

// link leads to another page.
type link struct {
	Rel  string `json:"rel"`
	Href string `json:"href"`
}

// maxErrorBody is as much as is read of an answer that is no success.
const maxErrorBody = 64 << 10

func decodeError(response *http.Response) error {
	data, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
	var body struct{ NeutronError *Error }
	if json.Unmarshal(data, &body) == nil && body.NeutronError != nil {
		body.NeutronError.Status = response.StatusCode
		return body.NeutronError
	}
	var fault struct { // of Octavia's
		Text string `json:"faultstring"`
	}
	if json.Unmarshal(data, &fault) == nil && fault.Text != "" {
		return &Error{Status: response.StatusCode, Message: fault.Text}
	}
	return &Error{Status: response.StatusCode, Message: strings.TrimSpace(string(data))}
}
