//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// The host ports at which the same server is published twice.
const (
	oursAt      = "5101"
	referenceAt = "5102"
	connections = "1000" // of one sample
)

// published compares a port that Kuryr publishes with one of Docker's own bridge: from another host, and from the host itself.
func published(ctx context.Context, b *bench) error {
	h, err := dockerHost(ctx, b, "")
	if err != nil {
		return err
	}
	defer h.Close()
	for _, args := range [][]string{
		{"network", "create", "-d", "bridge", "reference"},
		{"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "--subnet", "10.90.0.0/24", "ours"},
		publish("reference", referenceAt),
		publish("ours", oursAt),
	} {
		if r := h.Docker(ctx, args...); !r.OK() {
			return fmt.Errorf("%s", r)
		}
	}
	host := privatehost.HostIPv4.Addr().String()
	for _, c := range []struct {
		name string
		run  func(context.Context, ...string) privatehost.Result
		at   string
	}{
		{"from another host", h.Outside, host},
		{"from 127.0.0.1", h.Exec, "127.0.0.1"},
	} {
		ask := func(port, what, amount string) (float64, error) {
			r := c.run(ctx, b.traffic, what, c.at+":"+port, amount)
			if !r.OK() {
				return 0, fmt.Errorf("%s", r)
			}
			return strconv.ParseFloat(strings.TrimSpace(r.Stdout), 64)
		}
		for _, port := range []string{oursAt, referenceAt} {
			// The programs in the containers may be just starting.
			if r := c.run(ctx, "sh", "-c", "for i in $(seq 100); do "+b.traffic+" connect "+c.at+":"+port+" 1 && exit; sleep 0.1; done; exit 1"); !r.OK() {
				return fmt.Errorf("%s", r)
			}
		}
		var rate, connects [2][]float64
		var rtt [2][]time.Duration
		for range b.rounds {
			for side, port := range []string{oursAt, referenceAt} {
				for _, sample := range []struct {
					what, amount string
					add          func(float64)
				}{
					{"stream", megabytes, func(v float64) { rate[side] = append(rate[side], v) }},
					{"connect", connections, func(v float64) { connects[side] = append(connects[side], v) }},
					{"rtt", roundTrips, func(v float64) { rtt[side] = append(rtt[side], time.Duration(v)) }},
				} {
					v, err := ask(port, sample.what, sample.amount)
					if err != nil {
						return err
					}
					sample.add(v)
				}
			}
		}
		ours, reference := median(rate[0]), median(rate[1])
		b.rows = append(b.rows, row{name: "published port, throughput " + c.name, ours: gigabits(ours), reference: gigabits(reference),
			ratio: ours / reference, goal: 0.95, atLeast: true})
		ours, reference = median(connects[0]), median(connects[1])
		b.rows = append(b.rows, row{name: "published port, connections a second " + c.name, ours: fmt.Sprintf("%.0f/s", ours), reference: fmt.Sprintf("%.0f/s", reference),
			ratio: ours / reference, goal: 0.95, atLeast: true})
		o, r := median(rtt[0]), median(rtt[1])
		b.rows = append(b.rows, row{name: "published port, UDP round trips a second " + c.name, ours: o.String(), reference: r.String(),
			ratio: float64(r) / float64(o), goal: 0.95, atLeast: true})
	}
	return nil
}

func publish(network, at string) []string {
	return []string{"run", "-d", "--network", network, "-p", at + ":" + trafficPort, "-p", at + ":" + trafficPort + "/udp",
		"bench", "traffic", "serve", trafficPort}
}
