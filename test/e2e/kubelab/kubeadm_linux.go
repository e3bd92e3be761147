package kubelab

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// publishInfo creates what kubeadm leaves for nodes that join: the ConfigMap
// kube-public/cluster-info, whose kubeconfig has the API server and no user.
func (c *Cluster) publishInfo(ctx context.Context) error {
	config := api.NewConfig()
	config.Clusters[""] = &api.Cluster{Server: c.Endpoint(), CertificateAuthorityData: c.ca.pem}
	text, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespacePublic}}
	_, err = c.Client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) { // the API server creates it too
		return err
	}
	info := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": string(text)},
	}
	_, err = c.Client.CoreV1().ConfigMaps(metav1.NamespacePublic).Create(ctx, info, metav1.CreateOptions{})
	return err
}
