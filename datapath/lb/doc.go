//go:build linux

// Package lb balances connections over endpoints with nftables, in one network namespace.
package lb
