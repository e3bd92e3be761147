package metrics

import (
	"context"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/prometheus/client_golang/prometheus"
)

// scrapeTimeout bounds what one scrape may ask of the SDN.
const scrapeTimeout = 5 * time.Second

var (
	objectsDesc = prometheus.NewDesc(
		"kuryr_sdn_objects", "Objects of the provider's own project, by noun.", []string{"noun"}, nil,
	)
	freeDesc = prometheus.NewDesc(
		"kuryr_sdn_free_addresses", "Addresses of a subnet that automatic allocation can still give.",
		[]string{"subnet", "cidr"}, nil,
	)
)

// Objects gives a collector that asks p, when it is scraped, how much there is:
// kuryr_sdn_objects{noun} and kuryr_sdn_free_addresses{subnet,cidr}. What cannot be asked
// is left out.
func Objects(p sdn.Provider) prometheus.Collector { return objects{p} }

type objects struct{ sdn sdn.Provider }

// Describe tells what Collect gives.
func (objects) Describe(out chan<- *prometheus.Desc) {
	out <- objectsDesc
	out <- freeDesc
}

// Collect asks the SDN.
func (o objects) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	usage, err := o.sdn.Usage(ctx, "")
	if err == nil {
		for noun, u := range usage {
			out <- prometheus.MustNewConstMetric(objectsDesc, prometheus.GaugeValue, float64(u.Used), string(noun))
		}
	}
	subnets, err := sdn.All(o.sdn.FindSubnets(ctx, sdn.SubnetQuery{}))
	if err != nil {
		return
	}
	for _, s := range subnets {
		if u, err := o.sdn.SubnetUsage(ctx, s.ID); err == nil {
			out <- prometheus.MustNewConstMetric(freeDesc, prometheus.GaugeValue, float64(u.Free), string(s.ID), s.CIDR.String())
		}
	}
}
