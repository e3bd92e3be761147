package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// DefaultSocket is where Open vSwitch's packages put the database's socket.
const DefaultSocket = "/var/run/openvswitch/db.sock"

// Database is the database that configures Open vSwitch.
const Database = "Open_vSwitch"

// callTime bounds a call whose context has no earlier deadline: the database works in
// memory and answers in milliseconds.
const callTime = 10 * time.Second

// maxMessage is how many bytes one message of the database may have.
const maxMessage = 16 << 20

// Conn is a connection to a database. It is for one goroutine. Its errors are
// IsUnavailable where the database could not be reached, ended or did not answer in
// time: whether it did what was asked is then unknown.
type Conn struct {
	path    string
	conn    net.Conn
	in      *bounded
	read    *json.Decoder
	last    int  // number of the last request
	changed bool // an update came while an answer was waited for
}

// message is a request, an answer or a notification.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

// Dial connects to the database's Unix socket on path.
func Dial(ctx context.Context, path string) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, sdn.Unavailable(sdn.OfHost(err), "Open vSwitch", "its database cannot be reached on %s", path)
	}
	in := &bounded{from: c}
	return &Conn{path: path, conn: c, in: in, read: json.NewDecoder(in)}, nil
}

// Close ends the connection, and with it a watch.
func (c *Conn) Close() { _ = c.conn.Close() }

// bounded is a reader with an allowance.
type bounded struct {
	from io.Reader
	left int
}

var errTooLong = fmt.Errorf("a message of more than %d bytes", maxMessage)

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.from.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// call sends a request and returns the answer.
func (c *Conn) call(ctx context.Context, method string, params []any) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	defer c.until(ctx)()
	c.last++
	if err := c.send(map[string]any{"method": method, "params": params, "id": c.last}); err != nil {
		return nil, c.lost(ctx, method, err)
	}
	want := fmt.Sprint(c.last)
	for {
		m, err := c.receive()
		if err != nil {
			return nil, c.lost(ctx, method, err)
		}
		if m.Method != "" || string(m.ID) != want {
			continue
		}
		if len(m.Error) > 0 && string(m.Error) != "null" {
			return nil, fmt.Errorf("the database of Open vSwitch refuses %s: %s", method, m.Error)
		}
		return m.Result, nil
	}
}

// until makes what waits for the connection end with ctx, until the function it returns is called.
func (c *Conn) until(ctx context.Context) (stop func()) {
	off := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	return func() { off() }
}

// lost says that no answer came.
func (c *Conn) lost(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return sdn.Unavailable(sdn.OfHost(err), "Open vSwitch", "its database on %s did not answer %s", c.path, what)
}

func (c *Conn) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = c.conn.Write(b)
	return err
}

// receive reads a message. The database's own request, by which it sees whether a client
// lives, is answered here.
func (c *Conn) receive() (message, error) {
	c.in.left = maxMessage
	var m message
	if err := c.read.Decode(&m); err != nil {
		return message{}, err
	}
	switch m.Method {
	case "echo":
		return m, c.send(map[string]any{"id": m.ID, "result": m.Params, "error": nil})
	case "update", "update2":
		c.changed = true
	}
	return m, nil
}

// Watch asks to be told when columns of a table's rows that meet the conditions change:
// Changed then returns. (monitor_cond of ovsdb-server(7); RFC 7047's own "monitor" would
// send every row.)
func (c *Conn) Watch(ctx context.Context, table string, where []Condition, columns ...string) error {
	ask := map[string]any{table: []any{map[string]any{"columns": columns, "where": all(where)}}}
	_, err := c.call(ctx, "monitor_cond", []any{Database, "kuryr", ask})
	return err
}

// Changed waits until something watched has changed since the last Changed, or Watch, returned.
func (c *Conn) Changed(ctx context.Context) error {
	defer c.until(ctx)()
	for !c.changed {
		if _, err := c.receive(); err != nil {
			return c.lost(ctx, "a watch", err)
		}
	}
	c.changed = false
	return nil
}
