//go:build e2e

package cni_test

import (
	"testing"
	"time"
)

// eventually waits for what comes behind an answer.
func (r *rig) eventually(t *testing.T, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatal("it has not come within ", limit)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
