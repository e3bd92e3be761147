//go:build linux

package netplugin

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/kuryr/kuryr/kurma/netplugin/call"
	"github.com/kuryr/kuryr/sdn"
)

// callLimit is less than the minute that Kurma gives a call, so that one which takes too long is taken back and says why.
const callLimit = 50 * time.Second

// mostCalls is how many calls are at work at once; others wait.
const mostCalls = 64

// Serve answers the calls that come to the listener until ctx ends, and those that have come by then.
func (p *Plugin) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	room := make(chan struct{}, mostCalls)
	var work sync.WaitGroup
	defer work.Wait()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		room <- struct{}{}
		work.Go(func() {
			defer func() { <-room }()
			p.answer(context.WithoutCancel(ctx), conn)
		})
	}
}

// answer does one call.
func (p *Plugin) answer(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline.Add(undoLimit)) // an error shows at the read
	request, err := call.Read(conn)
	var out call.Answer
	if err == nil {
		out.Output, err = p.do(ctx, request)
	}
	if err != nil {
		p.log.Error("a call failed", "verb", request.Verb, "pod", request.Pod, "interface", request.Interface, "error", err)
		out = call.Answer{Status: 1, Output: encodeError(err)}
	}
	if err := call.Write(conn, out); err != nil {
		p.log.Warn("a call was not waited for", "verb", request.Verb, "pod", request.Pod, "interface", request.Interface, "error", err)
	}
}

// do does a call; what it answers is for standard output.
func (p *Plugin) do(ctx context.Context, r call.Request) ([]byte, error) {
	a := Attachment{Namespace: r.Namespace, Pod: r.Pod, Interface: r.Interface}
	switch r.Verb {
	case "add":
		e, err := ParseEntry(r.Entry)
		if err != nil {
			return nil, err
		}
		result, err := p.Add(ctx, e, a)
		if err != nil {
			return nil, err
		}
		return json.Marshal(result)
	case "del":
		return nil, p.Del(ctx, a)
	}
	return nil, sdn.Invalid("call", "verb", "want add or del, not %q", r.Verb)
}

// encodeError is an error as CNI writes it, by the codes of its specification.
func encodeError(err error) []byte {
	code := types.ErrInternal
	switch {
	case sdn.IsInvalid(err), sdn.IsNotFound(err), sdn.IsUnsupported(err):
		code = types.ErrInvalidNetworkConfig
	case sdn.IsUnavailable(err), sdn.IsPending(err), errors.Is(err, context.DeadlineExceeded):
		code = types.ErrTryAgainLater
	}
	data, _ := json.Marshal(types.Error{Code: code, Msg: err.Error()}) // cannot fail: texts and a number
	return data
}
