//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/docker"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/rpc"
)

// benchFolder is the environment of a process that serves the SDN of BenchmarkPublishRatio: the folder
// of its store, its namespaces and its socket.
const benchFolder = "KURYR_BENCH_PUBLISH"

// The ports of BenchmarkPublishRatio: as one publication, and of the reference one by one.
const benchPorts, benchSingle = 2000, 50

func init() {
	folder := os.Getenv(benchFolder)
	if folder == "" {
		return
	}
	if err := serveBench(folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serveBench serves the SDN at a socket until stdin ends.
func serveBench(folder string) error {
	p, f, err := openBench(folder)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", filepath.Join(folder, "s"))
	if err != nil {
		return err
	}
	handler := rpc.NewHandler(p, rpc.HandlerOptions{})
	go func() { _ = (&http.Server{Handler: handler}).Serve(l) }()
	fmt.Fprintln(os.Stdout, p.Installation())
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = p.Close()
	return f.Down(context.Background())
}

// openBench opens the SDN in a folder, with the kernel of this namespace.
func openBench(folder string) (*local.Provider, *router.Kernel, error) {
	log := slog.New(slog.DiscardHandler)
	pins, err := netns.Open(filepath.Join(folder, "ns"))
	if err != nil {
		return nil, nil, err
	}
	var f *router.Kernel
	p, err := local.Open(context.Background(), local.Options{
		Path: filepath.Join(folder, "sdn.db"), Host: "h", Logger: log,
		NewDatapath: func(uplink4, uplink6 netip.Prefix) (_ local.Datapath, err error) {
			f, err = router.New(router.Options{Namespaces: pins, Uplink4: uplink4, Uplink6: uplink6, Logger: log})
			return f, err
		},
	})
	return p, f, err
}

// unplugged is a binder without a container.
type unplugged struct{}

func (unplugged) Plug(context.Context, bind.Interface) (bind.Result, error) {
	return bind.Result{HostName: "a", Name: "b"}, nil
}
func (unplugged) Unplug(context.Context, sdn.Port) error            { return nil }
func (unplugged) Connected(context.Context, sdn.Port) (bool, error) { return true, nil }

// BenchmarkPublishRatio publishes and withdraws 2,000 UDP ports of a container as Docker asks for them:
// with the SDN in this process, and in another one. Its reference is one call of the SDN for each
// port, measured in the same run.
func BenchmarkPublishRatio(b *testing.B) {
	for name, apart := range map[string]bool{"in-process": false, "another-process": true} {
		b.Run(name, func(b *testing.B) {
			host := nstest.New(b)
			nstest.Do(b, host, func() { benchmarkPublish(b, name, apart) })
		})
	}
}

func benchmarkPublish(b *testing.B, name string, apart bool) {
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	folder, err := os.MkdirTemp("/run", "bench-")
	must(err)
	defer os.RemoveAll(folder)
	var provider sdn.Provider
	if apart {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), benchFolder+"="+folder)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		must(err)
		out, err := cmd.StdoutPipe()
		must(err)
		must(cmd.Start())
		defer func() {
			_ = in.Close()
			must(cmd.Wait())
		}()
		_, err = bufio.NewReader(out).ReadString('\n')
		must(err)
		provider, err = rpc.Dial(b.Context(), filepath.Join(folder, "s"), rpc.Options{})
		must(err)
	} else {
		p, f, err := openBench(folder)
		must(err)
		defer func() { must(f.Down(context.Background())) }()
		provider = p
	}
	defer provider.Close()
	held := &hostports.Holder{}
	defer held.Close()
	driver, err := docker.New(docker.Config{
		Provider: provider, Binder: unplugged{}, Host: "h", Routed: true, HostPorts: held,
		Logger: slog.New(slog.DiscardHandler), StateDir: filepath.Join(folder, "state"), RunDir: filepath.Join(folder, "run"),
	})
	must(err)
	type m = map[string]any
	call := func(method string, body m) m {
		b.Helper()
		data, err := json.Marshal(body)
		must(err)
		r := httptest.NewRequest(http.MethodPost, "/"+method, strings.NewReader(string(data)))
		r.Host = ""
		w := httptest.NewRecorder()
		driver.Handler().ServeHTTP(w, r)
		answer := m{}
		must(json.Unmarshal(w.Body.Bytes(), &answer))
		if answer["Err"] != nil {
			b.Fatalf("%s: %v", method, answer["Err"])
		}
		return answer
	}
	network, id := strings.Repeat("1", 64), strings.Repeat("2", 64)
	pool := call("IpamDriver.RequestPool", m{"AddressSpace": "kuryr_local", "Pool": "10.9.0.0/24", "Options": m{}})
	address := func(options m) any {
		return call("IpamDriver.RequestAddress", m{"PoolID": pool["PoolID"], "Options": options})["Address"]
	}
	gateway := address(m{"RequestAddressType": "com.docker.network.gateway"})
	call("NetworkDriver.CreateNetwork", m{"NetworkID": network, "Options": m{}, "IPv4Data": []m{{
		"AddressSpace": "kuryr_local", "Pool": "10.9.0.0/24", "Gateway": gateway,
	}}})
	endpoint := m{"NetworkID": network, "EndpointID": id}
	mac := "02:42:0a:09:00:02"
	call("NetworkDriver.CreateEndpoint", m{
		"NetworkID": network, "EndpointID": id, "Options": m{},
		"Interface": m{"Address": address(m{"com.docker.network.endpoint.macaddress": mac}), "MacAddress": mac},
	})
	call("NetworkDriver.Join", m{
		"NetworkID": network, "EndpointID": id, "SandboxKey": "/proc/self/ns/net", "Options": m{},
	})
	var published []m
	for i := range benchPorts {
		published = append(published, m{"Proto": 17, "Port": 2000 + i, "HostPort": 20000 + 2*i})
	}
	ports, err := sdn.All(provider.FindPorts(b.Context(), sdn.PortQuery{Devices: []string{id}}))
	must(err)
	every := sdn.FloatingIPSpec{
		Network: provider.Capabilities().ExternalNetwork, Address: netip.IPv4Unspecified(), OfHost: true,
	}
	var whole, single time.Duration
	for b.Loop() {
		start := time.Now()
		call("NetworkDriver.ProgramExternalConnectivity", m{
			"NetworkID": network, "EndpointID": id, "Options": m{"com.docker.network.portmap": published},
		})
		whole += time.Since(start)
		call("NetworkDriver.RevokeExternalConnectivity", endpoint)

		face, err := provider.EnsureFloatingIP(b.Context(), every)
		must(err)
		start = time.Now()
		for i := range benchSingle {
			forward := sdn.Forward{
				Protocol: sdn.UDP, External: sdn.PortRange{First: uint16(20000 + 2*i)},
				Target: sdn.Target{Port: ports[0].ID}, Internal: sdn.PortRange{First: uint16(2000 + i)},
			}
			_, err := provider.EnsureForwards(b.Context(), face.ID, []sdn.Forward{forward})
			must(err)
		}
		single += time.Since(start)
		must(provider.DeleteFloatingIP(b.Context(), face.ID))
	}
	perPort, perSingle := float64(whole)/benchPorts, float64(single)/benchSingle
	b.ReportMetric(float64(whole.Milliseconds())/float64(b.N), "ms/publication")
	b.ReportMetric(perPort/perSingle, "ratio-"+name)
	b.ReportMetric(0, "ns/op")
}
