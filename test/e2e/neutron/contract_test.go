//go:build e2e

package neutron_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// The provider passes the contract's suite, and its own tests, on a real Neutron.
func TestContract(t *testing.T) {
	r := shared(t)
	suite := filepath.Join(t.TempDir(), "suite")
	build := exec.Command("go", "test", "-c", "-o", suite, "../../../sdn/neutron")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the suite: %v\n%s", err, out)
	}
	var out bytes.Buffer
	cmd := r.lab.Central.Command(r.ctx, suite, "-test.v", "-test.timeout=15m")
	cmd.Env = append(os.Environ(), "KURYR_NEUTRON_URL="+neutronlab.Endpoint)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), &out, &out
	err := r.lab.Central.StartCommand(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("the suite: %v\n%s", err, out.String())
	}
	t.Logf("%s", out.String())
}
