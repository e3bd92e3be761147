package kubelab

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	texttemplate "text/template"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// dnsImage is CoreDNS of the folder that hack/kubernetes.sh prints.
const dnsImage = "registry.k8s.io/coredns/coredns:kuryr-test"

//go:embed dns.yaml
var dnsManifest string

// DeployDNS gives the cluster its name server: CoreDNS, which finds the API server by its
// ClusterIP, behind the Service kube-dns at ServiceDNS, which every pod's resolv.conf
// names. Options.DNS must have been set. It does not wait: WaitDNS does.
func (c *Cluster) DeployDNS(ctx context.Context) error {
	t, err := texttemplate.New("dns").Parse(dnsManifest)
	if err != nil {
		return err
	}
	var text strings.Builder
	if err := t.Execute(&text, map[string]string{"Image": dnsImage, "Address": ServiceDNS}); err != nil {
		return err
	}
	return c.Apply(ctx, []byte(text.String()))
}

// WaitDNS waits until CoreDNS says that it is ready: it has then read the cluster's Services by way of their first one.
func (c *Cluster) WaitDNS(ctx context.Context) error {
	return Until(ctx, c.Client.CoreV1().Pods(
		metav1.NamespaceSystem,
	), metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"}, func(list *corev1.PodList) error {
		for _, p := range list.Items {
			for _, condition := range p.Status.Conditions {
				if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
					return nil
				}
			}
		}
		return fmt.Errorf("of %d pods of CoreDNS none is ready", len(list.Items))
	})
}
