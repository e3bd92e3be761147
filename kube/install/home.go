package install

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// sdnName is what Deployment, account and pods of the embedded SDN are called.
const sdnName = "kuryr-sdn"

// LabelSDN is the label of the node, with any value, on which the embedded SDN has its store: it runs on no other.
const LabelSDN = "openstack.org/kuryr-sdn"

// Home sees to it that a node has [LabelSDN], without which the embedded SDN runs nowhere: its store is a folder of its node, and it must never begin with an empty one on another.
// A node that has the label keeps it. Else it is the node where the SDN runs, or the only one that there is; which of several it is to be, or where its pods are on several, Home does not guess, and gives "" then.
// changed tells whether the label was set, or in a dry run would be. Several nodes with the label are an error.
func (a Applier) Home(ctx context.Context, namespace string) (name string, changed bool, err error) {
	var nodes corev1.NodeList
	if err := a.API.List(ctx, &nodes); err != nil {
		return "", false, err
	}
	var labelled, all []string
	for _, n := range nodes.Items {
		all = append(all, n.Name)
		if _, has := n.Labels[LabelSDN]; has {
			labelled = append(labelled, n.Name)
		}
	}
	switch {
	case len(labelled) == 1:
		return labelled[0], false, nil
	case len(labelled) > 1:
		return "", false, fmt.Errorf("the label %s: want it on the one node that has the SDN's store, not on %s", LabelSDN, strings.Join(labelled, ", "))
	}
	var pods corev1.PodList
	if err := a.API.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{"app.kubernetes.io/name": sdnName}); err != nil {
		return "", false, err
	}
	for _, p := range pods.Items {
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed // such as evicted, perhaps long ago
		switch {
		case ended || p.Spec.NodeName == name || !slices.Contains(all, p.Spec.NodeName):
		case name != "":
			return "", false, nil
		default:
			name = p.Spec.NodeName
		}
	}
	if name == "" && len(all) == 1 {
		name = all[0]
	}
	if name == "" || a.DryRun {
		return name, name != "", nil
	}
	n := &corev1.Node{}
	n.Name = name
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{%q:""}}}`, LabelSDN))
	return name, true, a.API.Patch(ctx, n, patch, client.FieldOwner(Owner))
}
