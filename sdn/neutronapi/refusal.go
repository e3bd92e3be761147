package neutronapi

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// refuse is an answer of an error type of Neutron's own, which says more than a kind and a reason of the contract.
func refuse(status int, kind, message string, args ...any) error {
	return &Error{Status: status, Type: kind, Message: fmt.Sprintf(message, args...)}
}

// badOf is Neutron's general refusal of what is asked of a noun.
func badOf(noun, message string, args ...any) error {
	return refuse(http.StatusBadRequest, "BadRequest", "Bad %s request: %s.", noun, fmt.Sprintf(message, args...))
}

// invalidInput is Neutron's refusal of what an attribute check does not see.
func invalidInput(message string, args ...any) error {
	return refuse(http.StatusBadRequest, "InvalidInput", "Invalid input for operation: %s.", fmt.Sprintf(message, args...))
}

// gate serves paths only while the provider can do what they are for: without it there is no such path, as in a Neutron without the plugin.
func (s *server) gate(has func(sdn.Capabilities) bool, add func(*server), paths ...string) {
	inner := *s
	inner.mux = http.NewServeMux()
	add(&inner)
	inner.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, noPath) })
	for _, path := range paths {
		handle := func(w http.ResponseWriter, r *http.Request) {
			if !has(s.p.Capabilities()) {
				s.answer(w, r, noPath)
				return
			}
			inner.mux.ServeHTTP(w, r)
		}
		s.mux.HandleFunc("/v2.0/"+strings.Trim(path, "/"), handle)
		s.mux.HandleFunc("/v2.0/"+strings.Trim(path, "/")+"/", handle)
	}
}
