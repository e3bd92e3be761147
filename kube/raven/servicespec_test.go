package raven

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	canAll = sdn.Capabilities{FloatingIPs: true, LoadBalancer: sdn.LoadBalancerCapabilities{
		Protocols: []sdn.Protocol{sdn.TCP, sdn.UDP, sdn.SCTP}, Algorithms: []sdn.Algorithm{sdn.RoundRobin, sdn.SourceIPPort}, Affinity: true, AffinityTCP: true, SourceRanges: true, HealthMonitors: true,
		MixedProtocols: true, Limits: true, Timeouts: true, ProxyProtocol: true, HTTP: true, Zones: true, AnyMember: true,
	}}
	canLittle = sdn.Capabilities{LoadBalancer: sdn.LoadBalancerCapabilities{Protocols: []sdn.Protocol{sdn.TCP, sdn.UDP}}}
)

func aService(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.5", ClusterIPs: []string{"10.96.0.5"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "quic", Port: 80, Protocol: corev1.ProtocolUDP}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

// A Service that chooses one of the SDN's providers is judged by what that one can do.
func TestServicesAreJudgedByTheirClass(t *testing.T) {
	t.Parallel()
	can := canAll
	can.Backends = map[string]sdn.LoadBalancerCapabilities{"plain": canLittle.LoadBalancer}
	for class, able := range map[string]bool{"": true, "unheard-of": true, " plain ": false} {
		spec, notes := loadBalancerSpec(aService(func(s *corev1.Service) {
			exposedService(s)
			s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
			s.Annotations = map[string]string{annotationClass: class, balancerPrefix + "proxy-protocol": "true"}
		}), can)
		if (spec.Options.ProxyProtocol > 0) != able || (spec.FloatingIP != nil) != able || (len(notes) == 0) != able || spec.Options.Provider != strings.TrimSpace(class) {
			t.Errorf("class %q: %+v, told %q", class, spec, notes)
		}
	}
}

// What a Service says, and what of it an SDN that can little is told not to be able to.
func TestServiceSpecs(t *testing.T) {
	t.Parallel()
	seconds := int32(600)
	local, anywhere, near := corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceTrafficDistributionPreferClose
	oneMachine := canAll
	oneMachine.HostReached = true
	sources := func(ranges ...string) func(*corev1.Service) {
		return func(s *corev1.Service) { exposedService(s); s.Spec.LoadBalancerSourceRanges = ranges }
	}
	noted := func(annotation, value string) func(*corev1.Service) {
		return func(s *corev1.Service) { exposedService(s); s.Annotations = map[string]string{annotation: value} }
	}
	for name, of := range map[string]struct {
		change func(*corev1.Service)
		can    sdn.Capabilities
		want   func(*v1.KuryrLoadBalancerSpec) bool
		notes  string // words that the notes have, or "" for none
	}{
		"plain": {nil, canAll, func(s *v1.KuryrLoadBalancerSpec) bool {
			return s.ServiceUID == "u" && slices.Equal(s.VIPs, []string{"10.96.0.5"}) && len(s.Ports) == 2 && s.AffinitySeconds == nil && s.FloatingIP == nil && s.Options == v1.LoadBalancerOptions{}
		}, ""},
		"affinity": {func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }, canAll, func(s *v1.KuryrLoadBalancerSpec) bool { return *s.AffinitySeconds == 10800 }, ""},
		"affinity for so long": {func(s *corev1.Service) {
			s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityClientIP, &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
		}, canAll, func(s *v1.KuryrLoadBalancerSpec) bool { return *s.AffinitySeconds == 600 }, ""},
		"affinity, and none to be had": {func(s *corev1.Service) {
			s.Spec.SessionAffinity, s.Spec.Ports = corev1.ServiceAffinityClientIP, s.Spec.Ports[:1]
		}, canLittle, nil, "spec.sessionAffinity"},
		"a number for two protocols": {nil, canLittle, func(s *v1.KuryrLoadBalancerSpec) bool { return len(s.Ports) == 1 && s.Ports[0].Protocol == "TCP" }, "one protocol, so UDP is not served"},
		"a protocol that there is not": {func(s *corev1.Service) { s.Spec.Ports[1] = corev1.ServicePort{Port: 9, Protocol: corev1.ProtocolSCTP} }, canLittle,
			func(s *v1.KuryrLoadBalancerSpec) bool { return len(s.Ports) == 1 }, "port 9 is of SCTP"},
		"no load balancers at all": {nil, sdn.Capabilities{}, func(s *v1.KuryrLoadBalancerSpec) bool { return len(s.Ports) == 2 }, ""},
		"of its node alone":        {func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }, canAll, nil, "spec.internalTrafficPolicy: Local: the SDN's load balancers send to all endpoints"},
		"of any node":              {func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &anywhere }, canAll, nil, ""},
		"of its zone":              {func(s *corev1.Service) { s.Spec.TrafficDistribution = &near }, canAll, nil, "spec.trafficDistribution: PreferClose: the SDN's"},
		"hinted":                   {func(s *corev1.Service) { s.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"} }, canAll, nil, "annotation service.kubernetes.io/topology-mode: Auto"},
		"not hinted": {func(s *corev1.Service) {
			s.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Disabled"}
		}, canAll, nil, ""},
		"of its node, on one machine":    {func(s *corev1.Service) { s.Spec.InternalTrafficPolicy, s.Spec.TrafficDistribution = &local, &near }, oneMachine, nil, ""},
		"of its node, and nobody serves": {func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }, sdn.Capabilities{}, nil, ""},
		"exposed":                        {exposedService, canAll, func(s *v1.KuryrLoadBalancerSpec) bool { return s.FloatingIP != nil && s.FloatingIP.Address == "" }, ""},
		"exposed at an address":          {func(s *corev1.Service) { exposedService(s); s.Spec.LoadBalancerIP = "FD00::7" }, canAll, func(s *v1.KuryrLoadBalancerSpec) bool { return s.FloatingIP.Address == "fd00::7" }, ""},
		"exposed at a word":              {func(s *corev1.Service) { exposedService(s); s.Spec.LoadBalancerIP = "x" }, canAll, func(s *v1.KuryrLoadBalancerSpec) bool { return s.FloatingIP == nil }, `"x" is no address`},
		"with what is no name": {func(s *corev1.Service) { s.Annotations = map[string]string{balancerPrefix + "hostname": "a b"} }, canAll,
			func(s *v1.KuryrLoadBalancerSpec) bool { return s.Options.Hostname == "" }, "want a name of DNS"},
		"exposed within":                 {noted(annotationInternal, "true"), canAll, func(s *v1.KuryrLoadBalancerSpec) bool { return s.FloatingIP == nil }, ""},
		"exposed within, in other words": {noted(annotationInternal, " True"), canAll, func(s *v1.KuryrLoadBalancerSpec) bool { return s.FloatingIP == nil }, ""},
		"exposed within or not":          {noted(annotationInternal, "yes"), canAll, func(s *v1.KuryrLoadBalancerSpec) bool { return s.FloatingIP == nil }, "openstack-internal-load-balancer: want true or false, so there is no floating IP"},
		"exposed to those of an annotation": {noted(corev1.AnnotationLoadBalancerSourceRangesKey, "192.0.2.1/24, 198.51.100.0/24"), canAll, func(s *v1.KuryrLoadBalancerSpec) bool {
			return slices.Equal(s.Sources, []string{"192.0.2.0/24", "198.51.100.0/24"}) && s.FloatingIP != nil
		}, ""},
		"exposed to those of the field, not of an annotation": {func(s *corev1.Service) {
			sources("192.0.2.0/24")(s)
			s.Annotations = map[string]string{corev1.AnnotationLoadBalancerSourceRangesKey: "198.51.100.0/24"}
		}, canAll, func(s *v1.KuryrLoadBalancerSpec) bool { return slices.Equal(s.Sources, []string{"192.0.2.0/24"}) }, ""},
		"exposed to an annotation's word": {noted(corev1.AnnotationLoadBalancerSourceRangesKey, "all"), canAll, func(s *v1.KuryrLoadBalancerSpec) bool { return s.FloatingIP == nil }, "load-balancer-source-ranges: none is a range, so there is no floating IP"},
		"exposed to some": {sources("192.0.2.1/24", " 192.0.2.0/24"), canAll, func(s *v1.KuryrLoadBalancerSpec) bool {
			return slices.Equal(s.Sources, []string{"192.0.2.0/24"}) && s.FloatingIP != nil
		}, ""},
		"exposed to more ranges than can be told": {func(s *corev1.Service) {
			exposedService(s)
			for i := range 1001 {
				s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, fmt.Sprintf("192.0.%d.%d/32", i/256, i%256))
			}
		}, canAll, func(s *v1.KuryrLoadBalancerSpec) bool { return s.FloatingIP == nil && len(s.Sources) == 0 }, "at most 1000"},
		"exposed to what is no range": {sources("x"), canAll, func(s *v1.KuryrLoadBalancerSpec) bool { return s.FloatingIP == nil }, `"x" is no range`},
		"exposed to some, and all could": {func(s *corev1.Service) { sources("192.0.2.0/24")(s); s.Spec.Ports = s.Spec.Ports[:1] }, canLittle,
			func(s *v1.KuryrLoadBalancerSpec) bool { return s.FloatingIP == nil }, "everybody connect, so there is no floating IP"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec, notes := loadBalancerSpec(aService(of.change), of.can)
			if of.want != nil && !of.want(&spec) {
				t.Errorf("%+v", spec)
			}
			if told := strings.Join(notes, "\n"); (told == "") != (of.notes == "") || !strings.Contains(told, of.notes) {
				t.Errorf("notes %q, want %q", told, of.notes)
			}
		})
	}
}

// Each of cloud-provider-openstack's annotations has its effect, or is told of by its name; there is none that is passed over.
func TestAnnotationsOfServices(t *testing.T) {
	t.Parallel()
	for key, of := range map[string]struct {
		value  string
		want   func(v1.LoadBalancerOptions, v1.LoadBalancerFloatingIP) bool // nil is that it has no effect
		little bool                                                         // an SDN that can little can that too
	}{
		"class":               {"ovn", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o.Provider == "ovn" }, true},
		"flavor-id":           {"f", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o.Flavor == "f" }, false},
		"availability-zone":   {"z", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o.Zone == "z" }, false},
		"hostname":            {"h", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o.Hostname == "h" }, true},
		"floating-network-id": {"n", func(_ v1.LoadBalancerOptions, f v1.LoadBalancerFloatingIP) bool { return f.Network == "n" }, true},
		"keep-floatingip":     {"true", func(_ v1.LoadBalancerOptions, f v1.LoadBalancerFloatingIP) bool { return f.Keep }, true},
		"lb-method":           {"source_ip_port", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o.Method == "SOURCE_IP_PORT" }, false},
		"proxy-protocol":      {"v2", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o.ProxyProtocol == 2 }, false},
		"connection-limit":    {"100", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o.ConnectionLimit == 100 }, false},
		"timeout-client-data": {"5000", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool {
			return o.ClientTimeout.Duration == 5*time.Second
		}, false},
		"timeout-member-data": {"5000", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool {
			return o.MemberTimeout.Duration == 5*time.Second
		}, false},
		"timeout-member-connect": {"5000", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool {
			return o.ConnectTimeout.Duration == 5*time.Second
		}, false},
		"timeout-tcp-inspect": {"5000", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool {
			return o.InspectTimeout.Duration == 5*time.Second
		}, false},
		"x-forwarded-for":           {"true", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o.ForwardedFor }, false},
		"default-tls-container-ref": {"c", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o.Certificate == "c" }, false},
		"enable-health-monitor": {"true", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool {
			return *o.HealthMonitor == v1.LoadBalancerHealthMonitor{DelaySeconds: 5, TimeoutSeconds: 3, Rise: 1, Fall: 3}
		}, false},
		"health-monitor-delay":            {"9", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o.HealthMonitor == nil }, true},
		"health-monitor-timeout":          {"9", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o.HealthMonitor == nil }, true},
		"health-monitor-max-retries":      {"9", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o.HealthMonitor == nil }, true},
		"health-monitor-max-retries-down": {"9", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o.HealthMonitor == nil }, true},
		"load-balancer-address":           {"192.0.2.1", func(o v1.LoadBalancerOptions, _ v1.LoadBalancerFloatingIP) bool { return o == v1.LoadBalancerOptions{} }, true},
		"load-balancer-id":                {value: "x"}, "port-id": {value: "x"}, "subnet-id": {value: "x"}, "network-id": {value: "x"}, "member-subnet-id": {value: "x"}, "node-selector": {value: "x"},
		"floating-subnet":      {"x*", func(_ v1.LoadBalancerOptions, f v1.LoadBalancerFloatingIP) bool { return f.SubnetName == "x*" }, true},
		"floating-subnet-id":   {"x", func(_ v1.LoadBalancerOptions, f v1.LoadBalancerFloatingIP) bool { return f.Subnet == "x" }, true},
		"floating-subnet-tags": {"&x,y", func(_ v1.LoadBalancerOptions, f v1.LoadBalancerFloatingIP) bool { return f.SubnetTags == "&x,y" }, true},
		"misspelt":             {value: "x"},
	} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			s := aService(func(s *corev1.Service) {
				s.Annotations = map[string]string{balancerPrefix + key: of.value, "other/annotation": "x"}
			})
			var floating v1.LoadBalancerFloatingIP
			options, _, notes := optionsOfService(s, canAll.LoadBalancer, &floating)
			if of.want != nil && (!of.want(options, floating) || len(notes) > 0) {
				t.Errorf("%+v, %+v, %q", options, floating, notes)
			}
			little, _, told := optionsOfService(s, canLittle.LoadBalancer, &v1.LoadBalancerFloatingIP{})
			if !of.little && (!reflect.DeepEqual(little, v1.LoadBalancerOptions{}) || len(told) != 1 || !strings.Contains(told[0], balancerPrefix+key)) || of.little && len(told) > 0 {
				t.Errorf("an SDN that can little: %+v, %q", little, told)
			}
		})
	}
	if len(annotations) != 30 {
		t.Errorf("%d annotations are known: one that comes or goes is one of this table", len(annotations))
	}
	for key, values := range map[string][]string{
		"proxy-protocol": {"v3"}, "connection-limit": {"x", "-2", "99999999999"}, "timeout-client-data": {"0", "x"}, "keep-floatingip": {"perhaps"}, "lb-method": {"BEST"}, "health-monitor-delay": {"0", "x"},
		"health-monitor-max-retries": {"11"}, "flavor-id": {strings.Repeat("x", 300)}, "enable-health-monitor": {""},
	} {
		for _, value := range values {
			s := aService(func(s *corev1.Service) { s.Annotations = map[string]string{balancerPrefix + key: value} })
			options, _, notes := optionsOfService(s, canAll.LoadBalancer, &v1.LoadBalancerFloatingIP{})
			if !reflect.DeepEqual(options, v1.LoadBalancerOptions{}) || len(notes) != 1 || !strings.Contains(notes[0], key+" has no effect: ") {
				t.Errorf("%s %q: %+v, %q", key, value, options, notes)
			}
		}
	}
}

// A load balancer has a listener for each port, the sources with the cluster's own, and no member that the SDN would refuse.
func TestBalancerSpecs(t *testing.T) {
	t.Parallel()
	seconds := int32(60)
	spec := v1.KuryrLoadBalancerSpec{
		Ports:           []v1.LoadBalancerPort{{Name: "http", Protocol: "TCP", Port: 80}, {Name: "dns", Protocol: "UDP", Port: 53}},
		AffinitySeconds: &seconds, Sources: []string{"192.0.2.0/24", "fd00:9::/64"},
		Options: v1.LoadBalancerOptions{ProxyProtocol: 2, HealthMonitor: &v1.LoadBalancerHealthMonitor{DelaySeconds: 5, TimeoutSeconds: 3, Rise: 1, Fall: 3}, Provider: "p", ForwardedFor: true},
	}
	of := balancerOf{
		spec: &spec, vip: sdn.VIP{Addr: netip.MustParseAddr("10.96.0.5"), Subnet: "s"}, can: canAll.LoadBalancer, cluster: prefixesOf("10.128.0.0/9", "fd00:1::/48"),
		endpoints: map[portName][]endpoint{{"http", "TCP"}: {{netip.MustParseAddrPort("10.128.0.5:8080"), "a", false}, {netip.MustParseAddrPort("192.0.2.1:8080"), "", false}}},
		subnet: func(a netip.Addr) sdn.ID {
			if a == netip.MustParseAddr("10.128.0.5") {
				return "pods"
			}
			return ""
		},
	}
	got, members, notes := of.loadBalancer()
	http, dns := got.Listeners[0], got.Listeners[1]
	if len(members) != 2 || len(notes) != 0 || got.Backend != "p" || len(got.Listeners) != 2 || !slices.Equal(http.Sources, prefixesOf("10.128.0.0/9", "192.0.2.0/24")) {
		t.Errorf("%+v; %v, %q", got, members, notes)
	}
	if http.Protocol != sdn.TCP || http.Port != 80 || http.ProxyVersion != 2 || !http.ForwardedFor || http.Pool.Affinity != (sdn.Affinity{ClientIP: true, Timeout: time.Minute}) ||
		http.Pool.Health.Type != "TCP" || len(http.Pool.Members) != 2 || http.Pool.Members[0].Subnet != "pods" || http.Pool.Members[0].Name != "a" {
		t.Errorf("http: %+v", http)
	}
	if dns.Protocol != sdn.UDP || dns.ProxyProtocol || dns.ForwardedFor || dns.Pool.Health.Type != "UDP-CONNECT" || len(dns.Pool.Members) != 0 {
		t.Errorf("dns: %+v", dns)
	}
	of.can.AnyMember, of.can.AffinityTCP = false, false
	got, _, notes = of.loadBalancer()
	if !slices.Equal(notes, []string{noteWayless}) || len(got.Listeners[0].Pool.Members) != 1 || got.Listeners[0].Pool.Affinity.Timeout != 0 || got.Listeners[1].Pool.Affinity.Timeout != time.Minute {
		t.Errorf("without: %+v, %q", got, notes)
	}
	of.can.AnyMember, of.can.Members = true, 1
	got, members, notes = of.loadBalancer()
	if len(notes) != 1 || !strings.Contains(notes[0], "more than the 1 that") || len(members) != 1 || len(got.Listeners[0].Pool.Members) != 1 || got.Listeners[0].Pool.Members[0].Name != "a" {
		t.Errorf("room for one: %+v, %q", got.Listeners[0].Pool.Members, notes)
	}
	of.vips = []netip.Addr{netip.MustParseAddr("10.128.0.5")}
	got, _, notes = of.loadBalancer()
	if !slices.Equal(notes, []string{noteRound}) || len(got.Listeners[0].Pool.Members) != 1 || got.Listeners[0].Pool.Members[0].Addr.Addr() != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("a VIP for an endpoint: %+v, %q", got.Listeners[0].Pool.Members, notes)
	}
	spec.Sources, of.cluster = []string{"fd00:9::/64"}, nil
	if got, _, _ = of.loadBalancer(); !slices.Equal(got.Listeners[0].Sources, prefixesOf("127.0.0.1/32")) {
		t.Errorf("sources of the other family alone let in %v", got.Listeners[0].Sources)
	}
}

// Where an SDN serves what is beyond its networks to clients in it alone, such endpoints are members where that is no harm to others, and what is not served is told.
func TestMembersBeyondTheNetworks(t *testing.T) {
	t.Parallel()
	near, far := endpoint{netip.MustParseAddrPort("10.128.0.5:80"), "a", false}, endpoint{netip.MustParseAddrPort("192.0.2.1:80"), "", false}
	nearDrains, farDrains := near, far
	nearDrains.drains, farDrains.drains = true, true
	drain := sdn.LoadBalancerCapabilities{Drain: true}
	room := sdn.LoadBalancerCapabilities{Drain: true, AnyMember: true, Members: 1}
	spec := v1.KuryrLoadBalancerSpec{}
	monitored := v1.KuryrLoadBalancerSpec{Options: v1.LoadBalancerOptions{HealthMonitor: &v1.LoadBalancerHealthMonitor{}}}
	for name, c := range map[string]struct {
		of   balancerOf
		give []endpoint
		want []endpoint
		note string
	}{
		"both":                              {balancerOf{spec: &spec, leaves: true}, []endpoint{near, far}, []endpoint{near, far}, ""},
		"no way out":                        {balancerOf{spec: &spec}, []endpoint{near, far}, []endpoint{near}, noteWayless},
		"no way out, and none is needed":    {balancerOf{spec: &spec}, []endpoint{near}, []endpoint{near}, ""},
		"a floating IP":                     {balancerOf{spec: &spec, leaves: true, floats: true}, []endpoint{near, far}, []endpoint{near}, noteFloating},
		"a floating IP that leads nowhere":  {balancerOf{spec: &spec, leaves: true, floats: true}, []endpoint{far}, []endpoint{far}, noteFloating},
		"a floating IP, and no way out":     {balancerOf{spec: &spec, floats: true}, []endpoint{far}, nil, noteWayless},
		"a floating IP to pods":             {balancerOf{spec: &spec, floats: true}, []endpoint{near}, []endpoint{near}, ""},
		"a health monitor":                  {balancerOf{spec: &monitored, leaves: true}, []endpoint{near, far}, []endpoint{near}, noteMonitored},
		"a health monitor of nobody":        {balancerOf{spec: &monitored, leaves: true}, []endpoint{far}, nil, noteMonitored},
		"no endpoints":                      {balancerOf{spec: &spec, floats: true}, nil, nil, ""},
		"one that drains":                   {balancerOf{spec: &spec, leaves: true, can: drain}, []endpoint{far, nearDrains}, []endpoint{far, nearDrains}, ""},
		"one that drains, of OVN":           {balancerOf{spec: &spec, leaves: true}, []endpoint{far, nearDrains}, []endpoint{far}, ""},
		"a floating IP to who drains":       {balancerOf{spec: &spec, leaves: true, floats: true, can: drain}, []endpoint{far, nearDrains}, []endpoint{far, nearDrains}, noteFloating},
		"a floating IP not to who drains":   {balancerOf{spec: &spec, leaves: true, floats: true, can: drain}, []endpoint{near, farDrains}, []endpoint{near}, noteFloating},
		"no room for who drains":            {balancerOf{spec: &spec, can: room}, []endpoint{far, nearDrains}, []endpoint{far}, ""},
		"an SDN that serves them to all":    {balancerOf{spec: &monitored, floats: true, can: sdn.LoadBalancerCapabilities{AnyMember: true}}, []endpoint{near, far}, []endpoint{near, far}, ""},
		"an SDN that serves the far to all": {balancerOf{spec: &spec, floats: true, can: sdn.LoadBalancerCapabilities{AnyMember: true}}, []endpoint{far}, []endpoint{far}, ""},
	} {
		c.of.subnet = func(a netip.Addr) sdn.ID {
			if a == near.addr.Addr() {
				return "pods"
			}
			return ""
		}
		got, notes := c.of.members(c.give)
		var of []endpoint
		for _, m := range got {
			of = append(of, endpoint{m.Addr, m.Name, m.Drain})
		}
		if !slices.Equal(of, c.want) || len(notes) > 1 || strings.Join(notes, "") != c.note {
			t.Errorf("%s: %v, %q; want %v, %q", name, of, notes, c.want, c.note)
		}
	}
}
