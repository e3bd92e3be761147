//go:build linux && kubernetes

package main

import (
	"context"
	"slices"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/doctor"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/internal/config"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/install"
	"github.com/kuryr/kuryr/kube/uninstall"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// doctorCluster looks at Kuryr in a whole cluster, by its API server.
func (a *app) doctorCluster(c *cobra.Command, output, namespace string) error {
	format, err := table.ParseFormat(output)
	if err != nil {
		return usageError{err}
	}
	var clock serverClock
	api, err := a.clusterClocked(c, &clock)
	if err != nil {
		return err
	}
	report := doctorReport{Findings: doctor.Cluster(clusterFacts(c.Context(), api, namespace, clock.now))}
	doctor.WorstFirst(report.Findings)
	report.Verdict = doctor.Worst(report.Findings)
	if err := a.printDoctor(format, report, doctorOptions{}); err != nil {
		return err
	}
	if report.Verdict == doctor.Problem {
		return failed{}
	}
	return nil
}

// clusterFacts asks the API server, whose time now tells once it has answered, for all that is judged. The first thing that it does not tell is the error.
func clusterFacts(ctx context.Context, api client.Client, namespace string, now func() time.Time) (f doctor.ClusterFacts) {
	f.Namespace = namespace
	for _, gather := range []func(context.Context, client.Client, func() time.Time, *doctor.ClusterFacts) error{leaseFacts, deploymentFacts, nodeFacts, networkFacts, poolFacts, portFacts, balancerFacts, settingFacts} {
		if f.Err = gather(ctx, api, now, &f); f.Err != nil {
			return f
		}
	}
	return f
}

func leaseFacts(ctx context.Context, api client.Client, now func() time.Time, f *doctor.ClusterFacts) error {
	var lease coordinationv1.Lease
	f.Lease.Name = f.Namespace + "/kuryr-controller"
	err := api.Get(ctx, client.ObjectKey{Namespace: f.Namespace, Name: "kuryr-controller"}, &lease)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	f.Lease.There, f.Lease.Held = true, uninstall.Leads(lease.Spec, now())
	if lease.Spec.HolderIdentity != nil {
		f.Lease.Holder = *lease.Spec.HolderIdentity
	}
	return nil
}

// deploymentFacts tell of Deployments that are there: Raven may be systemd's, and the SDN another.
func deploymentFacts(ctx context.Context, api client.Client, _ func() time.Time, f *doctor.ClusterFacts) error {
	for _, name := range []string{"kuryr-controller", "kuryr-sdn"} {
		var d appsv1.Deployment
		err := api.Get(ctx, client.ObjectKey{Namespace: f.Namespace, Name: name}, &d)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		facts := doctor.DeploymentFacts{Name: name, Want: 1, Ready: int(d.Status.ReadyReplicas)}
		if d.Spec.Replicas != nil { // the API server's default is 1
			facts.Want = int(*d.Spec.Replicas)
		}
		if name == "kuryr-sdn" && choosesNodes(d.Spec.Template.Spec.Affinity, install.LabelSDN) {
			facts.Label = install.LabelSDN
		}
		f.Deployments = append(f.Deployments, facts)
	}
	return nil
}

// choosesNodes reports whether pods may run only on nodes with the label.
func choosesNodes(a *corev1.Affinity, label string) bool {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool { return e.Key == label })
	})
}

func nodeFacts(ctx context.Context, api client.Client, _ func() time.Time, f *doctor.ClusterFacts) error {
	var nodes corev1.NodeList
	if err := api.List(ctx, &nodes); err != nil {
		return err
	}
	f.Counts.Nodes = len(nodes.Items)
	for _, n := range nodes.Items {
		if _, has := n.Labels[install.LabelSDN]; has {
			f.Counts.Labelled++
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
				f.Nodes = append(f.Nodes, doctor.Unready{Name: n.Name, Why: c.Reason + ": " + c.Message})
			}
		}
	}
	var daemons appsv1.DaemonSet
	if err := api.Get(ctx, client.ObjectKey{Namespace: f.Namespace, Name: "kuryr-node"}, &daemons); err != nil {
		return client.IgnoreNotFound(err) // the daemons may be systemd's
	}
	f.Daemons = doctor.DaemonSetFacts{There: true, Want: int(daemons.Status.DesiredNumberScheduled), Ready: int(daemons.Status.NumberReady)}
	return nil
}

func networkFacts(ctx context.Context, api client.Client, now func() time.Time, f *doctor.ClusterFacts) error {
	var networks v1.KuryrNetworkList
	if err := api.List(ctx, &networks); err != nil {
		return err
	}
	f.Counts.Networks = len(networks.Items)
	for i := range networks.Items {
		n := &networks.Items[i]
		f.Names = append(f.Names, notReady(n, n.Status.Conditions)...)
		f.Leaving = append(f.Leaving, leaving("KuryrNetwork", n, now())...)
	}
	return nil
}

func poolFacts(ctx context.Context, api client.Client, now func() time.Time, f *doctor.ClusterFacts) error {
	var pools v1.KuryrPortPoolList
	if err := api.List(ctx, &pools); err != nil {
		return err
	}
	f.Counts.Pools = len(pools.Items)
	for i := range pools.Items {
		p := &pools.Items[i]
		f.Pools = append(f.Pools, notReady(p, p.Status.Conditions)...)
		f.Leaving = append(f.Leaving, leaving("KuryrPortPool", p, now())...)
	}
	return nil
}

func portFacts(ctx context.Context, api client.Client, now func() time.Time, f *doctor.ClusterFacts) error {
	var ports v1.KuryrPortList
	if err := api.List(ctx, &ports); err != nil {
		return err
	}
	f.Counts.Ports = len(ports.Items)
	for i := range ports.Items {
		p := &ports.Items[i]
		for _, l := range leaving("KuryrPort", p, now()) {
			if p.Status.Pod != nil {
				l.Pod = p.Status.Pod.Namespace + "/" + p.Status.Pod.Name
			}
			f.Leaving = append(f.Leaving, l)
		}
	}
	return nil
}

// settingFacts tell who balances ClusterIPs, and by what, as the chart's ConfigMap has it. What Kuryr does not read there its processes complain of themselves.
func settingFacts(ctx context.Context, api client.Client, _ func() time.Time, f *doctor.ClusterFacts) error {
	var m corev1.ConfigMap
	if err := api.Get(ctx, client.ObjectKey{Namespace: f.Namespace, Name: "kuryr"}, &m); err != nil {
		return client.IgnoreNotFound(err)
	}
	raven, err := config.Parse("kuryr.yaml", []byte(m.Data["kuryr.yaml"]))
	node, failed := config.Parse("node.yaml", []byte(m.Data["node.yaml"]))
	if err != nil || failed != nil {
		return nil
	}
	if raven.Controller.Services {
		f.Balancing.Raven = raven.Controller.LoadBalancers
	}
	f.Balancing.SDN = "the embedded SDN, by the kernel of its machine"
	if raven.Provider == config.ProviderNeutron {
		f.Balancing.SDN = "Octavia"
		if of := raven.Neutron.LoadBalancerProvider; of != "" {
			f.Balancing.SDN += ", by its provider " + of
		}
	}
	if node.Node.Services {
		f.Balancing.Nodes = node.Node.LoadBalancers
	}
	return nil
}

// balancerFacts tell of Services that are load balancers of the SDN, and of kube-proxy beside them.
func balancerFacts(ctx context.Context, api client.Client, now func() time.Time, f *doctor.ClusterFacts) error {
	var lbs v1.KuryrLoadBalancerList
	if err := api.List(ctx, &lbs); meta.IsNoMatchError(err) || apierrors.IsNotFound(err) { // a cluster whose Kuryr is from before
		return nil
	} else if err != nil {
		return err
	}
	f.Counts.Balancers = len(lbs.Items)
	for i := range lbs.Items {
		lb := &lbs.Items[i]
		if c := meta.FindStatusCondition(lb.Status.Conditions, v1.ConditionProgrammed); c != nil && c.Reason == v1.ReasonUnserved {
			f.Unserved = c.Message
			continue
		}
		for _, u := range notReady(lb, lb.Status.Conditions) {
			f.Balancers = append(f.Balancers, doctor.Unready{Name: lb.Namespace + "/" + u.Name, Why: u.Why})
		}
		for _, l := range leaving("KuryrLoadBalancer", lb, now()) {
			if c := meta.FindStatusCondition(lb.Status.Conditions, v1.ConditionReady); c != nil && c.Reason == v1.ReasonInUse {
				l.Users = c.Message
			}
			f.Leaving = append(f.Leaving, l)
		}
	}
	var proxy appsv1.DaemonSet
	if err := api.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "kube-proxy"}, &proxy); err != nil {
		return client.IgnoreNotFound(err)
	}
	f.Proxy = doctor.DaemonSetFacts{There: true, Want: int(proxy.Status.DesiredNumberScheduled), Ready: int(proxy.Status.NumberReady)}
	return nil
}

// notReady tells of an object that stays why it is not ready, if it is not.
func notReady(o client.Object, conditions []metav1.Condition) []doctor.Unready {
	if ready := meta.FindStatusCondition(conditions, v1.ConditionReady); o.GetDeletionTimestamp().IsZero() && ready != nil && ready.Status != metav1.ConditionTrue {
		return []doctor.Unready{{Name: o.GetName(), Why: ready.Reason + ": " + ready.Message}}
	}
	return nil
}

// leaving tells of an object that is being deleted.
func leaving(kind string, o client.Object, now time.Time) []doctor.LeavingObject {
	if o.GetDeletionTimestamp().IsZero() {
		return nil
	}
	return []doctor.LeavingObject{{Kind: kind, Name: o.GetName(), For: now.Sub(o.GetDeletionTimestamp().Time)}}
}
