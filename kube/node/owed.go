//go:build linux

package node

import (
	"context"
	"encoding/json"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
)

// owe writes down that an attachment is to be taken away.
func (s *Server) owe(a Attachment) error {
	config, err := json.Marshal(map[string]string{"name": a.Network, "type": cni.Type, "network": a.Want.Network})
	if err != nil {
		return err
	}
	c := cni.Call{Verb: cni.Del, Container: a.Container, Namespace: a.Namespace, Interface: a.Interface, Config: config}
	if err := s.owed.Put(cni.RecordName(a.Container, a.Interface), c); err != nil {
		return err
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// settle brings in order what an earlier daemon, and kuryr-cni without one, have left, and pays from then on what is owed, until ctx ends.
func (s *Server) settle(ctx context.Context) {
	recovered, swept := false, false
	wait := backoff.Backoff{Min: time.Second, Max: time.Minute} // an SDN does not report that it is back
	for {
		if !recovered {
			recovered = s.recover(ctx)
		}
		if recovered && !swept {
			swept = s.sweep(ctx)
		}
		if s.pay(ctx) && swept {
			wait.Reset()
			select {
			case <-s.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// pay takes away all that is owed, and tells whether nothing is left.
func (s *Server) pay(ctx context.Context) bool {
	all, err := jsonstore.Load[cni.Call](s.owed)
	if err != nil {
		s.log.ErrorContext(ctx, "a record of what is owed cannot be read", "error", err)
	}
	left := 0
	for name, c := range all {
		one, cancel := context.WithTimeout(ctx, requestLimit)
		unlock, err := s.lock(one, c.Container, c.Interface)
		if err == nil {
			err = s.payOne(one, name)
			unlock()
		}
		cancel()
		if err != nil && ctx.Err() == nil {
			left++
			s.log.WarnContext(ctx, "what is owed cannot be taken away yet", "container", c.Container, "interface", c.Interface, "error", err)
		}
	}
	return left == 0
}

// payOne takes away what is owed under this name, whose attachment's lock is held; nothing is no error.
func (s *Server) payOne(ctx context.Context, name string) error {
	c, there, err := jsonstore.Get[cni.Call](s.owed, name)
	if err != nil || !there {
		return err
	}
	conf, err := cni.ParseConfig(cni.Del, c.Config)
	if err != nil {
		return err
	}
	args, err := cni.ParseArgs(c.Args)
	if err != nil {
		args = cni.Args{}
	}
	a, err := attachment(c, conf, args)
	if err != nil {
		return err
	}
	if err := s.takeAway(ctx, a); err != nil {
		return err
	}
	return s.owed.Delete(name)
}

// recover has the Source bring itself in order.
func (s *Server) recover(ctx context.Context) bool {
	r, ok := s.source.(Recoverer)
	if !ok {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	if err := r.Recover(ctx); err != nil {
		s.log.WarnContext(ctx, "what an earlier run has left is not in order yet; it is tried again", "error", err)
		return false
	}
	return true
}

// sweep takes away the attachments without an interface: an ADD was killed before it plugged, or the machine has been started anew, and the containers have lost
// theirs with their namespaces. What the Source keeps for a container that is still to come stays. It tells whether all could be looked at.
func (s *Server) sweep(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	all, err := s.source.Attachments(ctx)
	for _, a := range all {
		if err != nil {
			break
		}
		err = s.sweepOne(ctx, a)
	}
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "what an earlier run has left is not known yet; it is tried again", "error", err)
	}
	return err == nil
}

func (s *Server) sweepOne(ctx context.Context, a Attachment) error {
	unlock, err := s.lock(ctx, a.Container, a.Interface)
	if err != nil {
		return err
	}
	defer unlock()
	if k, ok := s.source.(Keeper); ok && k.Keeps(a) {
		return nil
	}
	w, err := s.source.Find(ctx, a)
	if sdn.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	state, err := s.binder.State(ctx, w.Port)
	if err != nil || state != bind.Absent {
		return err
	}
	s.log.InfoContext(ctx, "a port without an interface is given back", "container", a.Container, "interface", a.Interface, "port", w.Port.ID)
	return s.release(ctx, a)
}
