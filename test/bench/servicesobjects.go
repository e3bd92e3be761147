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

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// Where Services and their endpoints are, and how many clients make them at once.
const (
	servicePort    = 80
	endpointPort   = 8080
	serviceWriters = 32
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
	client kubernetes.Interface
	have   int // Services that there are
	spare  int // addresses that were used of the spare ones
}

// newServicesAPI speaks with the API server as quickly as that can be done: past the lab's door, and in its own encoding.
func newServicesAPI(c *kubelab.Cluster) (*servicesAPI, error) {
	config := rest.CopyConfig(c.Config)
	config.Host, config.ContentType, config.AcceptContentTypes = c.Endpoint(), runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		return c.Central.Dial(ctx, network, address)
	}
	client, err := kubernetes.NewForConfig(config)
	return &servicesAPI{client: client}, err
}

// grow makes Services of two endpoints until there are so many.
func (a *servicesAPI) grow(ctx context.Context, size int) error {
	group, inside := errgroup.WithContext(ctx)
	group.SetLimit(serviceWriters)
	for i := a.have; i < size && inside.Err() == nil; i++ {
		group.Go(func() error {
			if err := a.makeSlice(inside, i); err != nil {
				return err
			}
			return a.makeService(inside, i)
		})
	}
	err := group.Wait()
	if err == nil {
		a.have = max(a.have, size)
	}
	return err
}

func (a *servicesAPI) makeService(ctx context.Context, i int) error {
	_, err := a.client.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(i)},
		Spec:       corev1.ServiceSpec{ClusterIP: vip(i).String(), Ports: []corev1.ServicePort{{Name: "tcp", Port: servicePort}}},
	}, metav1.CreateOptions{})
	return err
}

func (a *servicesAPI) makeSlice(ctx context.Context, i int) error {
	slice := serviceSlice(i, plus(firstTarget, 2*i), plus(firstTarget, 2*i+1))
	_, err := a.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Create(ctx, slice, metav1.CreateOptions{})
	return err
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

func (a *servicesAPI) removeSlice(ctx context.Context, i int) error {
	return a.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Delete(ctx, serviceName(i), metav1.DeleteOptions{})
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
