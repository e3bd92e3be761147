//go:build linux

package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os/exec"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/kuryr/kuryr/internal/beside"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/kube/cni/given"
)

// SecondName is the program beside kuryr-cni that speaks TLS, which would make every container's start slower.
const SecondName = "kuryr-cni-api"

// Second has that program do the call, and gives its answer as its own.
func Second(ctx context.Context, c cni.Call, _ cni.Config, _ *given.Folder) ([]byte, error) {
	path, err := beside.Path(SecondName)
	if err != nil {
		return nil, cni.IOFailure.Errorf("%v", err)
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Stdin = bytes.NewReader(c.Config)
	out, err := cmd.Output()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return out, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, cni.TryAgain.Errorf("%v, and %s, which would ask Kubernetes, is not installed beside it", cni.ErrNoDaemon, SecondName)
	case errors.As(err, &ended):
		var told types.Error
		if json.Unmarshal(out, &told) == nil && told.Code != 0 {
			return nil, &told
		}
	}
	return nil, cni.Internal.Errorf("%s: %v", SecondName, err)
}
