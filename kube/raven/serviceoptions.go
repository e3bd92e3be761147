package raven

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The annotations of cloud-provider-openstack for Services, by the same names: users who come from there find them to work, or are told which does not.
const (
	balancerPrefix     = "loadbalancer.openstack.org/"
	annotationClass    = balancerPrefix + "class" // which of the SDN's providers, by whose abilities all else is judged
	annotationShared   = balancerPrefix + "load-balancer-id"
	annotationInternal = "service.beta.kubernetes.io/openstack-internal-load-balancer"
)

// asked is what annotations fill in.
type asked struct {
	can      sdn.LoadBalancerCapabilities
	options  *v1.LoadBalancerOptions
	floating *v1.LoadBalancerFloatingIP
	monitor  v1.LoadBalancerHealthMonitor
	watched  bool   // by the monitor
	shared   string // the load balancer that is to be shared
}

// annotation takes the value of one.
type annotation func(w *asked, value string) error

// annotations are all there are, by what follows balancerPrefix.
var annotations = map[string]annotation{
	"class": word(func(w *asked) *string { return &w.options.Provider }),
	"flavor-id": func(w *asked, value string) error {
		if value != "" && !w.can.Zones {
			return errUnable
		}
		return word(func(w *asked) *string { return &w.options.Flavor })(w, value)
	},
	"hostname": func(w *asked, value string) error {
		_, noName := netip.ParseAddr(value)
		if wrong := validation.IsDNS1123Subdomain(value); value != "" && (len(wrong) > 0 || noName == nil) { // a Service's status takes no other
			return errors.New("want a name of DNS")
		}
		w.options.Hostname = value
		return nil
	},
	"floating-network-id":  word(func(w *asked) *string { return &w.floating.Network }),
	"floating-subnet-id":   word(func(w *asked) *string { return &w.floating.Subnet }),
	"floating-subnet":      word(func(w *asked) *string { return &w.floating.SubnetName }),
	"floating-subnet-tags": text(1024, func(w *asked) *string { return &w.floating.SubnetTags }),
	"keep-floatingip": onOff(func(w *asked, on bool) error {
		w.floating.Keep = on
		return nil
	}),
	"lb-method": lbMethod,
	"proxy-protocol": func(w *asked, value string) error {
		version, known := map[string]int32{"false": 0, "true": 1, "v1": 1, "v2": 2}[value]
		if !known {
			return errors.New("want true, false, v1 or v2")
		}
		if version > 0 && !w.can.ProxyProtocol {
			return errUnable
		}
		w.options.ProxyProtocol = version
		return nil
	},
	"connection-limit": func(w *asked, value string) error {
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || n < -1 {
			return errors.New("want a number, or -1 for none")
		}
		if n > 0 && !w.can.Limits {
			return errUnable
		}
		w.options.ConnectionLimit = int32(max(n, 0))
		return nil
	},
	"timeout-client-data":    milliseconds(func(w *asked) **metav1.Duration { return &w.options.ClientTimeout }),
	"timeout-member-data":    milliseconds(func(w *asked) **metav1.Duration { return &w.options.MemberTimeout }),
	"timeout-member-connect": milliseconds(func(w *asked) **metav1.Duration { return &w.options.ConnectTimeout }),
	"timeout-tcp-inspect":    milliseconds(func(w *asked) **metav1.Duration { return &w.options.InspectTimeout }),
	"enable-health-monitor": onOff(func(w *asked, on bool) error {
		if on && !w.can.HealthMonitors {
			return errUnable
		}
		w.watched = on
		return nil
	}),
	"health-monitor-delay":            count(3600, func(w *asked) *int32 { return &w.monitor.DelaySeconds }),
	"health-monitor-timeout":          count(3600, func(w *asked) *int32 { return &w.monitor.TimeoutSeconds }),
	"health-monitor-max-retries":      count(10, func(w *asked) *int32 { return &w.monitor.Rise }),
	"health-monitor-max-retries-down": count(10, func(w *asked) *int32 { return &w.monitor.Fall }),
	"x-forwarded-for": onOff(func(w *asked, on bool) error {
		if on && !w.can.HTTP {
			return errUnable
		}
		w.options.ForwardedFor = on
		return nil
	}),
	"default-tls-container-ref": func(w *asked, value string) error {
		if value != "" && !w.can.HTTP {
			return errUnable
		}
		return text(1024, func(w *asked) *string { return &w.options.Certificate })(w, value)
	},
	"availability-zone": func(w *asked, value string) error {
		if value != "" && !w.can.Zones {
			return errUnable
		}
		return word(func(w *asked) *string { return &w.options.Zone })(w, value)
	},
	"load-balancer-id": func(w *asked, value string) error {
		if value != "" && !w.can.Share {
			return errUnable
		}
		return text(64, func(w *asked) *string { return &w.shared })(w, value)
	},
	"load-balancer-address": func(*asked, string) error { return nil }, // another controller has written it
	"port-id":               unserved("the VIP is the ClusterIP, on a port of its own"),
	"subnet-id":             unserved("the VIP is the ClusterIP, in the VIP network"),
	"network-id":            unserved("the VIP is the ClusterIP, in the VIP network"),
	"member-subnet-id":      unserved("members are pods, each on the subnet that it is on"),
	"node-selector":         unserved("members are pods and not nodes"),
}

// errUnable tells of what these load balancers of the SDN's cannot do.
var errUnable = errors.New("the SDN's load balancers cannot do that")

// optionsOfService reads a Service's annotations. The notes name each that has no effect, and why.
func optionsOfService(s *corev1.Service, can sdn.LoadBalancerCapabilities, floating *v1.LoadBalancerFloatingIP) (options v1.LoadBalancerOptions, shared string, notes []string) {
	w := &asked{can: can, options: &options, floating: floating, monitor: v1.LoadBalancerHealthMonitor{DelaySeconds: 5, TimeoutSeconds: 3, Rise: 1, Fall: 3}}
	for _, key := range slices.Sorted(maps.Keys(s.Annotations)) {
		name, ours := strings.CutPrefix(key, balancerPrefix)
		if !ours {
			continue
		}
		take, known := annotations[name]
		if !known {
			notes = append(notes, fmt.Sprintf("annotation %s is none that Kuryr knows", key))
			continue
		}
		if err := take(w, strings.TrimSpace(s.Annotations[key])); err != nil {
			notes = append(notes, fmt.Sprintf("annotation %s has no effect: %v", key, err))
		}
	}
	if w.watched {
		options.HealthMonitor = &w.monitor
	}
	return options, w.shared, notes
}

func word(field func(*asked) *string) annotation { return text(253, field) }

func text(most int, field func(*asked) *string) annotation {
	return func(w *asked, value string) error {
		if len(value) > most {
			return errors.New("it is too long")
		}
		*field(w) = value
		return nil
	}
}

func onOff(set func(w *asked, on bool) error) annotation {
	return func(w *asked, value string) error {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return errors.New("want true or false")
		}
		return set(w, on)
	}
}

func count(most int64, field func(*asked) *int32) annotation {
	return func(w *asked, value string) error {
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || n < 1 || n > most {
			return fmt.Errorf("want a number of 1 to %d", most)
		}
		*field(w) = int32(n)
		return nil
	}
}

func milliseconds(field func(*asked) **metav1.Duration) annotation {
	return func(w *asked, value string) error {
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil || n < 1 {
			return errors.New("want milliseconds")
		}
		if !w.can.Timeouts {
			return errUnable
		}
		*field(w) = &metav1.Duration{Duration: time.Duration(n) * time.Millisecond}
		return nil
	}
}

func unserved(why string) annotation {
	return func(*asked, string) error { return errors.New(why) }
}

func lbMethod(w *asked, value string) error {
	method := sdn.Algorithm(strings.ToUpper(value))
	if !slices.Contains([]sdn.Algorithm{sdn.RoundRobin, sdn.LeastConns, sdn.SourceIP, sdn.SourceIPPort}, method) {
		return errors.New("want ROUND_ROBIN, LEAST_CONNECTIONS, SOURCE_IP or SOURCE_IP_PORT")
	}
	if !slices.Contains(w.can.Algorithms, method) {
		return errUnable
	}
	w.options.Method = string(method)
	return nil
}
