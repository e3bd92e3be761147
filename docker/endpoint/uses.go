package endpoint

import (
	"strings"

	"github.com/kuryr/kuryr/internal/reconcile"
)

// Values by which rows of endpoints are found.
const (
	byNetwork = "network/"
	byAddress = "address/"
)

// Index implements reconcile.Indexed: the network, and the key of the row of the address.
func (e Spec) Index() []string {
	values := []string{byNetwork + e.Network}
	if _, key, ok := strings.Cut(e.Address, "/"); ok {
		values = append(values, byAddress+key)
	}
	return values
}

// Of returns the endpoint that has the port of an address, by the key of the address's row; "" if
// none has it. inUse reports whether it is being started, or a container has its interface.
func (s *Service) Of(address string) (id string, inUse bool) {
	for r := range s.endpoints.ByIndex(byAddress + address) {
		if r.Phase == reconcile.Wanted {
			return r.Key, s.isUsed(r)
		}
	}
	return "", false
}

// IsDeleting reports whether an endpoint is being deleted.
func (s *Service) IsDeleting(id string) bool {
	r, ok := s.endpoints.Get(id)
	return ok && r.Phase == reconcile.Deleting
}

// Has reports whether a network has endpoints.
func (s *Service) Has(network string) bool {
	for r := range s.endpoints.ByIndex(byNetwork + network) {
		if r.Phase == reconcile.Wanted {
			return true
		}
	}
	return false
}

// InUse reports whether an endpoint of a network is being started, or a container has its interface.
func (s *Service) InUse(network string) bool {
	for r := range s.endpoints.ByIndex(byNetwork + network) {
		if r.Phase == reconcile.Wanted && s.isUsed(r) {
			return true
		}
	}
	return false
}
