package local

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// faf2083Schema is the schema of the stores that the release faf2083 writes.
const faf2083Schema = 5

// storeOfFaf2083 unpacks a store that the release faf2083 wrote, see testdata/faf2083/make_test.go.
func storeOfFaf2083(t testing.TB) (path string) {
	t.Helper()
	f, err := os.Open("testdata/faf2083/store.db.gz")
	ok(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	ok(t, err)
	data, err := io.ReadAll(z)
	ok(t, err)
	path = filepath.Join(t.TempDir(), "sdn.db")
	ok(t, os.WriteFile(path, data, 0o600))
	return path
}

// TestStoreOfFaf2083 checks that a store of a release is upgraded, with one copy beside it, and that
// the copy is a store of that release.
func TestStoreOfFaf2083(t *testing.T) {
	t.Parallel()
	path := storeOfFaf2083(t)
	before, err := os.ReadFile(path)
	ok(t, err)
	checkFaf2083(t, path)
	copies, err := filepath.Glob(path + ".*")
	ok(t, err)
	if want := fmt.Sprintf("%s.v%d.bak", path, faf2083Schema); len(copies) != 1 || copies[0] != want {
		t.Fatalf("beside the store there is %v, want %s", copies, want)
	}
	db, err := openBolt(copies[0], boltOptions(true))
	ok(t, err)
	if have, err := currentSchema.check(db); err != nil || have != faf2083Schema {
		t.Errorf("the copy has schema %d, %v", have, err)
	}
	ok(t, db.Close())
	checkFaf2083(t, copies[0])
	if after, err := os.ReadFile(path); err != nil || len(after) < len(before) {
		t.Errorf("the store has %d bytes, %v; it had %d", len(after), err, len(before))
	}
}

// checkFaf2083 opens a store that the release wrote and compares it with what the release answered.
func checkFaf2083(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile("testdata/faf2083/objects.json")
	ok(t, err)
	want := map[string]any{}
	ok(t, json.Unmarshal(text, &want))
	p := open(t, Options{Path: path}) // the release had no data path either
	text, err = json.Marshal(objects(t, p))
	ok(t, err)
	got := map[string]any{}
	ok(t, json.Unmarshal(text, &got))
	sameAnswer(t, "", want, got)
	ok(t, p.Close())

	p = open(t, Options{Path: path, Datapath: newFake()})
	_, err = p.Reconcile(t.Context())
	ok(t, err)
	checkSum(t, p)

	// The store can be changed like one of this program.
	tenant := sdn.NetworkQuery{Match: sdn.Match{Names: []string{"tenant"}}}
	found, err := sdn.All(p.FindNetworks(t.Context(), tenant))
	ok(t, err)
	made, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: found[0].ID, Host: testHost}})
	ok(t, err)
	if len(made[0].Addresses) != 1 {
		t.Errorf("a new port has the addresses %v", made[0].Addresses)
	}
	ok(t, p.DeletePorts(t.Context(), []sdn.ID{made[0].ID}))
	checkSum(t, p)
	ok(t, p.Close())
}

// objects lists what a store has, as testdata/faf2083/make_test.go did.
func objects(t *testing.T, p *Provider) map[string]any {
	t.Helper()
	ctx := t.Context()
	found, err := sdn.All(p.FindSubnets(ctx, sdn.SubnetQuery{}))
	ok(t, err)
	usage := map[sdn.ID]sdn.SubnetUsage{}
	for _, s := range found {
		usage[s.ID], err = p.SubnetUsage(ctx, s.ID)
		ok(t, err)
	}
	return map[string]any{
		"network":        list(t, p.FindNetworks(ctx, sdn.NetworkQuery{})),
		"subnet":         found,
		"subnetpool":     list(t, p.FindSubnetPools(ctx, sdn.SubnetPoolQuery{})),
		"port":           list(t, p.FindPorts(ctx, sdn.PortQuery{})),
		"trunk":          list(t, p.FindTrunks(ctx, sdn.TrunkQuery{})),
		"router":         list(t, p.FindRouters(ctx, sdn.RouterQuery{})),
		"floatingip":     list(t, p.FindFloatingIPs(ctx, sdn.FloatingIPQuery{})),
		"forward":        list(t, p.FindForwards(ctx, sdn.ForwardQuery{})),
		"security_group": list(t, p.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{})),
		"address_group":  list(t, p.FindAddressGroups(ctx, sdn.AddressGroupQuery{})),
		"qos_policy":     list(t, p.FindQoSPolicies(ctx, sdn.QoSPolicyQuery{})),
		"loadbalancer":   list(t, p.FindLoadBalancers(ctx, sdn.LoadBalancerQuery{})),
		"usage":          usage,
	}
}

func list[T any](t *testing.T, found iter.Seq2[T, error]) any {
	t.Helper()
	all, err := sdn.All(found)
	ok(t, err)
	return all
}

// sameAnswer compares decoded JSON. What want does not have is left out, and what it has empty may be
// absent. Whether an object is unmanaged
// depends on what the process has asked for, and a port's status and VIF on the data path.
func sameAnswer(t *testing.T, at string, want, got any) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		have, _ := got.(map[string]any)
		for k, v := range want {
			if !slices.Contains([]string{"Foreign", "Status", "VIF"}, k) {
				sameAnswer(t, at+"."+k, v, have[k])
			}
		}
	case []any:
		have, _ := got.([]any)
		if len(want) != len(have) {
			t.Errorf("%s has %d elements, want %d", at, len(have), len(want))
			return
		}
		for i := range want {
			sameAnswer(t, fmt.Sprintf("%s[%d]", at, i), want[i], have[i])
		}
	default:
		if isAbsent := got == nil && (want == "" || want == false); want != got && !isAbsent {
			t.Errorf("%s is %v, want %v", at, got, want)
		}
	}
}
