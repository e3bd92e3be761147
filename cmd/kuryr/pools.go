//go:build linux && kubernetes

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func (a *app) fillPool(c *cobra.Command, args []string) error {
	set := map[string]string{v1.AnnotationDrained: ""}
	if len(args) == 2 {
		if n, err := strconv.Atoi(args[1]); err != nil || n < 1 {
			return usageError{fmt.Errorf("%s: want a number of ports, not %q", c.CommandPath(), args[1])}
		}
		set[v1.AnnotationFill] = args[1]
	}
	return a.annotatePool(c, args[0], set)
}

func (a *app) drainPool(c *cobra.Command, name string) error {
	return a.annotatePool(c, name, map[string]string{v1.AnnotationDrained: "true", v1.AnnotationFill: ""})
}

// poolRow is a pool as it is listed.
type poolRow struct {
	Name      string `json:"name"`
	Node      string `json:"node"`
	Network   string `json:"network"`
	Available int    `json:"available"`
	Bound     int    `json:"bound"`
	Pending   int    `json:"pending"`
	Minimum   int    `json:"minimum"`
	Maximum   int    `json:"maximum"`
	Batch     int    `json:"batch"`
	TTL       string `json:"ttl,omitempty"`
	State     string `json:"state"`
	Message   string `json:"message,omitempty"`
}

func rowOf(p v1.KuryrPortPool) poolRow {
	row := poolRow{
		Name: p.Name, Node: p.Spec.Node, Network: p.Spec.NetworkName, Available: p.Status.Available, Bound: p.Status.Bound, Pending: len(p.Status.Pending),
		Minimum: p.Spec.Minimum, Maximum: p.Spec.Maximum, Batch: p.Spec.Batch, State: "new",
	}
	if row.Network == "" {
		row.Network = p.Spec.Network
	}
	if p.Spec.TTL != nil {
		row.TTL = p.Spec.TTL.Duration.String()
	}
	if ready := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady); ready != nil {
		row.State, row.Message = ready.Reason, ready.Message
	}
	switch {
	case !p.DeletionTimestamp.IsZero():
		row.State = v1.ReasonDeleting
	case p.Annotations[v1.AnnotationDrained] == "true":
		row.State = "Drained"
	}
	return row
}

func (a *app) listPools(c *cobra.Command, output, node string) error {
	format, err := table.ParseFormat(output)
	if err != nil {
		return usageError{err}
	}
	api, err := a.cluster(c)
	if err != nil {
		return err
	}
	var found v1.KuryrPortPoolList
	var of []client.ListOption
	if node != "" {
		of = append(of, client.MatchingLabels{v1.LabelNode: v1.NodeLabel(node)})
	}
	if err := api.List(c.Context(), &found, of...); err != nil {
		return err
	}
	var rows []poolRow
	for _, p := range found.Items {
		rows = append(rows, rowOf(p))
	}
	slices.SortFunc(rows, func(a, b poolRow) int { return strings.Compare(a.Name, b.Name) })
	number := func(of func(poolRow) int) func(poolRow) string {
		return func(r poolRow) string { return strconv.Itoa(of(r)) }
	}
	return table.List(a.out, format, rows, []table.Column[poolRow]{
		{Name: "name", Value: func(r poolRow) string { return r.Name }},
		{Name: "node", Value: func(r poolRow) string { return r.Node }},
		{Name: "network", Value: func(r poolRow) string { return r.Network }},
		{Name: "available", Value: number(func(r poolRow) int { return r.Available })},
		{Name: "bound", Value: number(func(r poolRow) int { return r.Bound })},
		{Name: "minimum", Value: number(func(r poolRow) int { return r.Minimum })},
		{Name: "maximum", Value: number(func(r poolRow) int { return r.Maximum })},
		{Name: "state", Value: func(r poolRow) string { return r.State }},
	})
}

// poolShown is a pool with its ports.
type poolShown struct {
	poolRow
	Ports []portShown `json:"ports"`
}

type portShown struct {
	ID        string   `json:"id"`
	Status    string   `json:"status"`
	Addresses []string `json:"addresses"`
	Pod       string   `json:"pod,omitempty"`
}

func (a *app) showPool(c *cobra.Command, output, name string) error {
	format, err := table.ParseFormat(output)
	if err != nil {
		return usageError{err}
	}
	api, err := a.cluster(c)
	if err != nil {
		return err
	}
	var p v1.KuryrPortPool
	if err := api.Get(c.Context(), types.NamespacedName{Name: name}, &p); err != nil {
		return err
	}
	var ports v1.KuryrPortList
	if err := api.List(c.Context(), &ports, client.MatchingLabels{v1.LabelPool: name}); err != nil {
		return err
	}
	shown := poolShown{poolRow: rowOf(p), Ports: []portShown{}}
	for _, port := range ports.Items {
		one := portShown{ID: port.Name, Status: port.Labels[v1.LabelPortStatus], Addresses: []string{}}
		for _, s := range port.Spec.Network.Subnets {
			one.Addresses = append(one.Addresses, s.IPs...)
		}
		if port.Status.Pod != nil {
			one.Pod = port.Status.Pod.Namespace + "/" + port.Status.Pod.Name
		}
		shown.Ports = append(shown.Ports, one)
	}
	return table.Show(a.out, format, shown, []table.Column[poolShown]{
		{Name: "name", Value: func(p poolShown) string { return p.Name }},
		{Name: "node", Value: func(p poolShown) string { return p.Node }},
		{Name: "network", Value: func(p poolShown) string { return p.Network }},
		{Name: "policy", Value: func(p poolShown) string {
			return fmt.Sprintf("minimum %d, maximum %d, batch %d, ttl %s", p.Minimum, p.Maximum, p.Batch, p.TTL)
		}},
		{Name: "state", Value: func(p poolShown) string { return strings.TrimSpace(p.State + " " + p.Message) }},
		{Name: "ports", Value: func(p poolShown) string {
			var lines []string
			for _, port := range p.Ports {
				lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", port.ID, port.Status, strings.Join(port.Addresses, ","), port.Pod)))
			}
			return strings.Join(lines, "\n")
		}},
	})
}

// annotatePool asks something of a pool; an empty value takes an annotation away.
func (a *app) annotatePool(c *cobra.Command, name string, set map[string]string) error {
	api, err := a.cluster(c)
	if err != nil {
		return err
	}
	var p v1.KuryrPortPool
	if err := api.Get(c.Context(), types.NamespacedName{Name: name}, &p); err != nil {
		return err
	}
	if !p.DeletionTimestamp.IsZero() {
		return errors.New("pool " + name + " is being deleted")
	}
	before := p.DeepCopy()
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	for name, value := range set {
		if p.Annotations[name] = value; value == "" {
			delete(p.Annotations, name)
		}
	}
	return api.Patch(c.Context(), &p, client.MergeFrom(before))
}
