//go:build e2e

package neutron_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// onlyContract has a test program run the contract's suite alone.
const onlyContract = "-test.run=^TestContract$"

// The provider passes the contract's suite on a real Neutron.
func TestContract(t *testing.T) {
	t.Parallel()
	onNeutron(t, shared(t), built(t), onlyContract)
}

// Its own tests pass there too.
func TestProvider(t *testing.T) {
	onNeutron(t, shared(t), built(t), "-test.skip=^TestContract$|^TestNested")
}

// The suite passes also on a Neutron that lacks what Kuryr can do without.
func TestContractLeast(t *testing.T) {
	t.Parallel()
	// A boot of its own: another Neutron, with fewer extensions.
	l := neutronlab.Start(t, neutronlab.Options{Hosts: 2, Least: true})
	if _, err := l.ExternalNetwork(t.Context()); err != nil {
		t.Fatal(err)
	}
	onNeutron(t, newRig(t, l), built(t), onlyContract)
}

// The provider in a virtual machine passes its tests on a real Neutron.
func TestContractNested(t *testing.T) {
	onNeutron(t, shared(t), built(t), "-test.run=^TestNested")
}

// built is the test program of the provider.
func built(t *testing.T) string {
	t.Helper()
	suite := filepath.Join(t.TempDir(), "suite")
	build := exec.Command("go", "test", "-C", "../../..", "-c", "-o", suite, "./sdn/neutron")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the suite: %v\n%s", err, out)
	}
	return suite
}

// onNeutron runs a test program beside Neutron. The default groups that its projects keep
// go with it: to delete those is the operator's.
func onNeutron(t *testing.T, r *rig, suite string, args ...string) {
	t.Helper()
	before := r.find("security-groups", "name=default")
	r.fresh(func(ctx context.Context) error {
		now, err := r.api.List(ctx, "security-groups", "name=default")
		for _, g := range now {
			if !slices.ContainsFunc(before, func(b object) bool { return b.ID() == g.ID() }) {
				err = errors.Join(err, r.api.Delete(ctx, "security-groups", g.ID()))
			}
		}
		return err
	})
	external, err := r.lab.ExternalNetwork(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // where two processors have much else to do
	defer cancel()
	var out bytes.Buffer
	cmd := r.lab.Central.Command(
		ctx,
		append([]string{suite, "-test.v", "-test.timeout=19m", "-test.parallel=3"}, args...)...,
	)
	cmd.Env = append(
		os.Environ(), "KURYR_NEUTRON_URL="+neutronlab.Endpoint, "KURYR_NEUTRON_HOST="+r.h1.Name,
		"KURYR_NEUTRON_EXTERNAL="+external.ID(),
	)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), &out, &out
	err = r.lab.Central.StartCommand(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("the suite: %v\n%s", err, out.String())
	}
	t.Logf("%s", out.String())
}
