package cni

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/kuryr/kuryr/kube/cni/ferry"
)

// DefaultSocket is where the daemon answers.
const DefaultSocket = ferry.DefaultSocket

// The protocol of the daemon's socket. One connection carries one request and its reply, each a frame: its length in bytes, of 32 bits in network order,
// then JSON, or in the plain form of package ferry. Who upgrades one side first is served: a message says which protocol it is of, and the least that its reader must know to understand it.
// Fields are only added, so that least stays behind by one step at a time.
const (
	Protocol      = 1
	leastProtocol = 1
)

// MaxFrame is the longest frame in bytes: a call's input and its environment, in JSON.
const MaxFrame = MaxInput + MaxInput/2

// Request is a Call on the wire.
type Request struct {
	Protocol  int    `json:"protocol"`
	Least     int    `json:"least"`
	Verb      string `json:"verb"`
	Container string `json:"container,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Interface string `json:"interface,omitempty"`
	Args      string `json:"args,omitempty"`
	Config    []byte `json:"config,omitempty"`
}

// Reply is what comes of it: what is written to standard output, or an error.
type Reply struct {
	Protocol int          `json:"protocol"`
	Least    int          `json:"least"`
	Output   []byte       `json:"output,omitempty"`
	Error    *types.Error `json:"error,omitempty"`
}

// NewRequest puts a call on the wire.
func NewRequest(c Call) Request {
	return Request{Protocol, leastProtocol, c.Verb, c.Container, c.Namespace, c.Interface, c.Args, c.Config}
}

// Call is the call that the request carries, checked. The error is IncompatibleVersion for a request that this side is too old for.
func (r Request) Call() (Call, error) {
	c := Call{r.Verb, r.Container, r.Namespace, r.Interface, r.Args, r.Config}
	if r.Least > Protocol {
		return c, IncompatibleVersion.Errorf("kuryr-cni speaks protocol %d, and the daemon only %d: upgrade the daemon (kuryr node)", r.Protocol, Protocol)
	}
	return c, c.Validate()
}

// NewReply is the answer with this output, or with this error.
func NewReply(output []byte, err error) Reply {
	return Reply{Protocol, leastProtocol, output, AsError(err)}
}

// ReadRequest reads one, in JSON or in the plain form, and gives what writes its reply in the same form.
func ReadRequest(r io.Reader) (q Request, reply func(w io.Writer, output []byte, err error) error, err error) {
	body, err := readBody(r)
	if err != nil {
		return q, writeReply, err
	}
	if !ferry.Plain(body) {
		return q, writeReply, json.Unmarshal(body, &q)
	}
	c, ok := ferry.ParseCall(body)
	if !ok {
		return q, writeReply, io.ErrUnexpectedEOF
	}
	q = NewRequest(Call{Verb: c.Verb, Container: c.Container, Namespace: c.Namespace, Interface: c.Interface, Args: c.Args, Config: c.Input})
	return q, q.writePlain, nil
}

func writeReply(w io.Writer, output []byte, err error) error {
	return WriteFrame(w, NewReply(output, err))
}

// writePlain says how kuryr-cni is to end. What takes more than that it is told in JSON, which has it done by the other program: a DEL that the daemon cannot do now is written down.
func (r Request) writePlain(w io.Writer, output []byte, err error) error {
	e := AsError(err)
	switch {
	case e == nil:
		return writeBody(w, ferry.Answer(0, output))
	case r.Verb == Del && (e.Code == TryAgain.Code || e.Code == TimedOut.Code):
		return writeReply(w, nil, e)
	}
	conf, _ := ParseConfig(r.Verb, r.Config) // its error is what is told
	return writeBody(w, ferry.Answer(KindOf(e.Code).Exit, EncodeError(e, cmp.Or(conf.CNIVersion, DefaultVersion))))
}

// WriteFrame writes v as one frame.
func WriteFrame(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeBody(w, data)
}

func writeBody(w io.Writer, data []byte) error {
	if len(data) > MaxFrame {
		return fmt.Errorf("the message has %d bytes; at most %d are sent", len(data), MaxFrame)
	}
	_, err := w.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(data)), uint32(len(data))), data...))
	return err
}

// ReadFrame reads one frame into v.
func ReadFrame(r io.Reader, v any) error {
	data, err := readBody(r)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

func readBody(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > MaxFrame {
		return nil, fmt.Errorf("the message has %d bytes; at most %d are read", size, MaxFrame)
	}
	// Not made at once: who says much and sends little costs little.
	data, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil {
		return nil, err
	}
	if len(data) < int(size) {
		return nil, io.ErrUnexpectedEOF
	}
	return data, nil
}
