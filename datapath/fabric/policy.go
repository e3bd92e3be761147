//go:build linux

package fabric

import (
	"context"
	"errors"

	"github.com/kuryr/kuryr/datapath/policy"
)

// UpdateGroups tells the domain's filter what these security groups and address groups are now.
func (f *Fabric) UpdateGroups(_ context.Context, _ string, groups []policy.Group, sets []policy.Set) error {
	if len(groups)+len(sets) > 0 {
		return errors.ErrUnsupported
	}
	return nil
}

// Supports tells what this kernel can enforce.
func (f *Fabric) Supports() policy.Support { return policy.Support{} }
