package ipam

import "github.com/kuryr/kuryr/sdn"

// Held is a port that was requested with addresses.
type Held struct {
	Ref      string // of its row; "" if it has none
	Port     sdn.Port
	Existing bool // its user made it
	Shared   bool // other hosts change it, too
}
