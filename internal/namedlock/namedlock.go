// Package namedlock is the former name of package keymutex. It must not get new users.
package namedlock

import "github.com/kuryr/kuryr/internal/keymutex"

// Locks is keymutex.Mutex.
type Locks = keymutex.Mutex
