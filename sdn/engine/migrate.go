package engine

import (
	"errors"
)

// SchemaVersion is the version of the form of the rows and indexes.
const SchemaVersion = 7

// Migrations change the tables from a version to the next.
var Migrations = map[int]func(Tx) error{
	1: func(b Tx) error {
		if err := subnetPools.index(b, "name", "prefix"); err != nil {
			return err
		}
		return addVia(b)
	},
	// Trunks, security groups, address groups and QoS policies, of which an older store has none,
	// so that its ports are in none and have none either; and what projects have.
	2: func(b Tx) error {
		return errors.Join(Ports.index(b, "project", "group", "qos", "trunk"), Networks.index(b, "project"), Routers.index(b, "project"), FloatingIPs.index(b, "project"))
	},
	// What a project sees.
	3: func(b Tx) error {
		return errors.Join(Networks.index(b, "shared"), Subnets.index(b, "project"), subnetPools.index(b, "project", "shared"), AddressGroups.index(b, "project"))
	},
	// Load balancers, of which an older store has none.
	4: func(Tx) error { return nil },
	// Keys are of projects, which have quotas of more nouns, and by default.
	5: func(b Tx) error {
		return errors.Join(rebuildKeys(b), ownForwards(b), countAll(b), keepQuotas(b))
	},
	// RBAC policies, and networks and routers that are switched off, of which an older store has none.
	6: func(Tx) error { return nil },
}
