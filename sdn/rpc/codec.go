package rpc

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Version is the version of the protocol.
const Version = 1

// Path is where a server answers.
const Path = "/kuryr/rpc/"

// Bounds of a call.
const (
	maxRequest = 16 << 20 // bytes: 70,000 published ports
	maxLine    = 64 << 20 // bytes: the ports of the largest request
)

// The headers of requests and answers.
const (
	timeoutHeader  = "Kuryr-Timeout" // nanoseconds that the caller has left
	backgroundMark = "Kuryr-Unawaited"
	clientHeader   = "Kuryr-Client"   // the sdn.Client that the call is made for
	projectsHeader = "Kuryr-Projects" // those that the client has named, in JSON
	instanceHeader = "Kuryr-Instance" // names the process that answers
)

// The signs of the lines of an answer.
const (
	resultSign = '+'
	endSign    = '-'
)

// Peer is what a server says of itself.
type Peer struct {
	Versions     []int            `json:"versions"`
	Installation string           `json:"installation"`
	Capabilities sdn.Capabilities `json:"capabilities"`
}

// readAnswer passes the results of an answer on until result returns false. It returns the
// failure that the answer ends with, nil for none. The error says why there is no end.
func readAnswer(r io.Reader, result func([]byte) bool) (*failure, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	lines.Split(func(data []byte, _ bool) (int, []byte, error) {
		return bufio.ScanLines(data, false) // a line without its end is not whole
	})
	for lines.Scan() {
		line := lines.Bytes()
		switch {
		case len(line) == 0:
		case line[0] == resultSign:
			if !result(line[1:]) {
				return nil, nil
			}
		case line[0] == endSign:
			var f *failure
			if err := json.Unmarshal(line[1:], &f); err != nil {
				return nil, err
			}
			// The connection can be used again after the end of the body was read.
			if lines.Scan() {
				return nil, errors.New("data follows the end of the answer")
			}
			return f, nil
		default:
			return nil, fmt.Errorf("a line of the answer begins with %q", line[0])
		}
	}
	return nil, cmp.Or(lines.Err(), io.ErrUnexpectedEOF)
}

// each calls do with a struct, or with those of a list.
func each(v reflect.Value, do func(reflect.Value)) {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			each(v.Index(i), do)
		}
	case reflect.Struct:
		do(v)
	}
}

// field returns the value of a field of a struct, nil if it has no such field.
func field(v reflect.Value, name string) any {
	if f := v.FieldByName(name); f.IsValid() {
		return f.Interface()
	}
	return nil
}

// isRepeatable reports whether a call with these arguments can be repeated if its answer is
// lost. An object without a Key and an id would be made again. A change at a revision may
// itself have changed the revision.
func isRepeatable(args []any) bool {
	again := true
	for _, arg := range args {
		if revision, ok := arg.(int64); ok { // of DeletePort
			again = revision == 0
		}
		each(reflect.ValueOf(arg), func(v reflect.Value) {
			revision, _ := field(v, "IfRevision").(int64)
			id, _ := field(v, "ID").(sdn.ID)
			base, makes := field(v, "Base").(sdn.Base)
			again = again && revision == 0 && (!makes || id != "" || !base.Key.IsZero())
		})
	}
	return again
}

// encodeArgs returns arguments as the body of a request.
func encodeArgs(args []any) ([]byte, error) {
	sent := append([]any{}, args...)
	for i, arg := range args {
		if v := reflect.ValueOf(arg); v.Kind() == reflect.Struct {
			filled := reflect.New(v.Type()).Elem()
			filled.Set(v)
			fill(filled)
			sent[i] = filled.Interface()
		}
	}
	return json.Marshal(sent)
}

// fill makes the nil lists and maps that fields of a struct point to empty ones. In JSON a
// pointer to nil is nil, which in a patch means that the field stays.
func fill(v reflect.Value) {
	for i := range v.NumField() {
		f := v.Field(i)
		switch {
		case !f.CanSet():
		case f.Kind() == reflect.Struct:
			fill(f)
		case f.Kind() == reflect.Pointer && !f.IsNil():
			full := reflect.New(f.Type().Elem())
			switch to := f.Elem(); {
			case to.Kind() == reflect.Slice && to.IsNil():
				full.Elem().Set(reflect.MakeSlice(to.Type(), 0, 0))
				f.Set(full)
			case to.Kind() == reflect.Map && to.IsNil():
				full.Elem().Set(reflect.MakeMap(to.Type()))
				f.Set(full)
			}
		}
	}
}

// decodeArgs returns the arguments of a function after the first, from the body of a
// request. Its error is the answer: fields and arguments that it does not know are those of
// a later version.
func decodeArgs(body []byte, function reflect.Type) ([]reflect.Value, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, sdn.Invalid("request", "", "%v", err)
	}
	most := function.NumIn() - 1
	switch n := len(list); {
	case n < most:
		return nil, sdn.Invalid("request", "", "%d arguments instead of %d", n, most)
	case n > most:
		return nil, earlier("the request has %d arguments instead of %d", n, most)
	}
	var args []reflect.Value
	for i, text := range list {
		arg := reflect.New(function.In(i + 1))
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(arg.Interface()); err != nil {
			if json.Unmarshal(text, reflect.New(function.In(i+1)).Interface()) == nil {
				return nil, earlier("argument %d of the request: %v", i+1, err)
			}
			return nil, sdn.Invalid("request", "", "argument %d: %v", i+1, err)
		}
		args = append(args, arg.Elem())
	}
	return args, nil
}

// earlier returns the answer of a server to a client of a later version.
func earlier(detail string, args ...any) error {
	return sdn.Unavailable(unsent{ErrEarlier}, "the SDN", detail, args...)
}

// failure is an error in an answer. The text is the whole error's; the rest is what
// the predicates of sdn, errors.Is with a context's errors, and sdn.IsOfHost ask for.
type failure struct {
	Text       string        `json:"text"`
	Kind       sdn.Kind      `json:"kind,omitempty"`
	Reason     sdn.Reason    `json:"reason,omitempty"`
	Noun       string        `json:"noun,omitempty"`
	ID         string        `json:"id,omitempty"`
	Field      string        `json:"field,omitempty"`
	Detail     string        `json:"detail,omitempty"`
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	Cause      *failure      `json:"cause,omitempty"`
	Bulk       []*failure    `json:"bulk,omitempty"` // by position, of a BulkError
	OfHost     bool          `json:"of_host,omitempty"`
	Ended      string        `json:"ended,omitempty"` // why nothing was done: one of ends
}

// ends are the errors of contexts, and of a server that does not know what is asked.
var ends = map[string]error{
	"canceled": context.Canceled, "deadline": context.DeadlineExceeded, "earlier": unsent{ErrEarlier},
}

// failureOf returns the form in which an error is sent, nil for nil.
func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Text: err.Error()}
	var e *sdn.Error
	var bulk *sdn.BulkError
	switch {
	case errors.As(err, &bulk):
		for _, item := range bulk.Errs {
			f.Bulk = append(f.Bulk, failureOf(item))
		}
	case errors.As(err, &e):
		f.Kind, f.Reason, f.Noun, f.ID, f.Field = e.Kind, e.Reason, e.Noun, e.ID, e.Field
		f.Detail, f.RetryAfter, f.Cause = e.Detail, e.RetryAfter, failureOf(e.Err)
	default:
		f.OfHost = sdn.IsOfHost(err)
		for name, end := range ends {
			if errors.Is(err, end) {
				f.Ended = name
			}
		}
	}
	return f
}

// err returns the error that was sent.
func (f *failure) err() error {
	if f == nil {
		return nil
	}
	err := ends[f.Ended]
	switch {
	case len(f.Bulk) > 0:
		bulk := &sdn.BulkError{}
		for _, item := range f.Bulk {
			bulk.Errs = append(bulk.Errs, item.err())
		}
		err = bulk
		if !slices.ContainsFunc(bulk.Errs, func(e error) bool { return e != nil }) {
			err = nil
		}
	case f.Kind != "":
		err = &sdn.Error{
			Kind: f.Kind, Reason: f.Reason, Noun: f.Noun, ID: f.ID, Field: f.Field,
			Detail: f.Detail, RetryAfter: f.RetryAfter, Err: f.Cause.err(),
		}
	}
	if err == nil || err.Error() != f.Text {
		err = &remote{f.Text, err}
	}
	if f.OfHost {
		err = sdn.OfHost(err)
	}
	return err
}

// remote has the text of an error of the server, around what is known of it.
type remote struct {
	text  string
	known error // nil: only the text
}

// Error returns the text.
func (r *remote) Error() string { return r.text }

// Unwrap returns the known part.
func (r *remote) Unwrap() error { return r.known }
