//go:build linux && !failpoints

package pod

import (
	"os"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }
