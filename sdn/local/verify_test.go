package local

import (
	"bytes"
	"os"
	"testing"
)

// FuzzVerify: a file that verify trusts can be opened and read without a panic.
func FuzzVerify(f *testing.F) {
	good, err := os.ReadFile(filled(f))
	ok(f, err)
	f.Add(uint32(0), []byte{})
	f.Add(uint32(4096*4), []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	f.Add(uint32(20), []byte{0xff})
	f.Fuzz(func(t *testing.T, at uint32, patch []byte) {
		bad := bytes.Clone(good)
		copy(bad[int(at)%len(bad):], patch)
		_ = openBytes(t, bad)
	})
}
