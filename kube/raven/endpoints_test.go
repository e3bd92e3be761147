package raven

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sliceOf makes a slice of words: "http:8080" and "dns:53/UDP" are ports, all else are endpoints, with "-" not ready, with "~" terminating and serving, with "!" terminating and not.
func sliceOf(words string) (s discoveryv1.EndpointSlice) {
	s.AddressType = discoveryv1.AddressTypeIPv4
	for _, w := range strings.Fields(words) {
		if name, number, ok := strings.Cut(w, ":"); ok && !strings.Contains(number, ":") {
			number, protocol, _ := strings.Cut(number, "/")
			p := discoveryv1.EndpointPort{Name: &name}
			if protocol != "" {
				p.Protocol = (*corev1.Protocol)(&protocol)
			}
			if number != "" {
				var n int32
				_, _ = fmt.Sscan(number, &n)
				p.Port = &n
			}
			s.Ports = append(s.Ports, p)
			continue
		}
		if strings.Contains(w, "::") {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		yes, no := true, false
		e := discoveryv1.Endpoint{}
		switch {
		case strings.HasPrefix(w, "-"):
			e.Conditions.Ready = &no
		case strings.HasPrefix(w, "~"):
			e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
		case strings.HasPrefix(w, "!"):
			e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &yes}
		}
		e.Addresses = []string{strings.TrimLeft(w, "-~!")}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	ports := []v1.LoadBalancerPort{{Name: "http", Protocol: "TCP", Port: 80}, {Name: "dns", Protocol: "UDP", Port: 53}}
	for name, of := range map[string]struct {
		slices []string
		six    bool
		http   string // who answers
		dns    string
	}{
		"none":                             {},
		"a target port of its own by pod":  {slices: []string{"http:8080 10.0.0.1", "http:9090 10.0.0.2"}, http: "10.0.0.1:8080 10.0.0.2:9090"},
		"a name that some pods lack":       {slices: []string{"http:8080 dns:5353/UDP 10.0.0.1", "http:8080 10.0.0.2"}, http: "10.0.0.1:8080 10.0.0.2:8080", dns: "10.0.0.1:5353"},
		"another protocol of the name":     {slices: []string{"dns:53/TCP 10.0.0.1"}},
		"a port without a number":          {slices: []string{"http: 10.0.0.1"}},
		"not ready":                        {slices: []string{"http:80 -10.0.0.1 10.0.0.2"}, http: "10.0.0.2:80"},
		"being ended beside a ready one":   {slices: []string{"http:80 ~10.0.0.1 !10.0.0.3 10.0.0.2"}, http: "10.0.0.2:80 ~10.0.0.1:80"},
		"being ended, and ready elsewhere": {slices: []string{"http:80 ~10.0.0.1 ~10.0.0.3", "http:80 10.0.0.1"}, http: "10.0.0.1:80 ~10.0.0.3:80"},
		"being ended, and no other":        {slices: []string{"http:80 ~10.0.0.1 !10.0.0.2 -10.0.0.3"}, http: "10.0.0.1:80"},
		"for one port none is ready":       {slices: []string{"http:80 10.0.0.1", "dns:53/UDP ~10.0.0.2"}, http: "10.0.0.1:80", dns: "10.0.0.2:53"},
		"one in two slices":                {slices: []string{"http:80 10.0.0.1", "http:80 10.0.0.1 10.0.0.2"}, http: "10.0.0.1:80 10.0.0.2:80"},
		"one in two slices, ready in one":  {slices: []string{"http:80 10.0.0.1", "http:80 -10.0.0.1"}, http: "10.0.0.1:80"},
		"the other family":                 {slices: []string{"http:80 fd00::1", "http:80 10.0.0.1"}, six: true, http: "[fd00::1]:80"},
		"addresses that are nobody's":      {slices: []string{"http:80 127.0.0.1 169.254.1.1 0.0.0.0 224.0.0.1 x 10.0.0.1"}, http: "10.0.0.1:80"},
		"an address of the other family":   {slices: []string{"http:80 10.0.0.1"}, six: true},
		"the host's network, hand-made":    {slices: []string{"http:6443 192.0.2.1"}, http: "192.0.2.1:6443"},
		"a slice of somebody else's proxy": {slices: []string{"http:80 10.0.0.9 other"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all []discoveryv1.EndpointSlice
			for _, words := range of.slices {
				words, other := strings.CutSuffix(words, " other")
				s := sliceOf(words)
				if other {
					s.Labels = map[string]string{labelProxyName: "x"}
				}
				all = append(all, s)
			}
			got := endpointsOf(ports, all, of.six)
			for port, want := range map[portName]string{{"http", "TCP"}: of.http, {"dns", "UDP"}: of.dns} {
				if shown := shownEndpoints(got[port]); shown != want {
					t.Errorf("%v: %q, want %q", port, shown, want)
				}
			}
		})
	}
}

func shownEndpoints(all []endpoint) string {
	var shown []string
	for _, e := range all {
		shown = append(shown, map[bool]string{true: "~"}[e.drains]+e.addr.String())
	}
	return strings.Join(shown, " ")
}

// A thousand endpoints in ten slices, in any order and each slice twice, are the same thousand.
func TestEndpointsInAnyOrder(t *testing.T) {
	t.Parallel()
	ports := []v1.LoadBalancerPort{{Name: "http", Protocol: "TCP", Port: 80}}
	var all []discoveryv1.EndpointSlice
	for i := range 10 {
		words := "http:80"
		for j := range 100 {
			words += fmt.Sprintf(" 10.0.%d.%d", i, j+1)
		}
		all = append(all, sliceOf(words))
	}
	want := endpointsOf(ports, all, false)[portName{"http", "TCP"}]
	if len(want) != 1000 {
		t.Fatalf("%d endpoints", len(want))
	}
	all = append(all, all...)
	for range 5 {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if got := endpointsOf(ports, all, false)[portName{"http", "TCP"}]; !slices.Equal(got, want) {
			t.Fatal("another order gives others")
		}
	}
}

// Of a slice the cache keeps what counts.
func TestStrippedSliceIsAsGood(t *testing.T) {
	t.Parallel()
	s := sliceOf("http:80 10.0.0.1 ~10.0.0.2 -10.0.0.3")
	s.Labels, s.ObjectMeta.ManagedFields = map[string]string{discoveryv1.LabelServiceName: "web"}, []metav1.ManagedFieldsEntry{{}}
	s.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "a", UID: "u"}
	zone := "z"
	s.Endpoints[0].Zone = &zone
	ports := []v1.LoadBalancerPort{{Name: "http", Protocol: "TCP", Port: 80}}
	want := endpointsOf(ports, []discoveryv1.EndpointSlice{*s.DeepCopy()}, false)
	if _, err := StripSlice(&s); err != nil {
		t.Fatal(err)
	}
	got := endpointsOf(ports, []discoveryv1.EndpointSlice{s}, false)
	if p := (portName{"http", "TCP"}); !slices.Equal(got[p], want[p]) || got[p][0].pod != "a" || s.Endpoints[0].Zone != nil || s.ManagedFields != nil {
		t.Errorf("%+v, want %+v", got, want)
	}
}
