//go:build linux

package static

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
)

// binder remembers in which network namespaces ports are plugged.
type binder struct {
	plugged map[sdn.ID]string
	refuse  error
}

func (b *binder) Plug(_ context.Context, i bind.Interface) (bind.Result, error) {
	if b.refuse == nil {
		b.plugged[i.Port.ID] = i.Namespace
	}
	return bind.Result{}, b.refuse
}
func (b *binder) Unplug(_ context.Context, p sdn.Port) error          { delete(b.plugged, p.ID); return nil }
func (b *binder) State(context.Context, sdn.Port) (bind.State, error) { return bind.Whole, nil }

func of(container string, port sdn.ID) Binding {
	return Binding{Container: container, Interface: "eth0", Namespace: "/run/netns/" + container, Network: "kuryr", Port: sdn.Port{Meta: sdn.Meta{ID: port}}}
}

// A pod's next sandbox may have its port before the DEL of the one that died, or of a pod that was deleted by force: that DEL takes nothing from it.
func TestLateDel(t *testing.T) {
	for name, next := range map[string]func(f *Bindings, b *binder) error{
		"bound again": func(f *Bindings, _ *binder) error {
			_, err := f.BindPort(t.Context(), of("new", "p"))
			return err
		},
		"by the daemon": func(f *Bindings, b *binder) error {
			b.plugged["p"] = "/run/netns/new"
			return f.Forget("p")
		},
	} {
		b := &binder{plugged: map[sdn.ID]string{}}
		f := In(t.TempDir(), b)
		for _, before := range []Binding{of("old", "p"), of("other", "q")} {
			if _, err := f.BindPort(t.Context(), before); err != nil {
				t.Fatal(err)
			}
		}
		if err := next(f, b); err != nil {
			t.Fatal(err)
		}
		if there, err := f.Unbind(t.Context(), "old", "eth0"); there || err != nil || b.plugged["p"] != "/run/netns/new" {
			t.Errorf("%s: a late DEL finds %v, %v; plugged %v", name, there, err, b.plugged)
		}
		if there, err := f.Unbind(t.Context(), "other", "eth0"); !there || err != nil || len(b.plugged) != 1 {
			t.Errorf("%s: another's DEL finds %v, %v; plugged %v", name, there, err, b.plugged)
		}
	}
}

// What fails leaves no record, an interface has one port, and a MAC that is chosen stays.
func TestBindPort(t *testing.T) {
	b := &binder{plugged: map[sdn.ID]string{}, refuse: errors.New("no such namespace")}
	f := In(t.TempDir(), b)
	if _, err := f.BindPort(t.Context(), of("a", "p")); !errors.Is(err, b.refuse) {
		t.Errorf("error %v", err)
	}
	if all, err := f.All(); err != nil || len(all) != 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
	b.refuse = nil
	first, err := f.BindPort(t.Context(), of("a", "p"))
	if err != nil || first.Port.MAC == nil {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := f.BindPort(t.Context(), of("a", "p")); err != nil || again.Port.MAC.String() != first.Port.MAC.String() {
		t.Errorf("the second time %+v, %v", again, err)
	}
	if _, err := f.BindPort(t.Context(), of("a", "q")); !sdn.IsConflict(err) || cni.AsError(err).Code != cni.Conflict.Code {
		t.Errorf("a second port: %v", err)
	}
}

// TestNetworkUnknown refuses a configuration with a network: only the SDN knows which ports
// are on it.
func TestNetworkUnknown(t *testing.T) {
	b := &binder{plugged: map[sdn.ID]string{}}
	args, err := cni.ParseArgs("PORT_UUID=a28c7404-7495-4557-b7fc-3e293508dbc6;" +
		"IPV4=10.0.0.15/16;PORT_TYPE=tap")
	if err != nil {
		t.Fatal(err)
	}
	call := cni.Call{Verb: cni.Add, Container: "a", Interface: "eth0", Namespace: "/run/netns/a"}
	f := In(t.TempDir(), b)
	_, err = f.Bind(t.Context(), call, cni.Config{Name: "kuryr", Network: "green"}, args)
	e := cni.AsError(err)
	if e == nil || e.Code != cni.UnsupportedField.Code || !strings.HasPrefix(e.Details, "network:") {
		t.Errorf("with a network: %v", err)
	}
	if len(b.plugged) != 0 {
		t.Errorf("plugged %v", b.plugged)
	}
	if _, err := f.Bind(t.Context(), call, cni.Config{Name: "kuryr"}, args); err != nil || len(b.plugged) != 1 {
		t.Errorf("without a network: %v, plugged %v", err, b.plugged)
	}
}
