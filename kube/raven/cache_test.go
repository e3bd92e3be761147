package raven

import (
	"context"
	"reflect"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/kube/raven/core"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// caches are what Raven reads from, by kind: what its watches have told so far, found by its indexes and listed in no order.
type caches map[reflect.Type]toolscache.Indexer

// fill begins the caches of a new Raven with what is there.
func (c *cluster) fill() {
	c.t.Helper()
	c.caches = caches{}
	for _, r := range c.raven.registrations() {
		for _, w := range r.Watches {
			of := reflect.TypeOf(w.Of)
			if c.caches[of] != nil {
				continue
			}
			by := toolscache.Indexers{}
			these := indexes
			if c.cfg.Services { // as with AddIndexes
				these = slices.Concat(indexes, serviceIndexes)
			}
			for _, i := range these {
				if reflect.TypeOf(i.Of) == of {
					by[i.Name] = func(o any) ([]string, error) { return i.Values(o.(client.Object)), nil }
				}
			}
			c.caches[of] = toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, by)
			kind, err := c.api.GroupVersionKindFor(w.Of)
			c.must(err)
			kind.Kind += "List"
			all, err := c.api.Scheme().New(kind)
			c.must(err)
			c.list(all.(client.ObjectList))
			items, err := meta.ExtractList(all)
			c.must(err)
			for _, o := range items {
				c.must(c.caches[of].Add(c.stripped(o)))
			}
		}
	}
}

// take has the cache be what a change says.
func (c caches) take(t change) error {
	if t.new == nil {
		return c[t.kind()].Delete(t.old)
	}
	return c[t.kind()].Update(t.new)
}

// get reads an object.
func (c caches) get(ctx context.Context, w client.Client, key client.ObjectKey, into client.Object) error {
	of := c[reflect.TypeOf(into)]
	if of == nil {
		return w.Get(ctx, key, into)
	}
	found, ok, err := of.GetByKey(strings.TrimPrefix(key.String(), "/"))
	if err != nil {
		return err
	}
	if !ok {
		return apierrors.NewNotFound(corev1.Resource("tests"), key.String())
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(found.(client.Object).DeepCopyObject()).Elem())
	return nil
}

// readList reads a list.
func (c *cluster) readList(ctx context.Context, w client.Client, into client.ObjectList, opts ...client.ListOption) error {
	items, err := meta.GetItemsPtr(into)
	if err != nil {
		return err
	}
	of := c.caches[reflect.PointerTo(reflect.TypeOf(items).Elem().Elem())]
	if of == nil {
		return w.List(ctx, into, opts...)
	}
	var options client.ListOptions
	options.ApplyOptions(opts)
	found := of.List()
	if options.FieldSelector != nil {
		wanted := options.FieldSelector.Requirements()[0]
		if found, err = of.ByIndex(wanted.Field, wanted.Value); err != nil {
			return err
		}
	}
	var all []runtime.Object
	for _, f := range found {
		o := f.(client.Object)
		if (options.Namespace == "" || options.Namespace == o.GetNamespace()) && (options.LabelSelector == nil || options.LabelSelector.Matches(labels.Set(o.GetLabels()))) {
			all = append(all, o.DeepCopyObject())
		}
	}
	slices.SortFunc(all, func(a, b runtime.Object) int {
		return strings.Compare(client.ObjectKeyFromObject(a.(client.Object)).String(), client.ObjectKeyFromObject(b.(client.Object)).String())
	})
	c.turns.mu.Lock()
	c.rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	c.turns.mu.Unlock()
	if options.Limit > 0 {
		all = all[:min(len(all), int(options.Limit))]
	}
	return meta.SetList(into, all)
}

// stripped is an object as the cache keeps it.
func (c *cluster) stripped(o runtime.Object) client.Object {
	o = o.DeepCopyObject()
	_, err := core.StripPod(o)
	c.must(err)
	_, err = StripSlice(o)
	c.must(err)
	return o.(client.Object)
}
