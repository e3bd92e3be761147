package docker

import (
	"testing"
)

// TestManyPublishedPorts checks -p 10000-20000:10000-20000/udp: Docker's calls are then longer
// than 1 MiB.
func TestManyPublishedPorts(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}})
	published, exposed := []m{}, []m{}
	for p := 10000; p <= 20000; p++ {
		published = append(published, m{
			"Proto": 17, "IP": "", "Port": p, "HostIP": "", "HostPort": p, "HostPortEnd": p,
		})
		exposed = append(exposed, m{"Proto": 17, "Port": p})
	}
	e := b.run(&endpoint{net: n, published: published, exposed: exposed})
	got := b.forwards(e.id)
	if len(got["0.0.0.0"]) != len(published) {
		t.Errorf("%d ports are published, want %d", len(got["0.0.0.0"]), len(published))
	}
	b.stop(e)
	b.remove(n)
	b.clean()
}
