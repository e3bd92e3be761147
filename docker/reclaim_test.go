package docker

import "testing"

// The engine restarted while Kuryr was away, has forgotten the endpoint and starts its container anew: the port it publishes is free. While a
// container has the endpoint it is not.
func TestPortsOfForgottenEndpoints(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	published := []m{
		{"Proto": 6, "IP": "", "Port": 80, "HostIP": "", "HostPort": 8080, "HostPortEnd": 8080},
		{"Proto": 6, "IP": "", "Port": 81, "HostIP": "", "HostPort": 9000, "HostPortEnd": 9000},
	}
	first := b.run(&endpoint{net: n, published: published})
	second := &endpoint{net: n}
	b.run(second)
	program := second.body()
	second.published = published[:1]
	program["Options"] = second.options()
	b.contains(b.fails("NetworkDriver.ProgramExternalConnectivity", program), "8080")
	if got := b.forwards(first.id); len(got["0.0.0.0"]) != 2 {
		t.Fatalf("a container's ports were taken away: %+v", got)
	}
	port, found, err := b.driver.endpoints.LookUp(t.Context(), first.id)
	b.must(err)
	if !found {
		t.Fatal("the first endpoint has no port")
	}
	b.must(b.binder.Unplug(t.Context(), port)) // with its container's namespace
	b.ok("NetworkDriver.ProgramExternalConnectivity", program)
	if got := b.forwards(second.id); len(got["0.0.0.0"]) != 1 || len(got["::"]) != 1 {
		t.Errorf("published: %+v", got)
	}
	if got := b.forwards(first.id); len(got) != 0 {
		t.Errorf("the forgotten endpoint still has %+v", got)
	}
	// A port that nobody in the way has is refused as before.
	third := &endpoint{net: n}
	b.run(third)
	again := third.body()
	third.published = published[:1]
	again["Options"] = third.options()
	b.contains(b.fails("NetworkDriver.ProgramExternalConnectivity", again), "8080")
}

// TestPortsOfImportedPublications checks that a container keeps its host ports after docker.db was
// lost, when only its publication has a row.
func TestPortsOfImportedPublications(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	published := []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}
	first := b.run(&endpoint{net: n, published: published})
	second := &endpoint{net: n}
	b.run(second)
	b.config.StateDir = t.TempDir()
	b.restart()
	b.reconcile()
	program := second.program(published...)
	b.contains(b.fails("NetworkDriver.ProgramExternalConnectivity", program), "8080")
	if got := b.forwards(first.id); len(got["0.0.0.0"]) != 1 {
		t.Fatalf("a container lost its host port: %+v", got)
	}
	b.must(b.binder.Unplug(t.Context(), b.portOf(first.id))) // with its container's namespace
	b.ok("NetworkDriver.ProgramExternalConnectivity", program)
	if got := b.forwards(second.id); len(got["0.0.0.0"]) != 1 {
		t.Errorf("published: %+v", got)
	}
}

// An endpoint that no container has keeps the port of another address of the host, which is in nobody's way.
func TestPortsOfOtherAddressesStay(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	on := func(host string) []m {
		return []m{{"Proto": 6, "IP": "", "Port": 80, "HostIP": host, "HostPort": 8080, "HostPortEnd": 8080}}
	}
	left := b.run(&endpoint{net: n, published: on("127.0.0.1")})
	b.run(&endpoint{net: n, published: on("198.51.100.1")})
	port, _, err := b.driver.endpoints.LookUp(t.Context(), left.id)
	b.must(err)
	b.must(b.binder.Unplug(t.Context(), port))
	late := &endpoint{net: n}
	b.run(late)
	program := late.body()
	late.published = on("198.51.100.1")
	program["Options"] = late.options()
	b.contains(b.fails("NetworkDriver.ProgramExternalConnectivity", program), "8080")
	if got := b.forwards(left.id); len(got["127.0.0.1"]) != 1 {
		t.Errorf("what was in nobody's way is gone: %+v", got)
	}
	late.published = on("")
	program["Options"] = late.options()
	b.fails("NetworkDriver.ProgramExternalConnectivity", program) // 198.51.100.1 still is in the way
	if got := b.forwards(left.id); len(got) != 0 {
		t.Errorf("what was in the way of every address is there: %+v", got)
	}
}
