package restapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// Error is an answer that is not a success: the body's NeutronError and the status it came with.
type Error struct {
	Status  int    `json:"-"`
	Type    string `json:"type"`
	Message string `json:"message"`
	Detail  string `json:"detail"`
}

func (e *Error) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("the API answers %d %s", e.Status, http.StatusText(e.Status))
	}
	return e.Message
}

type errorBody struct {
	NeutronError *Error `json:"NeutronError"`
}

// notFoundTypes are Neutron's names for the absence of a noun, by the noun in small letters without spaces.
var notFoundTypes = map[string]string{
	"network": "NetworkNotFound", "subnet": "SubnetNotFound", "subnetpool": "SubnetPoolNotFound", "port": "PortNotFound",
	"router": "RouterNotFound", "floatingip": "FloatingIPNotFound",
}

// encodeError translates a provider's error. An error that is none of the contract's is not shown: it may tell of others.
func encodeError(err error) *Error {
	message := err.Error()
	switch {
	case sdn.IsNotFound(err):
		noun := ""
		var e *sdn.Error
		if errors.As(err, &e) {
			noun = strings.NewReplacer(" ", "", "_", "").Replace(strings.ToLower(e.Noun))
		}
		kind, known := notFoundTypes[noun]
		if !known {
			kind = "NotFound"
		}
		return &Error{Status: http.StatusNotFound, Type: kind, Message: message}
	case sdn.IsInvalid(err):
		return &Error{Status: http.StatusBadRequest, Type: "InvalidInput", Message: message}
	case sdn.IsDenied(err):
		return &Error{Status: http.StatusForbidden, Type: "PolicyNotAuthorized", Message: message}
	case sdn.IsConflict(err), sdn.IsPending(err):
		return &Error{Status: http.StatusConflict, Type: "Conflict", Message: message}
	case sdn.IsExhausted(err):
		return &Error{Status: http.StatusConflict, Type: "ResourceExhausted", Message: message}
	case sdn.IsUnsupported(err):
		return &Error{Status: http.StatusNotImplemented, Type: "HTTPNotImplemented", Message: message}
	case sdn.IsUnavailable(err):
		return &Error{Status: http.StatusServiceUnavailable, Type: "ServiceUnavailable", Message: message}
	}
	return &Error{Status: http.StatusInternalServerError, Type: "HTTPInternalServerError", Message: "the request failed; the log says why"}
}

func writeError(w http.ResponseWriter, e *Error) {
	writeJSON(w, e.Status, errorBody{NeutronError: e})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		http.Error(w, "the answer could not be encoded", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
}
