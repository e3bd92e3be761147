package docker

import (
	"context"

	"github.com/kuryr/kuryr/docker/api"
	networks "github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/sdn"
)

// lookUpGroups checks, before a network of the pools is made, that its endpoints will find the
// security groups of its options. The network will be of the project of its pools. Without
// pools the project is unknown, and several groups with one name are left to CreateEndpoint.
func (d *Driver) lookUpGroups(
	ctx context.Context, n api.NetworkOptions, pools map[*api.IPAMData]enginePool,
) error {
	option := "option " + api.OptGroups
	for _, pool := range pools {
		_, err := networks.Groups(ctx, d.sdn, n.Groups, pool.Project, option)
		return err
	}
	if len(n.Groups) > 0 && !d.sdn.Capabilities().SecurityGroups {
		return refuse("%s: this SDN has no security groups", option)
	}
	for _, name := range n.Groups {
		query := sdn.SecurityGroupQuery{Match: networks.NameOrID(name)}
		_, found, err := sdn.First(d.sdn.FindSecurityGroups(ctx, query))
		if err != nil {
			return err
		}
		if !found {
			return refuse("%s: there is no security group %q", option, api.Clip(name, 100))
		}
	}
	return nil
}
