//go:build linux

package fabric

import (
	"context"
	"fmt"
	"os"

	"github.com/kuryr/kuryr/datapath/lb"
)

// UpdateFrontends has the domain balance no more where the keys are, and balance what is set, at the cost of what changes. Where this process has not told the
// domain what it balances, it asks for all of that, which then takes the place of the change. Connections go on. The error is os.ErrNotExist if the domain
// has no namespace and something is to be set.
func (f *Fabric) UpdateFrontends(ctx context.Context, domain string, remove []lb.Key, set []lb.Frontend, all func() ([]lb.Frontend, error)) error {
	return fmt.Errorf("load balancers of domain %s: %w", domain, os.ErrInvalid)
}

// UpdateVIPs has the domain answer at addresses no more, and at others.
func (f *Fabric) UpdateVIPs(ctx context.Context, domain string, remove, add []VIP) error {
	return fmt.Errorf("VIPs of domain %s: %w", domain, os.ErrInvalid)
}
