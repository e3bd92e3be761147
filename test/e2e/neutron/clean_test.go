//go:build e2e

package neutron_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// inventory is all there is: lines by where they were seen.
type inventory map[string][]string

// nouns are Neutron's that Kuryr makes objects of, or changes, with the fields that tell
// what it does; those that are used and stay must also be as they were. A floating IP
// tells its port forwardings.
var nouns = map[string]string{
	"networks": "qos_policy_id", "subnets": "network_id", "subnetpools": "prefixes",
	"trunks": "sub_ports", "routers": "external_gateway_info",
	"ports":       "network_id device_id binding:host_id fixed_ips allowed_address_pairs security_groups qos_policy_id",
	"floatingips": "floating_ip_address port_id port_forwardings", "security-groups": "stateful",
	"security-group-rules": "security_group_id direction ethertype protocol",
	"address-groups":       "addresses", "qos/policies": "rules",
}

// ofExtensions are the nouns that not every Neutron has.
var ofExtensions = []string{"trunks", "qos/policies"}

// rows are OVN's, in the northbound and the southbound database, by table and the columns that tell one from another.
var (
	rows = map[string]string{
		"Logical_Switch": "name", "Logical_Switch_Port": "name", "Logical_Router": "name",
		"Logical_Router_Port": "name", "Logical_Router_Static_Route": "ip_prefix,nexthop",
		"NAT": "type,external_ip,logical_ip", "Port_Group": "name", "Address_Set": "name",
		"Load_Balancer": "name", "DHCP_Options": "cidr,external_ids",
		"ACL": "match,external_ids", "QoS": "match,bandwidth,external_ids",
	}
	boundRows = map[string]string{"Datapath_Binding": "external_ids", "Port_Binding": "logical_port,type"}
)

// look takes the inventory of a lab: Neutron, OVN's databases, Open vSwitch and the kernel of each host.
func look(ctx context.Context, l *neutronlab.Lab) (inventory, error) {
	seen := inventory{}
	if err := seen.neutron(ctx, l, func(neutronlab.Object) bool { return true }); err != nil {
		return nil, err
	}
	for program, tables := range map[string]map[string]string{"ovn-nbctl": rows, "ovn-sbctl": boundRows} {
		for table, columns := range tables {
			r := l.Central.Exec(
				ctx, program, "--timeout=20", "--format=csv", "--no-headings", "--columns="+columns,
				"list", table,
			)
			if err := r.Err(); err != nil {
				return nil, err
			}
			seen["OVN "+table] = lines(r)
		}
	}
	for _, h := range l.Hosts {
		if err := seen.host(ctx, h); err != nil {
			return nil, err
		}
	}
	return seen, nil
}

// neutron adds what Neutron has of the objects that count.
func (i inventory) neutron(ctx context.Context, l *neutronlab.Lab, counts func(neutronlab.Object) bool) error {
	for noun, fields := range nouns {
		query := url.Values{"fields": append(strings.Fields(fields), "id", "name", "description", "tags")}
		all, err := l.API().List(ctx, noun, query.Encode())
		var refused *neutronlab.Refused
		if errors.As(err, &refused) && refused.Status == http.StatusNotFound && slices.Contains(ofExtensions, noun) {
			continue
		}
		if err != nil {
			return err
		}
		for _, o := range all {
			if counts(o) {
				i["Neutron "+noun] = append(i["Neutron "+noun], fmt.Sprint(o))
			}
		}
	}
	return nil
}

// host adds what Open vSwitch and the kernel of a host have.
func (i inventory) host(ctx context.Context, h *neutronlab.Host) error {
	r := h.VSwitch(
		ctx, "--timeout=20", "--format=csv", "--no-headings", "--columns=name,type,external_ids",
		"list", "Interface",
	)
	if err := r.Err(); err != nil {
		return err
	}
	// Tunnels and patches come and go with what OVN has to connect.
	i[h.Name+" Open vSwitch"] = slices.DeleteFunc(lines(r), func(line string) bool {
		return strings.HasPrefix(line, "ovn-") || strings.HasPrefix(line, "patch-")
	})
	s, err := h.Snapshot(ctx)
	if err != nil {
		return err
	}
	for _, section := range []string{
		privatehost.Links, privatehost.Addresses, privatehost.Routes, privatehost.Rules,
		privatehost.Namespaces, privatehost.Firewall,
	} {
		i[h.Name+" "+section] = s[section]
	}
	return nil
}

// counters change with traffic.
var counters = regexp.MustCompile(`ovn-installed(-ts)?="?[0-9a-z]+"?,? ?`)

func lines(r privatehost.Result) []string {
	if r.Out() == "" {
		return nil
	}
	return strings.Split(counters.ReplaceAllString(r.Out(), ""), "\n")
}

// diff tells what came and what went.
func (i inventory) diff(later inventory) (diff []string) {
	for _, where := range slices.Sorted(maps.Keys(later)) {
		for _, pair := range []struct {
			sign        string
			these, than []string
		}{{"+", later[where], i[where]}, {"-", i[where], later[where]}} {
			left := slices.Clone(pair.than)
			for _, line := range pair.these {
				if n := slices.Index(left, line); n >= 0 {
					left = slices.Delete(left, n, n+1)
					continue
				}
				diff = append(diff, fmt.Sprintf("%s %s: %s", pair.sign, where, line))
			}
		}
	}
	return diff
}

// leavesNothing sees to it that the end of the test finds Neutron, OVN, Open vSwitch and the kernel as they are now.
func (r *rig) leavesNothing() {
	r.Helper()
	before, err := look(r.ctx, r.lab)
	if err != nil {
		r.Fatal(err)
	}
	r.fresh(func(ctx context.Context) error {
		// Clean-up that is owed to Neutron is done behind what Docker was told.
		return neutronlab.Until(ctx, func(ctx context.Context) error {
			after, err := look(ctx, r.lab)
			if err != nil {
				return err
			}
			if diff := before.diff(after); len(diff) > 0 {
				return errors.New("the lab is not as it was before the test:\n" + strings.Join(diff, "\n"))
			}
			return nil
		})
	})
}
