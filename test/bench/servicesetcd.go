//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// serviceWriters are how many objects are written at once.
const serviceWriters = 16

// serviceStore is the API server's etcd, which the bench writes Services to past the API server: that makes some fifty a second, as the client by which it makes their IPAddresses is held back, and thirty thousand
// would take it a quarter of an hour. All that is written is a copy of what the API server itself has made, in its encoding, so that who watches is told the same.
type serviceStore struct {
	client  *http.Client
	service *corev1.Service
	address *networkingv1.IPAddress
	slice   *discoveryv1.EndpointSlice
}

// newServiceStore takes what the API server has made of one Service for the model of all.
func newServiceStore(ctx context.Context, c *kubelab.Cluster, a *servicesAPI, model int) (_ *serviceStore, err error) {
	s := &serviceStore{client: &http.Client{Transport: &http.Transport{DialContext: c.Central.Dial, MaxIdleConnsPerHost: serviceWriters}}}
	if s.service, err = a.client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, serviceName(model), metav1.GetOptions{}); err != nil {
		return nil, err
	}
	if s.slice, err = a.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, serviceName(model), metav1.GetOptions{}); err != nil {
		return nil, err
	}
	s.address, err = a.client.NetworkingV1().IPAddresses().Get(ctx, vip(model).String(), metav1.GetOptions{})
	return s, err
}

// renew makes a copy of an object's metadata that of another object, which is young: the API server takes away IPAddresses that have had no Service for a minute.
func renew(m *metav1.ObjectMeta, name string) {
	m.Name, m.UID, m.ResourceVersion, m.CreationTimestamp = name, types.UID(uuid.NewString()), "", metav1.Now()
}

func (s *serviceStore) putAddress(i int) (etcdPut, error) {
	address := s.address.DeepCopy()
	renew(&address.ObjectMeta, vip(i).String())
	address.Spec.ParentRef.Name = serviceName(i)
	return put("/registry/ipaddresses/"+address.Name, networkingv1.SchemeGroupVersion, address)
}

func (s *serviceStore) putService(i int) (etcdPut, error) {
	service := s.service.DeepCopy()
	renew(&service.ObjectMeta, serviceName(i))
	service.Spec.ClusterIP = vip(i).String()
	service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
	return put("/registry/services/specs/"+service.Namespace+"/"+service.Name, corev1.SchemeGroupVersion, service)
}

func (s *serviceStore) putSlice(i int) (etcdPut, error) {
	slice, own := s.slice.DeepCopy(), newSlice(i)
	renew(&slice.ObjectMeta, own.Name)
	slice.Labels, slice.Endpoints = own.Labels, own.Endpoints
	return put("/registry/endpointslices/"+slice.Namespace+"/"+slice.Name, discoveryv1.SchemeGroupVersion, slice)
}

// etcdPut is a key, which is not there yet, and its value.
type etcdPut struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

// put encodes an object as the API server does.
func put(key string, version schema.GroupVersion, object runtime.Object) (etcdPut, error) {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	value, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, version), object)
	return etcdPut{[]byte(key), value}, err
}

// write puts objects from one number up to another. Each is in a transaction of its own: those of one transaction would have one resource version, and who takes up a watch after the first of them is
// never told of the others.
func (s *serviceStore) write(ctx context.Context, from, to int, of func(int) (etcdPut, error)) error {
	group, inside := errgroup.WithContext(ctx)
	group.SetLimit(serviceWriters)
	for i := from; i < to && inside.Err() == nil; i++ {
		group.Go(func() error {
			p, err := of(i)
			if err != nil {
				return err
			}
			if err := s.create(inside, p); err != nil {
				return fmt.Errorf("etcd: %s: %w", p.Key, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// create puts what is not there, by etcd's own gateway from JSON.
func (s *serviceStore) create(ctx context.Context, p etcdPut) error {
	type absent struct {
		Key     []byte `json:"key"`
		Target  string `json:"target"`
		Version int    `json:"version"`
	}
	type operation struct {
		Put etcdPut `json:"requestPut"`
	}
	text, err := json.Marshal(struct {
		Compare []absent    `json:"compare"`
		Success []operation `json:"success"`
	}{[]absent{{p.Key, "VERSION", 0}}, []operation{{p}}})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, kubelab.EtcdEndpoint+"/v3/kv/txn", bytes.NewReader(text))
	if err != nil {
		return err
	}
	answer, err := s.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if text, err = io.ReadAll(answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", answer.Status, text)
	}
	var done struct {
		Succeeded bool `json:"succeeded"`
	}
	if err := json.Unmarshal(text, &done); err != nil {
		return err
	}
	if !done.Succeeded {
		return errors.New("it is there already")
	}
	return nil
}
