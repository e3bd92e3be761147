//go:build linux

package docker

import (
	"os"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
)

// The port proxies of these tests listen at addresses of the host, which other packages use too.
func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }
