package metrics

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// fake is a provider with two networks and a subnet.
type fake struct{ sdn.Provider }

func (fake) EnsureNetwork(context.Context, sdn.NetworkSpec) (sdn.Network, error) {
	return sdn.Network{Meta: sdn.Meta{ID: "n"}}, nil
}

func (fake) Port(_ context.Context, id sdn.ID) (sdn.Port, error) {
	return sdn.Port{}, sdn.NotFound("port", id)
}

func (fake) FindNetworks(context.Context, sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	return func(yield func(sdn.Network, error) bool) {
		for _, id := range []sdn.ID{"a", "b"} {
			if !yield(sdn.Network{Meta: sdn.Meta{ID: id}}, nil) {
				return
			}
		}
	}
}

func (fake) FindTrunks(ctx context.Context, q sdn.TrunkQuery) iter.Seq2[sdn.Trunk, error] {
	return sdn.NoTrunks{}.FindTrunks(ctx, q)
}

func (fake) Usage(context.Context, string) (map[sdn.Noun]sdn.Usage, error) {
	return map[sdn.Noun]sdn.Usage{sdn.NounNetwork: {Used: 2, Limit: -1}}, nil
}

func (fake) FindSubnets(context.Context, sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	return func(yield func(sdn.Subnet, error) bool) {
		yield(sdn.Subnet{Meta: sdn.Meta{ID: "s"}, CIDR: netip.MustParsePrefix("10.0.0.0/29")}, nil)
	}
}

func (fake) SubnetUsage(context.Context, sdn.ID) (sdn.SubnetUsage, error) {
	return sdn.SubnetUsage{Total: 6, Used: 1, Free: 5}, nil
}

func TestObserve(t *testing.T) {
	t.Parallel()
	r := New("v")
	p := Observe(fake{}, r)
	ctx := t.Context()
	if _, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: sdn.Base{Name: "n"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Port(ctx, "none"); !sdn.IsNotFound(err) {
		t.Fatalf("the error of the provider is changed: %v", err)
	}
	if all, err := sdn.All(p.FindNetworks(ctx, sdn.NetworkQuery{})); err != nil || len(all) != 2 {
		t.Fatalf("stream of %d, %v", len(all), err)
	}
	for range p.FindNetworks(ctx, sdn.NetworkQuery{}) {
		break // ended by its reader
	}
	if _, err := sdn.All(p.FindTrunks(ctx, sdn.TrunkQuery{})); !sdn.IsUnsupported(err) {
		t.Fatalf("error of a stream: %v", err)
	}
	want := `
# HELP kuryr_sdn_calls_total Calls of the SDN, by method and outcome (ok, or the kind of error).
# TYPE kuryr_sdn_calls_total counter
kuryr_sdn_calls_total{method="EnsureNetwork",outcome="ok"} 1
kuryr_sdn_calls_total{method="FindNetworks",outcome="ok"} 2
kuryr_sdn_calls_total{method="FindTrunks",outcome="unsupported"} 1
kuryr_sdn_calls_total{method="Port",outcome="not_found"} 1
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "kuryr_sdn_calls_total"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(r, "kuryr_sdn_call_duration_seconds"); err != nil || n != 4 {
		t.Errorf("%d methods timed, %v; want 4", n, err)
	}
}

// Every method of the contract that asks the SDN is observed: none is merely promoted
// from the provider. A promoted method of a nil provider panics with a nil dereference
// before it counts; an observed one counts, since its deferred count runs while the panic
// passes.
func TestEveryMethodIsObserved(t *testing.T) {
	t.Parallel()
	contract := reflect.TypeFor[sdn.Provider]()
	bare := []string{"Installation", "Capabilities", "Ping", "Close"}
	for i := range contract.NumMethod() {
		method := contract.Method(i)
		if slices.Contains(bare, method.Name) {
			continue
		}
		r := prometheus.NewRegistry()
		p := reflect.ValueOf(Observe(panics{}, r)).MethodByName(method.Name)
		args := make([]reflect.Value, method.Type.NumIn())
		for j := range args {
			args[j] = reflect.Zero(method.Type.In(j))
		}
		func() {
			defer func() { _ = recover() }()
			out := p.Call(args)
			if stream := out[0]; stream.Kind() == reflect.Func { // a Find: read it
				stop := reflect.MakeFunc(stream.Type().In(0), func([]reflect.Value) []reflect.Value {
					return []reflect.Value{reflect.ValueOf(false)}
				})
				stream.Call([]reflect.Value{stop})
			}
		}()
		if n, err := testutil.GatherAndCount(r, "kuryr_sdn_calls_total"); err != nil || n != 1 {
			t.Errorf("%s: counted %d times, %v", method.Name, n, err)
		}
	}
}

// panics is a provider whose methods panic, but for streams that the contract's own stand-ins give.
type panics struct {
	sdn.Provider
}

func TestObjects(t *testing.T) {
	t.Parallel()
	r := New("v")
	r.MustRegister(Objects(fake{}))
	w := httptest.NewRecorder()
	Handler(r).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, _ := io.ReadAll(w.Body)
	for _, line := range []string{
		`kuryr_build_info{go=`, `kuryr_sdn_objects{noun="network"} 2`, "go_goroutines", "process_resident_memory_bytes",
		`kuryr_sdn_free_addresses{cidr="10.0.0.0/29",subnet="s"} 5`,
	} {
		if !strings.Contains(string(body), line) {
			t.Errorf("no %s in\n%s", line, body)
		}
	}
}

func TestReconciles(t *testing.T) {
	t.Parallel()
	r := New("v")
	m := NewReconciles(r)
	m.Done(time.Millisecond, 3, nil)
	m.Done(time.Millisecond, 0, errors.New("no"))
	if got := testutil.ToFloat64(m.changes); got != 3 {
		t.Errorf("changes = %v", got)
	}
	for outcome, want := range map[string]float64{"ok": 1, "error": 1} {
		if got := testutil.ToFloat64(m.runs.WithLabelValues(outcome)); got != want {
			t.Errorf("%s = %v, want %v", outcome, got, want)
		}
	}
	if testutil.ToFloat64(m.success) == 0 {
		t.Error("no time of the last success")
	}
}

func TestBalancing(t *testing.T) {
	t.Parallel()
	m := NewBalancing(New("v"))
	m.Done(7, time.Millisecond, nil)
	m.Done(5, time.Millisecond, errors.New("no"))
	if got := testutil.ToFloat64(m.elements); got != 7 {
		t.Errorf("elements = %v, want those of what was done", got)
	}
	for outcome, want := range map[string]float64{"ok": 1, "error": 1} {
		if got := testutil.ToFloat64(m.transactions.WithLabelValues(outcome)); got != want {
			t.Errorf("%s = %v, want %v", outcome, got, want)
		}
	}
}

func TestOutcome(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"ok": nil, "conflict": sdn.Conflict(sdn.InUse, "n", "", "x"), "exhausted": sdn.Exhausted(sdn.NoAddresses, "n", "x"),
		"invalid": sdn.Invalid("n", "f", "x"), "denied": &sdn.Error{Kind: sdn.KindDenied},
		"pending":     &sdn.Error{Kind: sdn.KindPending},
		"unavailable": sdn.Unavailable(nil, "n", "x"), "cancelled": context.Canceled, "error": errors.New("x"),
	} {
		if got := outcome(err); got != want {
			t.Errorf("outcome(%v) = %s, want %s", err, got, want)
		}
	}
}
