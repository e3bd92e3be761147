package docker

import "testing"

// The engine restarted while Kuryr did not run, has forgotten the endpoint and creates
// one again: the host port is free, unless a container has the endpoint.
func TestPortsOfForgottenEndpoints(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	published := []m{
		{"Proto": 6, "IP": "", "Port": 80, "HostIP": "", "HostPort": 8080, "HostPortEnd": 8080},
		{"Proto": 6, "IP": "", "Port": 81, "HostIP": "", "HostPort": 9000, "HostPortEnd": 9000},
	}
	first := b.run(&endpoint{net: n, published: published})
	second := b.run(&endpoint{net: n})
	second.published = published[:1]
	b.contains(b.publishFails(second), "8080")
	if got := b.forwards(first.id); len(got["0.0.0.0"]) != 2 {
		t.Fatalf("a container lost its host ports: %+v", got)
	}
	b.must(b.binder.Unplug(t.Context(), b.portOf(first.id))) // with its container's namespace
	b.publish(second)
	if got := b.forwards(second.id); len(got["0.0.0.0"]) != 1 || len(got["::"]) != 1 {
		t.Errorf("published: %+v", got)
	}
	if got := b.forwards(first.id); len(got) != 0 {
		t.Errorf("the forgotten endpoint still has %+v", got)
	}
	// A port of an endpoint in use is refused as before.
	third := b.run(&endpoint{net: n})
	third.published = published[:1]
	b.contains(b.publishFails(third), "8080")
}

// TestPortsOfImportedPublications checks that a container keeps its host ports after docker.db was
// lost, when only its publication has a row.
func TestPortsOfImportedPublications(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	published := []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}
	first := b.run(&endpoint{net: n, published: published})
	second := b.run(&endpoint{net: n})
	second.published = published
	b.forget()
	b.reconcile()
	b.contains(b.publishFails(second), "8080")
	if got := b.forwards(first.id); len(got["0.0.0.0"]) != 1 {
		t.Fatalf("a container lost its host port: %+v", got)
	}
	b.must(b.binder.Unplug(t.Context(), b.portOf(first.id))) // with its container's namespace
	b.publish(second)
	if got := b.forwards(second.id); len(got["0.0.0.0"]) != 1 {
		t.Errorf("published: %+v", got)
	}
}

// An endpoint that no container has keeps a host port of another address of the host,
// which does not conflict.
func TestPortsOfOtherAddressesStay(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	on := func(host string) []m {
		return []m{{"Proto": 6, "IP": "", "Port": 80, "HostIP": host, "HostPort": 8080, "HostPortEnd": 8080}}
	}
	left := b.run(&endpoint{net: n, published: on("127.0.0.1")})
	b.run(&endpoint{net: n, published: on("198.51.100.1")})
	b.must(b.binder.Unplug(t.Context(), b.portOf(left.id)))
	late := b.run(&endpoint{net: n})
	late.published = on("198.51.100.1")
	b.contains(b.publishFails(late), "8080")
	if got := b.forwards(left.id); len(got["127.0.0.1"]) != 1 {
		t.Errorf("a host port that does not conflict is gone: %+v", got)
	}
	late.published = on("")
	b.publishFails(late) // 198.51.100.1 still conflicts
	if got := b.forwards(left.id); len(got) != 0 {
		t.Errorf("a host port that conflicts with every address is there: %+v", got)
	}
}
