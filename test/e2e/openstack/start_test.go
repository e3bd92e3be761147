//go:build e2e

package openstack_test

import (
	"os"
	"testing"
)

type server struct{ url string }

func start(t *testing.T) *server {
	return &server{os.Getenv("KURYR_OPENSTACK_ENDPOINT")}
}

func (s *server) admin() []string {
	return []string{"OS_AUTH_TYPE=none", "OS_ENDPOINT=" + s.url}
}
