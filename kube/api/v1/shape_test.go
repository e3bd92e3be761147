package v1

import (
	"bytes"
	"encoding/json"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"
)

// What is written in JSON or YAML is read the same, and a deep copy shares nothing: roundtrip compares a copy after the original was changed.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(scheme)
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	seeds := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1), codecs)
	for _, kind := range []string{"KuryrPort", "KuryrPortPool", "KuryrNetwork", "KuryrLoadBalancer"} {
		for _, k := range []string{kind, kind + "List"} {
			t.Run(k, func(t *testing.T) {
				roundtrip.RoundTripSpecificKindWithoutProtobuf(t, GroupVersion.WithKind(k), scheme, codecs, seeds, nil)
			})
		}
	}
}

// The CRDs as they are committed have every field of the types and no other, and what the types say is never pruned.
func TestSchemasHaveEveryField(t *testing.T) {
	t.Parallel()
	for file, of := range map[string]any{"kuryrports": KuryrPort{}, "kuryrportpools": KuryrPortPool{}, "kuryrnetworks": KuryrNetwork{}, "kuryrloadbalancers": KuryrLoadBalancer{}} {
		data, err := os.ReadFile(filepath.Join("../../../deploy/kubernetes/crds", "openstack.org_"+file+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Spec struct {
				Group, Scope string
				Versions     []struct {
					Name            string
					Served, Storage bool
					Subresources    map[string]any
					Schema          struct{ OpenAPIV3Schema node }
				}
			}
		}
		if err := yaml.Unmarshal(data, &crd); err != nil {
			t.Fatal(err)
		}
		scope := "Cluster"
		if file == "kuryrloadbalancers" {
			scope = "Namespaced"
		}
		if len(crd.Spec.Versions) != 1 || crd.Spec.Group != GroupVersion.Group || crd.Spec.Scope != scope {
			t.Fatalf("%s: %+v", file, crd.Spec)
		}
		v := crd.Spec.Versions[0]
		if v.Name != GroupVersion.Version || !v.Served || !v.Storage || v.Subresources["status"] == nil {
			t.Errorf("%s: version %s, served %v, stored %v, subresources %v", file, v.Name, v.Served, v.Storage, v.Subresources)
		}
		compare(t, file, reflect.TypeOf(of), v.Schema.OpenAPIV3Schema)
	}
}

// node is as much of an OpenAPI schema as is compared.
type node struct {
	Type       string
	Properties map[string]node
	Items      *node
}

func compare(t *testing.T, path string, of reflect.Type, n node) {
	t.Helper()
	switch of.Kind() {
	case reflect.Pointer:
		compare(t, path, of.Elem(), n)
	case reflect.Slice:
		if n.Type != "array" || n.Items == nil {
			t.Errorf("%s: is a list, and %q in the CRD", path, n.Type)
			return
		}
		compare(t, path+"[]", of.Elem(), *n.Items)
	case reflect.Struct:
		if of.PkgPath() != reflect.TypeOf(KuryrPort{}).PkgPath() && of != reflect.TypeOf(metav1.Condition{}) {
			return // metadata, times: Kubernetes' own
		}
		var fields []string
		for f := range of.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous && f.Type == reflect.TypeOf(metav1.TypeMeta{}) {
				fields = append(fields, "apiVersion", "kind")
				continue
			}
			if name == "" && f.Type == reflect.TypeOf(metav1.ObjectMeta{}) {
				name = "metadata"
			}
			if name == "" || name == "-" {
				t.Errorf("%s.%s has no name in JSON", path, f.Name)
				continue
			}
			fields = append(fields, name)
			below, there := n.Properties[name]
			if !there {
				t.Errorf("%s.%s is not in the CRD: it would be pruned", path, name)
				continue
			}
			compare(t, path+"."+name, f.Type, below)
		}
		for name := range n.Properties {
			if !slices.Contains(fields, name) {
				t.Errorf("%s.%s is in the CRD and not in the type", path, name)
			}
		}
	}
}

// An object that the first release of v1 wrote is read whole, and written again as it was: later releases may add optional fields and nothing else.
func TestOlderObjects(t *testing.T) {
	t.Parallel()
	for kind, into := range map[string]any{"kuryrport": &KuryrPort{}, "kuryrportpool": &KuryrPortPool{}, "kuryrnetwork": &KuryrNetwork{}} {
		old, err := os.ReadFile(filepath.Join("testdata", "first", kind+".json"))
		if err != nil {
			t.Fatal(err)
		}
		decoder := json.NewDecoder(bytes.NewReader(old))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(into); err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		now, err := json.Marshal(into)
		if err != nil {
			t.Fatal(err)
		}
		var was, is any
		if json.Unmarshal(old, &was) != nil || json.Unmarshal(now, &is) != nil || !reflect.DeepEqual(was, is) {
			t.Errorf("%s of the first release is written as\n%s\nnot as\n%s", kind, now, old)
		}
	}
}

// A later release's optional field does not keep this one from reading the object.
func TestNewerObjects(t *testing.T) {
	t.Parallel()
	var port KuryrPort
	err := json.Unmarshal([]byte(`{"spec":{"id":"p","later":{"a":1},"vif":{"type":"bridge","later":[1]}},"status":{"portStatus":"bound","later":true}}`), &port)
	if err != nil || port.Spec.ID != "p" || port.Spec.VIF.Type != "bridge" || port.Status.PortStatus != PortBound {
		t.Errorf("%+v, %v", port, err)
	}
}
