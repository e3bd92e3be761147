//go:build linux && kubernetes

package main

import (
	"context"
	"time"

	"github.com/kuryr/kuryr/internal/doctor"
	"github.com/kuryr/kuryr/internal/table"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/uninstall"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
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
	api, err := a.cluster(c)
	if err != nil {
		return err
	}
	report := doctorReport{Findings: doctor.Cluster(clusterFacts(c.Context(), api, namespace, time.Now()))}
	doctor.WorstFirst(report.Findings)
	report.Verdict = doctor.Worst(report.Findings)
	if err := a.printDoctor(format, report); err != nil {
		return err
	}
	if report.Verdict == doctor.Problem {
		return failed{}
	}
	return nil
}

// clusterFacts asks the API server for all that is judged. The first thing that it does not tell is the error.
func clusterFacts(ctx context.Context, api client.Client, namespace string, now time.Time) (f doctor.ClusterFacts) {
	for _, gather := range []func(context.Context, client.Client, string, time.Time, *doctor.ClusterFacts) error{leaseFacts, nodeFacts, networkFacts, poolFacts, portFacts} {
		if f.Err = gather(ctx, api, namespace, now, &f); f.Err != nil {
			return f
		}
	}
	return f
}

func leaseFacts(ctx context.Context, api client.Client, namespace string, now time.Time, f *doctor.ClusterFacts) error {
	var lease coordinationv1.Lease
	f.Lease.Name = namespace + "/kuryr-controller"
	err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "kuryr-controller"}, &lease)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	f.Lease.There, f.Lease.Held = true, uninstall.Leads(lease.Spec, now)
	if lease.Spec.HolderIdentity != nil {
		f.Lease.Holder = *lease.Spec.HolderIdentity
	}
	return nil
}

func nodeFacts(ctx context.Context, api client.Client, namespace string, _ time.Time, f *doctor.ClusterFacts) error {
	var nodes corev1.NodeList
	if err := api.List(ctx, &nodes); err != nil {
		return err
	}
	f.Counts.Nodes = len(nodes.Items)
	for _, n := range nodes.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
				f.Nodes = append(f.Nodes, doctor.Unready{Name: n.Name, Why: c.Reason + ": " + c.Message})
			}
		}
	}
	var daemons appsv1.DaemonSet
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "kuryr-node"}, &daemons); err != nil {
		return client.IgnoreNotFound(err) // the daemons may be systemd's
	}
	f.Daemons = doctor.DaemonSetFacts{There: true, Want: int(daemons.Status.DesiredNumberScheduled), Ready: int(daemons.Status.NumberReady)}
	return nil
}

func networkFacts(ctx context.Context, api client.Client, _ string, now time.Time, f *doctor.ClusterFacts) error {
	var networks v1.KuryrNetworkList
	if err := api.List(ctx, &networks); err != nil {
		return err
	}
	f.Counts.Networks = len(networks.Items)
	for i := range networks.Items {
		n := &networks.Items[i]
		f.Names = append(f.Names, notReady(n, n.Status.Conditions)...)
		f.Leaving = append(f.Leaving, leaving("KuryrNetwork", n, now)...)
	}
	return nil
}

func poolFacts(ctx context.Context, api client.Client, _ string, now time.Time, f *doctor.ClusterFacts) error {
	var pools v1.KuryrPortPoolList
	if err := api.List(ctx, &pools); err != nil {
		return err
	}
	f.Counts.Pools = len(pools.Items)
	for i := range pools.Items {
		p := &pools.Items[i]
		f.Pools = append(f.Pools, notReady(p, p.Status.Conditions)...)
		f.Leaving = append(f.Leaving, leaving("KuryrPortPool", p, now)...)
	}
	return nil
}

func portFacts(ctx context.Context, api client.Client, _ string, now time.Time, f *doctor.ClusterFacts) error {
	var ports v1.KuryrPortList
	if err := api.List(ctx, &ports); err != nil {
		return err
	}
	f.Counts.Ports = len(ports.Items)
	for i := range ports.Items {
		p := &ports.Items[i]
		for _, l := range leaving("KuryrPort", p, now) {
			if p.Status.Pod != nil {
				l.Pod = p.Status.Pod.Namespace + "/" + p.Status.Pod.Name
			}
			f.Leaving = append(f.Leaving, l)
		}
	}
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
