package uninstall

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// resources are Kuryr's, in the order in which they go: a network's end takes its pools away, and those their ports.
var resources = []struct {
	crd  string
	list func() client.ObjectList
}{
	{"kuryrnetworks.openstack.org", func() client.ObjectList { return &v1.KuryrNetworkList{} }},
	{"kuryrportpools.openstack.org", func() client.ObjectList { return &v1.KuryrPortPoolList{} }},
	{"kuryrports.openstack.org", func() client.ObjectList { return &v1.KuryrPortList{} }},
}

// removeDefinition deletes a CRD and waits until it has gone. From then on the API server refuses new objects of it and deletes those that are there, so that Raven, which still runs,
// can take them from the SDN and make none anew.
func (r Remover) removeDefinition(ctx context.Context, name string, list func() client.ObjectList) error {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = name
	if err := r.API.Delete(ctx, crd); absent(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("CustomResourceDefinition %s: %w", name, err)
	}
	left, err := r.left(ctx, list())
	if err != nil {
		return err
	}
	r.Said("%s: %d objects are to go", name, len(left))
	patience, cancel := r.patience(ctx)
	defer cancel()
	err = r.gone(patience, crd, &apiextensionsv1.CustomResourceDefinitionList{}, client.MatchingFields{"metadata.name": name})
	switch {
	case err == nil:
		r.Said("%s: gone", name)
		return nil
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded): // forced
		return nil
	case ctx.Err() == nil:
		return err
	}
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer stop()
	left, _ = r.left(last, list())
	return fmt.Errorf("%s: %d objects are still there: %s; Raven's log and their conditions tell why. Do it again to go on, or --force: %w", name, len(left), some(left), err)
}

// patience is ctx, which ends sooner where what does not go is left.
func (r Remover) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.Force {
		return context.WithTimeout(ctx, r.Patience)
	}
	return context.WithCancel(ctx)
}

// left are the names of the objects of a list.
func (r Remover) left(ctx context.Context, list client.ObjectList) (names []string, err error) {
	if err := r.API.List(ctx, list); absent(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		names = append(names, o.(client.Object).GetName())
		return nil
	})
	return names, err
}

// abandon takes the finalizers away of what is left when nobody works at it any more, and tells what that leaves in the SDN.
func (r Remover) abandon(ctx context.Context) error {
	for _, of := range resources {
		list := of.list()
		if err := r.API.List(ctx, list); absent(err) {
			continue
		} else if err != nil {
			return err
		}
		var left []string
		err := meta.EachListItem(list, func(item runtime.Object) error {
			o := item.(client.Object)
			left = append(left, o.GetName())
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
			return client.IgnoreNotFound(r.API.Patch(ctx, o, patch, client.FieldOwner(install.Owner)))
		})
		if err != nil {
			return fmt.Errorf("%s: %w", of.crd, err)
		}
		if len(left) > 0 {
			r.Said("%s: what these stand for stays in the SDN: %s", of.crd, strings.Join(left, " "))
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		crd.Name = of.crd
		if err := r.gone(ctx, crd, &apiextensionsv1.CustomResourceDefinitionList{}, client.MatchingFields{"metadata.name": of.crd}); err != nil {
			return fmt.Errorf("%s: %w", of.crd, err)
		}
	}
	return nil
}
