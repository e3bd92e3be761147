// Package vif is the words of the pod annotation openstack.org/kuryr-vif, which says what ports of the SDN a pod's interfaces are.
//
// It writes the form of the document "Kuryr Kubernetes Port CRD Usage", byte for byte but for that document's missing backslashes before the quotes of "eth0". There an
// interface has the link of its KuryrPort, and the name and version of the whole stand beside the interfaces, not within each:
//
//	{"eth0": {"versioned_object.data": {"selfLink": "/apis/openstack.org/v1/kuryrports/18f9…"}}, "versioned_object.name": "KuryrPortCRD", "versioned_object.version": "1.0"}
//
// It reads that, the same with name and version within each interface, and what the Python kuryr-kubernetes wrote before it: objects of os_vif, one for each
// interface, one alone, or a PodState around them.
//
// Whoever may edit a pod may write the annotation, so what is read of it is a claim. A reader must get the KuryrPort that it names and believe that one's
// status.pod, which pods' owners cannot write: [VIF.Of] compares them. A port that the peer's form tells of must be looked up in the SDN.
//
// The package must not ask the API server or the SDN itself.
package vif

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Annotation is the pod's, whose value this package writes and reads.
const Annotation = "openstack.org/kuryr-vif"

// Bounds of a value that is read. Kubernetes itself bounds all annotations of an object at 256 KiB.
const (
	MaxSize       = 64 << 10 // bytes
	MaxInterfaces = 64
	maxLength     = 15 // letters of an interface's name: the kernel's IFNAMSIZ without its end
)

// VIF is one interface of the pod as the annotation tells of it.
type VIF struct {
	Interface string // its name in the pod, such as eth0
	Port      string // name of its KuryrPort; "" in the peer's older form
	// Peer is what the peer's older form tells of the port; nil in ours. The peer did not write Node and Pool, nor the ids of subnets.
	Peer *v1.KuryrPortSpec
}

// Of tells whether the KuryrPort that the annotation names is that interface of that very pod, which the KuryrPort's status says and not the annotation.
func (v VIF) Of(port *v1.KuryrPort, pod types.UID) bool {
	bound := port.Status.Pod
	return v.Port != "" && port.Name == v.Port && bound != nil && pod != "" && bound.UID == pod && bound.Interface == v.Interface
}

// SelfLink is the path of a KuryrPort in the API.
func SelfLink(port string) string { return linkPrefix + port }

var linkPrefix = "/apis/" + v1.GroupVersion.String() + "/kuryrports/"

// errEmpty is for a value that tells of no interface.
var errEmpty = errors.New("it tells of no interface")

// validInterface refuses what the kernel does not take for an interface's name.
func validInterface(name string) error {
	switch {
	case name == "" || name == "." || name == "..", len(name) > maxLength:
		return fmt.Errorf("interface %.40q: want 1 to %d letters", name, maxLength)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '/' || r == ':' || r == 0x7f || r == '�' }):
		return fmt.Errorf("interface %q: no spaces, slashes, colons or control characters", name)
	}
	return nil
}

// validPort refuses what is no name of a KuryrPort.
func validPort(name string) error {
	if bad := validation.IsDNS1123Subdomain(name); bad != nil {
		return fmt.Errorf("port %.300q: %s", name, strings.Join(bad, ", "))
	}
	return nil
}

// sorted are the VIFs by their interfaces' names.
func sorted(vifs []VIF) []VIF {
	slices.SortFunc(vifs, func(a, b VIF) int { return strings.Compare(a.Interface, b.Interface) })
	return vifs
}
