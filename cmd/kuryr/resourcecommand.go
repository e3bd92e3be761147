//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/spf13/cobra"
)

// resourceCommand makes the commands of a resource: list and show.
func (a *app) resourceCommand(r *untypedResource) *cobra.Command {
	word := strings.ReplaceAll(r.member, "_", "")
	parent := group(&cobra.Command{
		Use: word, Short: "List and show " + r.title + "s",
		Example: fmt.Sprintf("  kuryr %[1]s list\n  kuryr %[1]s list -o json\n  kuryr %[1]s show NAME", word),
	})
	var filters, tags []string
	var output string
	list := &cobra.Command{
		Use: "list", Short: "List " + r.title + "s", Args: noArgs,
		Long: "List " + r.title + "s, sorted by name. --filter NAME=VALUE keeps those whose attribute has the value: " +
			strings.Join(append([]string{"id", "name"}, r.filters...), ", ") + ". JSON and YAML have all attributes, by their names in the Neutron API.",
		Example: fmt.Sprintf("  kuryr %[1]s list --filter id=0f3c0bd7-…\n  kuryr %[1]s list -o yaml", word),
		RunE: func(c *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output)
			if err != nil {
				return usageError{err}
			}
			for _, f := range filters {
				if !strings.Contains(f, "=") {
					return usageError{fmt.Errorf("--filter %q: want NAME=VALUE", f)}
				}
			}
			client, err := a.client(c)
			if err != nil {
				return err
			}
			// JSON has the SDN's names, for which Docker need not answer.
			var names userNames
			if format == table.Table || len(filters) > 0 {
				names = a.userNames(c, client.SDN())
			}
			query := url.Values{"tags": tags}
			if len(tags) == 0 {
				delete(query, "tags")
			}
			var named []string // by the users' name or the SDN's, of which it knows only its own
			for _, f := range filters {
				name, value, _ := strings.Cut(f, "=")
				if name == "name" {
					named = append(named, value)
					continue
				}
				if value, err = idOf(c.Context(), client.SDN(), names, name, value); err != nil {
					return err
				}
				query.Add(name, value)
			}
			all, err := r.listObjects(c.Context(), client.SDN(), query)
			if err != nil {
				return err
			}
			if len(named) > 0 {
				all = slices.DeleteFunc(all, func(e any) bool {
					return !slices.Contains(named, r.name(names, e)) && !slices.Contains(named, r.commonOf(e).Name)
				})
			}
			sortslice.Func(all, func(x, y any) int {
				cx, cy := r.commonOf(x), r.commonOf(y)
				by := table.CompareNatural(r.name(names, x), r.name(names, y))
				return cmp.Or(by, strings.Compare(cx.ID, cy.ID))
			})
			columns := slices.Concat(r.identity(names), r.listColumns())
			if format == table.Table && r.more {
				objects, err := known(c.Context(), client, names)
				if err != nil {
					return err
				}
				columns = append(columns, r.moreColumns(objects, names)...)
			}
			return table.List(a.out, format, all, columns)
		},
	}
	list.Flags().StringArrayVar(&filters, "filter", nil, "`NAME=VALUE`; may be repeated")
	list.Flags().StringArrayVar(&tags, "tag", nil, "only those that have this `tag`; may be repeated")
	show := &cobra.Command{
		Use: "show NAME|ID", Short: "Show one " + r.title, Args: exactly(1, "the name or the id of one "+r.title),
		Example: fmt.Sprintf("  kuryr %[1]s show 0f3c0bd7-… -o json", word),
		RunE: func(c *cobra.Command, args []string) error {
			format, err := table.ParseFormat(output)
			if err != nil {
				return usageError{err}
			}
			client, err := a.client(c)
			if err != nil {
				return err
			}
			names := a.userNames(c, client.SDN())
			one, err := r.find(c.Context(), client.SDN(), names, args[0])
			if err != nil {
				return err
			}
			if one, err = r.filled(c.Context(), client.SDN(), one); err != nil {
				return err
			}
			columns := slices.Concat(r.identity(names), r.listColumns(), r.showColumns(), r.meta())
			if format == table.Table && r.more {
				objects, err := known(c.Context(), client, names)
				if err != nil {
					return err
				}
				columns = append(columns, r.moreColumns(objects, names)...)
			}
			return table.Show(a.out, format, one, columns)
		},
		ValidArgsFunction: completeOne(a, r),
	}
	for _, c := range []*cobra.Command{list, show} {
		addOutput(c, &output)
	}
	parent.AddCommand(list, show)
	return parent
}

// completeTimeout is how long a shell waits for what could follow.
const completeTimeout = 2 * time.Second

// completeOne completes the only argument of a command.
func completeOne(a *app, r *untypedResource) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completions(a, c, r), cobra.ShellCompDirectiveNoFileComp
	}
}

// completions are the names and the ids of all objects, and nothing where kuryr does not answer.
func completions(a *app, c *cobra.Command, r *untypedResource) []string {
	client, err := a.client(c)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.Context(), completeTimeout)
	defer cancel()
	c.SetContext(ctx)
	all, err := r.listObjects(ctx, client.SDN(), nil)
	if err != nil {
		return nil
	}
	names := a.userNames(c, client.SDN())
	var out []string
	for _, e := range all {
		id, name := r.commonOf(e).ID, table.Printable(r.name(names, e))
		if name != "" {
			out = append(out, cobra.CompletionWithDesc(name, id))
		}
		out = append(out, cobra.CompletionWithDesc(id, name))
	}
	return out
}

func addOutput(c *cobra.Command, into *string) {
	c.Flags().StringVarP(into, "output", "o", string(table.Table), "`form` of the output: table, json or yaml")
	complete(c, "output", "table", "json", "yaml")
}

// find returns the object of this id, otherwise the one of this name: the SDN's, or its
// users'.
func (r *untypedResource) find(
	ctx context.Context, client *api.Client, names userNames, id string,
) (any, error) {
	one, err := r.getObject(ctx, client, id)
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Status != http.StatusNotFound {
		return one, err
	}
	named, err := r.listObjects(ctx, client, url.Values{"name": {id}})
	if err == nil && len(named) == 0 && r.called {
		var all []any
		all, err = r.listObjects(ctx, client, nil)
		for _, e := range all {
			if r.calledName(names, e) == id || r.isNamed(names, e, id) {
				named = append(named, e)
			}
		}
	}
	switch {
	case err != nil:
		return one, err
	case len(named) == 0:
		return one, fmt.Errorf("there is no %s with the name or id %q", r.title, id)
	case len(named) > 1:
		var ids []string
		for _, e := range named {
			ids = append(ids, r.commonOf(e).ID)
		}
		return one, fmt.Errorf("%d %ss have the name %q, with the ids %s", len(named), r.title, id, strings.Join(ids, ", "))
	}
	return named[0], nil
}

// idOf is the id that a filter by id stands for, where a name is given.
func idOf(ctx context.Context, client *api.Client, names userNames, filter, value string) (string, error) {
	if uuid.Validate(value) == nil {
		return value, nil
	}
	switch filter {
	case "network_id":
		e, err := networkResource.find(ctx, client, names, value)
		return e.ID, err
	case "port_id":
		e, err := portResource.find(ctx, client, names, value)
		return e.ID, err
	case "router_id":
		e, err := routerResource.find(ctx, client, names, value)
		return e.ID, err
	}
	return value, nil
}

// name is the users' name of an object, otherwise the SDN's.
func (r *untypedResource) name(names userNames, e any) string {
	if name := r.calledName(names, e); name != "" {
		return name
	}
	return r.commonOf(e).Name
}

// identity returns the first columns of every resource.
func (r *untypedResource) identity(names userNames) []table.Column[any] {
	return []table.Column[any]{
		{Name: "id", Value: func(e any) string { return r.commonOf(e).ID }},
		{Name: "name", Value: func(e any) string { return r.name(names, e) }},
	}
}

// meta returns the last columns of one object of every resource.
func (r *untypedResource) meta() []table.Column[any] {
	return []table.Column[any]{
		{Name: "name in the SDN", Value: func(e any) string { return r.commonOf(e).Name }},
		{Name: "tags", Value: func(e any) string { return lines(r.commonOf(e).Tags) }},
		{Name: "description", Value: func(e any) string { return r.commonOf(e).Description }},
		{Name: "project", Value: func(e any) string { return r.commonOf(e).ProjectID }},
		{Name: "revision", Value: func(e any) string { return strconv.FormatInt(r.commonOf(e).Revision, 10) }},
		{Name: "created", Value: func(e any) string { return r.commonOf(e).CreatedAt }},
		{Name: "updated", Value: func(e any) string { return r.commonOf(e).UpdatedAt }},
	}
}
