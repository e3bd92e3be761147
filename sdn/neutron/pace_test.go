package neutron

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// manyPorts are specs of ports that can be made in bulk.
func manyPorts(name string, n int) []sdn.PortSpec {
	var specs []sdn.PortSpec
	for i := range n {
		specs = append(specs, portSpec(fmt.Sprint(name, i)))
	}
	return specs
}

// bulksOf is how many ports each POST asks for when so many are made.
func bulksOf(t *testing.T, p *Provider, d *portDouble, name string, n int) []int {
	t.Helper()
	d.bulks = nil
	ports, err := p.EnsurePorts(t.Context(), manyPorts(name, n))
	if err != nil {
		t.Fatal(err)
	}
	for i, port := range ports {
		if port.Key != testKey(fmt.Sprint(name, i)) {
			t.Errorf("answer %d is %v", i, port.Key)
		}
	}
	slices.Sort(d.bulks)
	return d.bulks
}

// A Neutron that takes three seconds a port is asked for fewer in one request, and for more again when it has become fast.
func TestBulksOfASlowNeutron(t *testing.T) {
	d := newPortDouble(200)
	p, _, _ := onPorts(t, d)
	var mu sync.Mutex
	now, each := time.Now(), 3*time.Second
	p.client.now = func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	d.refuse = func(r *http.Request, body []byte) (int, string) {
		if r.Method == http.MethodPost {
			mu.Lock()
			defer mu.Unlock()
			now = now.Add(each * time.Duration(max(1, len(bulkOf(body)))))
		}
		return 0, ""
	}
	if got := bulksOf(t, p, d, "first", 20); !slices.Equal(got, []int{20}) {
		t.Errorf("when nothing is known the POSTs are for %v ports", got)
	}
	if got := bulksOf(t, p, d, "slow", 12); !slices.Equal(got, []int{6, 6}) {
		t.Errorf("of a slow Neutron: %v", got)
	}
	each = time.Millisecond
	for i := range 5 {
		ensurePort(t, p, portSpec(fmt.Sprint("single", i)))
	}
	if got := bulksOf(t, p, d, "fast", 20); !slices.Equal(got, []int{20}) {
		t.Errorf("of one that is fast again: %v", got)
	}
}

// After an answer that was lost the next bulks are half as large, and nothing was made twice.
func TestBulkAfterALostAnswer(t *testing.T) {
	d := newPortDouble(200)
	p, proxy, _ := onPorts(t, d)
	proxy.Cut(neutrontest.Call{Method: "POST", Collection: "ports"}, 1)
	if got := bulksOf(t, p, d, "lost", 20); !slices.Equal(got, []int{20}) || d.count() != 20 {
		t.Errorf("the POSTs were for %v ports, and there are %d", got, d.count())
	}
	if got := bulksOf(t, p, d, "next", 20); !slices.Equal(got, []int{10, 10}) {
		t.Errorf("after that they are for %v", got)
	}
}

// deadlines notes how long each POST may take.
type deadlines struct {
	http.RoundTripper
	mu  sync.Mutex
	may []time.Duration
}

func (d *deadlines) RoundTrip(r *http.Request) (*http.Response, error) {
	if end, ok := r.Context().Deadline(); ok && r.Method == http.MethodPost {
		d.mu.Lock()
		d.may = append(d.may, time.Until(end))
		d.mu.Unlock()
	}
	return d.RoundTripper.RoundTrip(r)
}

// The deadline of a bulk is that of as many requests as it is worth.
func TestDeadlineOfABulk(t *testing.T) {
	d := newPortDouble(200)
	p, _, _ := onPorts(t, d)
	noted := &deadlines{RoundTripper: http.DefaultTransport}
	p.client.http.Transport = noted
	p.client.timeout = time.Hour
	ensurePort(t, p, portSpec("one"))
	bulksOf(t, p, d, "many", 20)
	if len(noted.may) != 2 || noted.may[0].Round(time.Minute) != time.Hour || noted.may[1].Round(time.Minute) != 4*time.Hour {
		t.Errorf("the deadlines are %v", noted.may)
	}
}
