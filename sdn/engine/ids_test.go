package engine

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/sdn"
)

// Interfaces are named by the first 11 characters of their port's id: those must be random, not a
// clock's (UUIDv7), or ports made at one time would be of one name.
func TestFinding15PortIDsBeginAtRandom(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	network, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{})
	if err != nil {
		t.Fatal(err)
	}
	ports, err := p.EnsurePorts(t.Context(), slices.Repeat([]sdn.PortSpec{{Network: network.ID}}, 64))
	if err != nil {
		t.Fatal(err)
	}
	heads := map[string]sdn.ID{}
	for _, port := range ports {
		id, err := uuid.Parse(string(port.ID))
		if err != nil || id.Version() != 4 {
			t.Errorf("port %s: version %d of UUIDs, %v", port.ID, id.Version(), err)
		}
		head := string(port.ID[:11])
		if other, taken := heads[head]; taken {
			t.Errorf("ports %s and %s would have interfaces of one name", port.ID, other)
		}
		heads[head] = port.ID
	}
}
