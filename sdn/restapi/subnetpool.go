package restapi

import (
	"context"
	"iter"

	"github.com/kuryr/kuryr/sdn"
)

// SubnetPools are served below /v2.0/subnetpools.
var SubnetPools = Resource[SubnetPool]{"subnetpool", "subnetpools"}

// SubnetPool is a subnet pool in Neutron's JSON.
type SubnetPool struct {
	Common
	Prefixes         []string `json:"prefixes"`
	IPVersion        int      `json:"ip_version"`
	DefaultPrefixLen int      `json:"default_prefixlen"`
	MinPrefixLen     int      `json:"min_prefixlen"`
	MaxPrefixLen     int      `json:"max_prefixlen"`
	Shared           bool     `json:"shared"`
	IsDefault        bool     `json:"is_default"`
	AddressScopeID   *string  `json:"address_scope_id"`
}

// EncodeSubnetPool translates a subnet pool.
func EncodeSubnetPool(p sdn.SubnetPool) SubnetPool {
	out := SubnetPool{
		Common: encodeMeta(p.Meta), Prefixes: []string{}, DefaultPrefixLen: p.DefaultLen, MinPrefixLen: p.MinLen, MaxPrefixLen: p.MaxLen,
		Shared: p.Shared, IPVersion: 4,
	}
	for _, prefix := range p.Prefixes {
		out.Prefixes = append(out.Prefixes, prefix.String())
		out.IPVersion = family(prefix.Addr())
	}
	return out
}

func subnetPoolQuery(f *filter) sdn.SubnetPoolQuery { return sdn.SubnetPoolQuery{Match: f.match()} }

func (s *server) subnetPools() noun[sdn.SubnetPool, SubnetPool, struct{}, struct{}] {
	p := s.p
	return noun[sdn.SubnetPool, SubnetPool, struct{}, struct{}]{
		Resource: SubnetPools, title: "subnet pool", kind: sdn.NounSubnetPool,
		meta: func(o sdn.SubnetPool) sdn.Meta { return o.Meta },
		get:  p.SubnetPool,
		find: func(ctx context.Context, f *filter) iter.Seq2[sdn.SubnetPool, error] {
			return p.FindSubnetPools(ctx, subnetPoolQuery(f))
		},
		encode: EncodeSubnetPool,
	}
}
