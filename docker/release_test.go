package docker

import "testing"

// A refused endpoint whose addresses the engine never releases leaves no hint behind when the port is gone.
func TestHintsGoWithTheirPort(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	first := b.run(&endpoint{net: n})
	second := &endpoint{net: n, id: newID(), ip4: first.ip4, mac: "02:00:00:00:00:77"}
	b.contains(b.fails("NetworkDriver.CreateEndpoint", second.createBody()), "in use")
	if len(b.driver.refusals) != 1 {
		t.Fatalf("refusals: %v", b.driver.refusals)
	}
	b.stop(first)
	b.remove(n)
	b.clean()
}
