// Package lull is the former name of package idlegate. It must not get new users.
package lull

import "github.com/kuryr/kuryr/internal/idlegate"

// Lull is idlegate.Gate.
type Lull = idlegate.Gate
