package network

import (
	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/sdn"
)

// View is what other packages know of a network of Docker's.
type View struct {
	Ref            string // of its row, which is an owner of its endpoints; "" if it has none
	ID             sdn.ID
	Project        string
	MTU            int
	Subnets        []sdn.Subnet
	NoPortSecurity bool
	Options        api.NetworkOptions // what was asked for
}
