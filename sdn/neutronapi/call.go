package neutronapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// call is a request under way, with who asks.
type call struct {
	*http.Request
	server *server
	caller Caller
	made   []string               // ids of what it made, for the audit log
	seen   map[sdn.ID]sdn.Network // networks that were looked at, see network
	found  map[sdn.ID]bool        // subnets that the caller sees, see knows

	granted map[sdn.Noun]map[sdn.ID]grant // what the caller's project was given access to, see grants
}

// ctx is the request's context.
func (c *call) ctx() context.Context { return c.Context() }

// reads tells whether the call asks for no change.
func (c *call) reads() bool { return c.Method == http.MethodGet || c.Method == http.MethodHead }

// admit finds who asks, and refuses whom nobody vouches for and a reader who would change something.
func (c *call) admit(w http.ResponseWriter) error {
	caller, ok := CallerOf(c.ctx())
	if !ok || !caller.valid() {
		return refuse(http.StatusUnauthorized, "HTTPUnauthorized", "The request you have made requires authentication.")
	}
	c.caller = caller
	c.Request = c.WithContext(sdn.WithClient(c.ctx(), sdn.Client{Admin: caller.admin()}))
	if c.Body != nil {
		c.Body = http.MaxBytesReader(w, c.Body, c.server.maxBody)
	}
	if caller.Role == Reader && !c.reads() {
		return c.denied("it changes something, and the caller's role is " + string(Reader))
	}
	return nil
}

// denied is the refusal of Neutron's policy.
func (c *call) denied(why string) error {
	return refuse(http.StatusForbidden, "PolicyNotAuthorized", "%s of %s is disallowed by policy: %s", c.Method, c.URL.Path, why)
}

// told is what the caller is told of an error. What is behind a trouble of the SDN's own may name files and other hosts: it is for administrators, and for the log.
func (c *call) told(err error) *Error {
	encode := EncodeError
	if c.server.faults {
		encode = encodeFault
	}
	refusal := encode(err)
	var e *sdn.Error
	if refusal.Status == http.StatusServiceUnavailable && !c.caller.admin() && errors.As(err, &e) && e.Err != nil {
		bare := *e
		bare.Err = nil
		refusal.Message = messageOf(&bare)
	}
	return refusal
}

// owns tells whether the caller may change an object.
func (c *call) owns(m sdn.Meta) bool { return c.caller.admin() || m.Project == c.caller.Project }

// badRequest is a refusal of what a request says.
func badRequest(message string) *Error {
	return &Error{Status: http.StatusBadRequest, Type: "HTTPBadRequest", Message: message}
}

// document reads the request's body, which must be one JSON object.
func (c *call) document() (map[string]any, error) {
	if kind := c.Header.Get("Content-Type"); kind != "" {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" {
			return nil, &Error{Status: http.StatusUnsupportedMediaType, Type: "HTTPUnsupportedMediaType", Message: "The body must be application/json, not " + strconv.Quote(kind) + "."}
		}
	}
	data, err := io.ReadAll(c.Body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &Error{Status: http.StatusRequestEntityTooLarge, Type: "HTTPRequestEntityTooLarge", Message: "The body is larger than " + strconv.FormatInt(large.Limit, 10) + " bytes."}
	case err != nil:
		return nil, badRequest("The body cannot be read.")
	case len(bytes.TrimSpace(data)) == 0:
		return nil, badRequest("Resource body required")
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var document map[string]any
	if err := decoder.Decode(&document); err != nil || document == nil {
		return nil, badRequest("Body contains invalid data")
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, badRequest("Body contains invalid data")
	}
	return document, nil
}

// hasBody tells whether anything comes with the request; of one that is sent in chunks no length tells it. It takes from the body.
func (c *call) hasBody() bool {
	if c.Body == nil || c.ContentLength >= 0 {
		return c.ContentLength > 0
	}
	_, err := io.ReadFull(c.Body, make([]byte, 1))
	return err != io.EOF // what cannot be read is something too
}

// revision reads If-Match: revision_number=N. It is nil where the request has none.
func (c *call) revision() (*int64, error) {
	var out *int64
	for _, tag := range strings.Split(strings.Join(c.Header.Values("If-Match"), ","), ",") {
		text, ok := strings.CutPrefix(strings.Trim(strings.TrimSpace(tag), `"`), "revision_number=")
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		switch {
		case err != nil:
			return nil, badOf("if-match", "Revision number etag must be in the format of revision_number=<int>")
		case out != nil:
			return nil, badOf("if-match", "Multiple revision_number etags are not supported.")
		}
		out = &n
	}
	return out, nil
}

// condition is the revision that a change is to be made at, 0 for any, as sdn.Patch has it. The object is at m now.
func (c *call) condition(title string, m sdn.Meta) (int64, error) {
	n, err := c.revision()
	if err != nil || n == nil {
		return 0, err
	}
	if *n != m.Revision {
		return 0, &sdn.Error{Kind: sdn.KindConflict, Reason: sdn.Stale, Noun: title, ID: string(m.ID),
			Detail: "constrained to " + strconv.FormatInt(*n, 10) + ", but current revision is " + strconv.FormatInt(m.Revision, 10)}
	}
	return *n, nil
}
