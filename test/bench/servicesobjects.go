//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// Where Services and their endpoints are.
const (
	servicePort  = 80
	endpointPort = 8080
	// servicesNode is the node that all endpoints are on, and that each daemon takes itself for: so each has to do the same.
	servicesNode = "node"
)

var (
	// firstVIP is above the addresses that the API server gives by itself at first.
	firstVIP = netip.MustParseAddr("10.96.4.0")
	// localRange has all that is the cluster's own: the endpoints, and their clients.
	localRange  = netip.MustParsePrefix("10.240.0.0/12")
	targetRange = netip.MustParsePrefix("10.240.0.0/13") // the endpoints alone
	firstTarget = netip.MustParseAddr("10.240.1.0")
	firstSpare  = netip.MustParseAddr("10.244.1.0") // of endpoints that take others' places
)

// plus is the n-th address after one.
func plus(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(b[:])+uint32(n))))
}

func vip(i int) netip.Addr { return plus(firstVIP, i) }

func serviceName(i int) string { return fmt.Sprintf("s%d", i) }

// servicesAPI is the API server as the bench's own client has it.
type servicesAPI struct {
	cluster *kubelab.Cluster
	client  kubernetes.Interface
	store   *serviceStore
	have    int // Services that there are
	slices  int // EndpointSlices that there are
	spare   int // addresses that were used of the spare ones
}

// newServicesAPI speaks with the API server as quickly as that can be done: past the lab's door, and in its own encoding.
func newServicesAPI(c *kubelab.Cluster) (*servicesAPI, error) {
	config := rest.CopyConfig(c.Config)
	config.Host, config.ContentType, config.AcceptContentTypes = c.Endpoint(), runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		return c.Central.Dial(ctx, network, address)
	}
	client, err := kubernetes.NewForConfig(config)
	return &servicesAPI{cluster: c, client: client}, err
}

// grow makes Services of two endpoints until there are so many, the first by the API server and the others after its model. Some EndpointSlices more are there before the Services that are made
// one by one: kube-proxy would be at work on such a slice when its Service comes.
func (a *servicesAPI) grow(ctx context.Context, size int) error {
	if a.store == nil {
		if err := a.makeFirst(ctx); err != nil {
			return err
		}
	}
	if err := a.store.write(ctx, a.slices, size+serviceChanges, a.store.putSlice); err != nil {
		return err
	}
	a.slices = max(a.slices, size+serviceChanges)
	// Addresses are there some time before their Services, as the API server makes one for a Service that has none, but not long, as it takes away one that has no Service.
	const some = 500
	for a.have < size {
		next := min(a.have+some, size)
		if err := a.store.write(ctx, a.have, next, a.store.putAddress); err != nil {
			return err
		}
		if err := a.store.write(ctx, a.have, next, a.store.putService); err != nil {
			return err
		}
		a.have = next
	}
	return a.served(ctx)
}

func (a *servicesAPI) makeFirst(ctx context.Context) (err error) {
	if _, err := a.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Create(ctx, newSlice(0), metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := a.makeService(ctx, 0); err != nil {
		return err
	}
	a.have, a.slices = 1, 1
	a.store, err = newServiceStore(ctx, a.cluster, a, 0)
	return err
}

// served complains where the API server does not serve what is in etcd, from the cache that it tells who watches from. A list of no certain version may come from etcd itself, and is asked for nothing
// but etcd's version.
func (a *servicesAPI) served(ctx context.Context) error {
	latest, err := a.client.CoreV1().Services(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	cached := metav1.ListOptions{ResourceVersion: latest.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	services, err := a.client.CoreV1().Services(metav1.NamespaceDefault).List(ctx, cached)
	if err != nil {
		return err
	}
	endpoints, err := a.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, cached)
	if err != nil {
		return err
	}
	addresses, slices := map[string]string{}, map[string]bool{}
	for _, s := range services.Items {
		addresses[s.Name] = s.Spec.ClusterIP
	}
	for _, e := range endpoints.Items {
		slices[e.Name] = len(e.Endpoints) == 2
	}
	for i := range a.have {
		if name := serviceName(i); addresses[name] != vip(i).String() || !slices[name] {
			return fmt.Errorf("the Service %s is served with address %q and two endpoints: %t", name, addresses[name], slices[name])
		}
	}
	return nil
}

func (a *servicesAPI) makeService(ctx context.Context, i int) error {
	_, err := a.client.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(i)},
		Spec:       corev1.ServiceSpec{ClusterIP: vip(i).String(), Ports: []corev1.ServicePort{{Name: "tcp", Port: servicePort}}},
	}, metav1.CreateOptions{})
	return err
}

// newSlice is of a Service's own endpoints.
func newSlice(i int) *discoveryv1.EndpointSlice {
	return serviceSlice(i, plus(firstTarget, 2*i), plus(firstTarget, 2*i+1))
}

func serviceSlice(i int, endpoints ...netip.Addr) *discoveryv1.EndpointSlice {
	name, port, yes, tcp, node := "tcp", int32(endpointPort), true, corev1.ProtocolTCP, servicesNode
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: serviceName(i), Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(i)}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
	}
	for _, e := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{e.String()}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &yes}})
	}
	return slice
}

// moveEndpoint gives a Service another second endpoint, and returns what it is when the API server has it.
func (a *servicesAPI) moveEndpoint(ctx context.Context, i int, to netip.Addr) error {
	_, err := a.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Update(ctx, serviceSlice(i, plus(firstTarget, 2*i), to), metav1.UpdateOptions{})
	return err
}

func (a *servicesAPI) nextSpare() netip.Addr {
	a.spare++
	return plus(firstSpare, a.spare)
}

func (a *servicesAPI) remove(ctx context.Context, i int) error {
	return a.client.CoreV1().Services(metav1.NamespaceDefault).Delete(ctx, serviceName(i), metav1.DeleteOptions{})
}

// addNode makes the node that the daemons look for.
func (a *servicesAPI) addNode(ctx context.Context, address netip.Addr) error {
	node, err := a.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: servicesNode}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.String()}}
	_, err = a.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// sizes are the numbers of a list with commas.
type sizes []int

func (s *sizes) String() string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint([]int(*s)), "[]"), " ", ",")
}

func (s *sizes) Set(text string) error {
	*s = nil
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 100 || n > 50000 {
			return fmt.Errorf("%q: want numbers from 100 to 50000, with commas between", text)
		}
		*s = append(*s, n)
	}
	slices.Sort(*s)
	return nil
}
