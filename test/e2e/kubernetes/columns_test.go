//go:build e2e

package kubernetes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
)

// columns checks what kubectl shows of a port with addresses of both families, of a pool and of a network.
func (r *rig) columns(api client.Client) {
	r.Helper()
	port := kuryrPort("dual", "node1", kuryrv1.PortCreated)
	port.Finalizers = nil
	port.Spec.Network.Subnets = append(port.Spec.Network.Subnets, kuryrv1.PortSubnet{
		ID: "s6", CIDR: "fd00::/64", IPs: []string{"fd00::5"},
	})
	r.must(api.Create(r.ctx, port))
	network := &kuryrv1.KuryrNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: "dual"},
		Spec:       kuryrv1.KuryrNetworkSpec{Namespace: "blue", UID: "u"},
	}
	r.must(api.Create(r.ctx, network))
	network.Status.Subnets = []kuryrv1.NetworkSubnet{{ID: "s4", CIDR: "10.1.0.0/16"}, {ID: "s6", CIDR: "fd00::/64"}}
	r.must(api.Status().Update(r.ctx, network))
	balancer := &kuryrv1.KuryrLoadBalancer{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "dual",
	}, Spec: kuryrv1.KuryrLoadBalancerSpec{
		ServiceUID: "u", Type: "LoadBalancer", VIPs: []string{"10.96.0.5", "fd00:96::5"},
		FloatingIP: &kuryrv1.LoadBalancerFloatingIP{},
	}}
	r.must(api.Create(r.ctx, balancer))
	balancer.Status.Members, balancer.Status.FloatingIP = 3, &kuryrv1.LoadBalancerFloatingIPStatus{
		Address: "203.0.113.7", Owner: kuryrv1.FloatingIPOfKuryr,
	}
	r.must(api.Status().Update(r.ctx, balancer))
	for resource, want := range map[string]map[string]string{
		"kuryrloadbalancers": {
			"Type": "LoadBalancer", "VIP": "10.96.0.5", "Second VIP": "fd00:96::5",
			"Floating IP": "203.0.113.7", "Members": "3",
		},
		"kuryrports": {
			"Address": "10.1.0.5", "Second address": "fd00::5", "MAC": "fa:16:3e:bf:84:ff", "Node": "node1", "Status": "created",
		},
		"kuryrnetworks":  {"CIDR": "10.1.0.0/16", "Second CIDR": "fd00::/64", "Namespace": "blue"},
		"kuryrportpools": {"Node": "node1", "Minimum": "2", "Maximum": "4"},
	} {
		rows := r.shown(resource)
		if len(rows) != 1 {
			r.Fatalf("%d rows of %s", len(rows), resource)
		}
		shown := rows[0]
		for column, value := range want {
			if shown[column] != value {
				r.Errorf("kubectl get %s shows %q under %s, want %q", resource, shown[column], strings.ToUpper(column), value)
			}
		}
	}
}

// statuses waits until kubectl shows the status bound for the ports of so many pods, and available
// for all others.
func (w *whole) statuses(pods int) {
	w.Helper()
	w.until(func(context.Context) error {
		count := map[string]int{}
		for _, row := range w.shown("kuryrports") {
			count[row["Status"]]++
		}
		bound, available := count[string(kuryrv1.PortBound)], count[string(kuryrv1.PortAvailable)]
		delete(count, string(kuryrv1.PortBound))
		delete(count, string(kuryrv1.PortAvailable))
		if bound != pods+w.standing || available == 0 || len(count) > 0 {
			return fmt.Errorf("kubectl shows %d ports as bound, %d as available, others as %v", bound, available, count)
		}
		return nil
	})
}

// shown returns the rows of what the API server has kubectl show of a resource, by column.
func (r *rig) shown(resource string) (rows []map[string]string) {
	r.Helper()
	https, err := rest.HTTPClientFor(r.Config)
	r.must(err)
	request, err := http.NewRequestWithContext(
		r.ctx, http.MethodGet, r.Config.Host+"/apis/"+kuryrv1.GroupVersion.String()+"/"+resource,
		nil,
	)
	r.must(err)
	request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	answer, err := https.Do(request)
	r.must(err)
	defer answer.Body.Close()
	var table metav1.Table
	r.must(json.NewDecoder(answer.Body).Decode(&table))
	for _, cells := range table.Rows {
		row := map[string]string{}
		for i, c := range table.ColumnDefinitions {
			row[c.Name] = fmt.Sprint(cells.Cells[i])
		}
		rows = append(rows, row)
	}
	return rows
}
