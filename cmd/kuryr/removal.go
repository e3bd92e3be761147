//go:build linux && kubernetes

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/uninstall"
	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// removalSteps are what "kuryr uninstall kubernetes --apply" does, for people; %[1]s is the namespace.
const removalSteps = `# 1. No pod may have a port of Kuryr's any more. This shows those that do:
kubectl get kuryrports -l openstack.org/portStatus=bound -o wide

# 2. On each node: container runtimes are told of no network any more. Kuryr still runs.
rm -f /etc/cni/net.d/10-kuryr.conflist

# 3. The resources and their definitions, one after the other, while Raven takes what they stand for from the SDN.
#    Without Raven this waits for ever: nobody else takes the finalizers away. A Raven that starts anew once a definition has gone ends at once: --apply keeps them until all are empty.
kubectl delete crd kuryrloadbalancers.openstack.org
kubectl delete crd kuryrnetworks.openstack.org
kubectl delete crd kuryrportpools.openstack.org
kubectl delete crd kuryrports.openstack.org

# 4. Raven, the nodes' daemons and the embedded SDN. Where helm has installed Kuryr: helm uninstall kuryr -n %[1]s, which does step 7 too.
kubectl -n %[1]s delete daemonset,deployment,poddisruptionbudget -l app.kubernetes.io/part-of=kuryr
kubectl -n %[1]s wait --for=delete pod -l app.kubernetes.io/part-of=kuryr

# 5. On each node, where Kuryr balanced Services: what did so is in the kernel until a reboot, or
kuryr uninstall node

# 6. What Kuryr has said of nodes: their condition NetworkUnavailable, if its reason begins with Kuryr, which the next network sets itself, and
kubectl label node --all openstack.org/kuryr-sdn-

# 7. All else.
kubectl delete validatingadmissionpolicybinding,validatingadmissionpolicy,clusterrolebinding,clusterrole -l app.kubernetes.io/part-of=kuryr
kubectl delete namespace %[1]s

# 8. On each node what Kuryr had there. Where the embedded SDN ran its store too, and what is in the kernel: a reboot, or "kuryr down" where the host has kuryr.
rm -rf /opt/cni/bin/kuryr /opt/cni/bin/kuryr-cni-api /usr/libexec/kubernetes/kubelet-plugins/net/exec/kuryr /usr/libexec/kubernetes/kubelet-plugins/net/exec/kuryr-cni-api /var/lib/kuryr /run/kuryr
`

// uninstallKubernetes prints the steps, or takes them.
func (a *app) uninstallKubernetes(c *cobra.Command, f removalFlags) error {
	if !f.apply {
		_, err := fmt.Fprintf(a.out, removalSteps, f.namespace)
		return err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return err
	}
	var clock serverClock
	api, err := clusterClient(f.kubeconfig, f.context, scheme, &clock)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), f.timeout)
	defer cancel()
	err = uninstall.Remover{
		API: api, Namespace: f.namespace, Force: f.force, Patience: min(f.timeout/8, time.Minute), Now: clock.now,
		Said: func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) },
	}.Remove(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, `Kuryr is out of the cluster. On the nodes /var/lib/kuryr and /run/kuryr are left, and where the embedded SDN ran what is in the kernel: reboot it, or "kuryr down" there, and remove the folders.`)
	return err
}
