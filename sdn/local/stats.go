package local

import (
	"context"

	"github.com/kuryr/kuryr/sdn"
	"go.etcd.io/bbolt"
)

// Stats are figures for metrics.
type Stats struct {
	Objects   map[sdn.Noun]int64         // "forward" and the SDN's own ports among them
	Subnets   map[sdn.ID]sdn.SubnetUsage // by subnet
	Unsettled int                        // domains in which the kernel does not yet follow the store
	Bytes     int64                      // of the store
}

// Stats costs by the number of networks, subnets and routers, not of ports or addresses.
func (p *Provider) Stats(ctx context.Context) (Stats, error) {
	s := Stats{}
	var err error
	s.Objects, s.Subnets, err = p.Count(ctx)
	if err == nil {
		err = p.db.View(func(b *bbolt.Tx) error {
			s.Bytes = b.Size()
			return nil
		})
	}
	s.Unsettled = p.sync.unsettled()
	return s, err
}
