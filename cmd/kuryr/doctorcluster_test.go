//go:build linux && kubernetes

package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/doctor"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/install"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func inDefault(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.Namespace = "default"
	return m
}

// What is not well in a cluster is found by what the API server has of it.
func TestKubernetesDoctorCluster(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	clock := func() time.Time { return now }
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), v1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	values, err := install.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	meta := func(name string, deletedFor time.Duration) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Name: name, Finalizers: []string{v1.Finalizer}}
		if deletedFor > 0 {
			at := metav1.NewTime(now.Add(-deletedFor))
			m.DeletionTimestamp = &at
		}
		return m
	}
	state := func(status metav1.ConditionStatus) []metav1.Condition {
		return []metav1.Condition{{Type: v1.ConditionReady, Status: status, Reason: "Why", Message: "because"}}
	}
	node := func(name string, status corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: status, Reason: "KuryrStopped"}}}}
	}
	var sdn *appsv1.Deployment // as it is installed
	manifests, err := install.Render(install.Release{Namespace: "sys", Values: values})
	for _, m := range manifests {
		if m.Object.GetKind() == "Deployment" && m.Object.GetName() == "kuryr-sdn" {
			sdn = new(appsv1.Deployment)
			err = errors.Join(err, runtime.DefaultUnstructuredConverter.FromUnstructured(m.Object.Object, sdn))
		}
	}
	if err != nil || sdn == nil {
		t.Fatal(err, sdn)
	}
	renewed := metav1.NewMicroTime(now.Add(-time.Minute))
	objects := []client.Object{
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: "kuryr-controller"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("raven-1"), LeaseDurationSeconds: new(int32(15)), RenewTime: &renewed}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: "kuryr-controller"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))}, Status: appsv1.DeploymentStatus{ReadyReplicas: 2}},
		sdn,
		node("well", corev1.ConditionFalse), node("ill", corev1.ConditionTrue),
		&v1.KuryrPortPool{ObjectMeta: meta("full", 0), Status: v1.KuryrPortPoolStatus{Conditions: state(metav1.ConditionTrue)}},
		&v1.KuryrPortPool{ObjectMeta: meta("short", 0), Status: v1.KuryrPortPoolStatus{Conditions: state(metav1.ConditionFalse)}},
		&v1.KuryrNetwork{ObjectMeta: meta("blue-1", 0), Status: v1.KuryrNetworkStatus{Conditions: state(metav1.ConditionFalse)}},
		&v1.KuryrLoadBalancer{ObjectMeta: inDefault(meta("web", 0)), Status: v1.KuryrLoadBalancerStatus{Conditions: state(metav1.ConditionTrue)}},
		&v1.KuryrLoadBalancer{ObjectMeta: inDefault(meta("full", 0)), Status: v1.KuryrLoadBalancerStatus{Conditions: state(metav1.ConditionFalse)}},
		&v1.KuryrLoadBalancer{ObjectMeta: inDefault(meta("unserved", 0)), Status: v1.KuryrLoadBalancerStatus{
			Conditions: []metav1.Condition{{Type: v1.ConditionProgrammed, Status: metav1.ConditionFalse, Reason: v1.ReasonUnserved, Message: "none"}},
		}},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy"}, Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 2}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: "kuryr"}, Data: map[string]string{
			"kuryr.yaml": "controller: {services: true}\ncontroller.load_balancers: node\n", "node.yaml": "node.services: true\n",
		}},
		&v1.KuryrPort{ObjectMeta: meta("stays", 0)},
		&v1.KuryrPort{ObjectMeta: meta("stuck", time.Hour)},
		&v1.KuryrPort{ObjectMeta: meta("going", time.Second)},
		&v1.KuryrPort{ObjectMeta: meta("kept", time.Hour), Status: v1.KuryrPortStatus{Pod: &v1.PortPod{Namespace: "a", Name: "b"}}},
	}
	api := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).Build()
	f := clusterFacts(t.Context(), api, "sys", clock)
	if len(f.Balancers) != 1 || f.Balancers[0].Name != "default/full" || f.Unserved != "none" || f.Proxy.Want != 2 || f.Counts.Balancers != 3 {
		t.Errorf("load balancers: %+v", f)
	}
	if f.Err != nil || f.Counts.Nodes != 2 || f.Counts.Pools != 2 || f.Counts.Networks != 1 || f.Counts.Ports != 4 || f.Daemons.There {
		t.Errorf("%+v", f)
	}
	var found []string
	for _, finding := range doctor.Cluster(f) {
		if finding.Verdict != doctor.OK {
			found = append(found, finding.What)
		}
	}
	all := strings.Join(found, "\n")
	wants := []string{"sys/kuryr-controller was not renewed by raven-1", "kuryr-sdn 0 of 1 pods are ready: no node has the label openstack.org/kuryr-sdn", "node ill is not", "pool short is not ready: Why: because", "network blue-1 is not", "KuryrPort stuck is being deleted for 1h0m0s", "the pod a/b has it",
		"no Service is served: none", "load balancer default/full is not ready", "kube-proxy is to run on 2 nodes", "node.load_balancers is sdn"}
	for _, want := range wants {
		if !strings.Contains(all, want) {
			t.Errorf("nothing tells %q", want)
		}
	}
	if len(found) != len(wants) {
		t.Errorf("%d findings, not %d:\n%s", len(found), len(wants), all)
	}
	// Where Kuryr is not installed that is the finding.
	bare := fake.NewClientBuilder().WithScheme(scheme.Scheme).Build()
	if f := clusterFacts(t.Context(), bare, "sys", clock); f.Err == nil {
		t.Errorf("without Kuryr: %+v", f)
	}
}

// The steps of an uninstallation are printed in their order, for the namespace.
func TestKubernetesUninstallPrints(t *testing.T) {
	t.Parallel()
	code, out, complaint := kuryr(t.Context(), nil, "uninstall", "kubernetes", "--namespace", "blue")
	last := -1
	for _, step := range []string{"get kuryrports", "rm -f /etc/cni", "delete crd kuryrnetworks", "delete crd kuryrportpools", "delete crd kuryrports.", "-n blue delete daemonset", "clusterrole", "namespace blue"} {
		at := strings.Index(out, step)
		if at <= last {
			t.Errorf("%q is at %d, what comes before it at %d", step, at, last)
		}
		last = at
	}
	if code != exitOK || complaint != "" || strings.Contains(out, "kuryr-system") || strings.Contains(out, "%!") {
		t.Errorf("exit %d, %s\n%s", code, complaint, out)
	}
}

// TestChoosesNodes checks that the label of a node is missed only where the SDN may run on no node
// without it.
func TestChoosesNodes(t *testing.T) {
	t.Parallel()
	label := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: install.LabelSDN, Operator: corev1.NodeSelectorOpExists},
	}}
	name := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
	}}
	for _, row := range []struct {
		terms []corev1.NodeSelectorTerm
		want  bool
	}{
		{[]corev1.NodeSelectorTerm{label}, true},
		{[]corev1.NodeSelectorTerm{label, name}, false},
		{[]corev1.NodeSelectorTerm{name}, false},
		{nil, false},
	} {
		a := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: row.terms},
		}}
		if got := choosesNodes(a, install.LabelSDN); got != row.want {
			t.Errorf("%v: %t", row.terms, got)
		}
	}
	if choosesNodes(nil, install.LabelSDN) {
		t.Error("pods without an affinity choose nodes")
	}
}
