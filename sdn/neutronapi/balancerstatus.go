package neutronapi

import (
	"net/http"

	"github.com/kuryr/kuryr/sdn"
)

// statusNode is an object in the tree of statuses.
type statusNode struct {
	ID           string        `json:"id"`
	Name         string        `json:"name"`
	Provisioning string        `json:"provisioning_status"`
	Operating    string        `json:"operating_status"`
	Listeners    *[]statusNode `json:"listeners,omitempty"`
	Pools        *[]statusNode `json:"pools,omitempty"`
	Members      *[]statusNode `json:"members,omitempty"`
	Monitor      *statusNode   `json:"healthmonitor,omitempty"`
	Type         string        `json:"type,omitempty"`
	Address      string        `json:"address,omitempty"`
	Port         uint16        `json:"protocol_port,omitempty"`
}

// serveBalancerStatus adds what is told of a load balancer beside itself.
func (s *server) serveBalancerStatus() {
	tree := func(w http.ResponseWriter, c *call) error {
		b, err := s.loadBalancers().need(c, c.target())
		if err == nil {
			writeJSON(w, http.StatusOK, map[string]any{"statuses": map[string]any{"loadbalancer": statusTree(b.LoadBalancer)}})
		}
		return err
	}
	s.read("/loadbalancers/{id}/status", tree)
	s.read("/loadbalancers/{id}/statuses", tree)
	s.read("/loadbalancers/{id}/stats", func(_ http.ResponseWriter, c *call) error {
		if _, err := s.loadBalancers().need(c, c.target()); err != nil {
			return err
		}
		return errNoStats
	})
	s.read("/listeners/{id}/stats", func(_ http.ResponseWriter, c *call) error {
		if _, err := s.listeners().need(c, c.target()); err != nil {
			return err
		}
		return errNoStats
	})
	s.handle("/loadbalancers/{id}/failover", map[string]handler{http.MethodPut: func(_ http.ResponseWriter, c *call) error {
		if _, err := s.loadBalancers().own(c, c.target()); err != nil {
			return err
		}
		return sdn.Unsupported("load balancer", "there is nothing that could take another's place: load balancers are in the kernel of the router")
	}})
}

// errNoStats is the answer to who asks what went through a load balancer: the SDN does not count that, and to say that nothing did would be wrong.
var errNoStats = sdn.Unsupported("load balancer", "what passes is not counted")

func statusTree(l sdn.LoadBalancer) statusNode {
	node := func(id sdn.ID, name string) statusNode {
		return statusNode{ID: string(id), Name: name, Provisioning: provisioning(&l), Operating: operating(&l, online)}
	}
	poolNode := func(p sdn.Pool) statusNode {
		members := []statusNode{}
		for _, m := range p.Members {
			member := node(m.ID, m.Name)
			member.Operating = operating(&l, noMonitor)
			member.Address, member.Port = m.Addr.Addr().String(), m.Addr.Port()
			members = append(members, member)
		}
		out := node(p.ID, p.Name)
		out.Members = &members
		if p.Health != nil {
			monitor := node(p.Health.ID, p.Health.Name)
			monitor.Type = p.Health.Type
			out.Monitor = &monitor
		}
		return out
	}
	root := node(l.ID, l.Name)
	listeners, pools := []statusNode{}, []statusNode{}
	for _, listener := range l.Listeners {
		out, its := node(listener.ID, listener.Name), []statusNode{}
		if !listener.WithoutPool {
			its = append(its, poolNode(listener.Pool))
		}
		out.Pools = &its
		listeners = append(listeners, out)
	}
	for _, p := range poolsOf(l) {
		pools = append(pools, poolNode(p.value))
	}
	root.Listeners, root.Pools = &listeners, &pools
	return root
}
