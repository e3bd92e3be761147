//go:build tools

// Package tools names the programs that hack/kubernetes.sh builds as they are, so that go.mod knows what they need.
// It is never built, and must not name what hyperkube imports already.
package tools

import (
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "k8s.io/kubernetes/test/images/agnhost"
)
