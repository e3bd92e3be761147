package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/kuryr/kuryr/bind/vifexec"
	"github.com/kuryr/kuryr/sdn"
)

// Kind is one row of the table of errors: what CNI calls it, and how the process ends.
type Kind struct {
	Code   uint // in the error's JSON (CNI specification, "Error": below 100 they are CNI's own)
	Exit   int  // exit status of kuryr-cni
	Name   string
	Advice string // what to do about it
}

// The kinds of errors. Code and exit status tell them apart.
var (
	IncompatibleVersion = Kind{types.ErrIncompatibleCNIVersion, 11, "incompatible version", "the configuration's cniVersion is none of 0.1.0 to 1.1.0, or kuryr-cni and the daemon are more than one step apart"}
	UnsupportedField    = Kind{types.ErrUnsupportedField, 12, "unsupported field", "the SDN cannot do what the message names; leave it out"}
	UnknownContainer    = Kind{types.ErrUnknownContainer, 13, "unknown container", "the container or its network namespace is gone; nothing has to be cleaned up"}
	BadEnvironment      = Kind{types.ErrInvalidEnvironmentVariables, 14, "invalid environment", "the variable or the argument of CNI_ARGS that the message names is missing or wrong"}
	IOFailure           = Kind{types.ErrIOFailure, 15, "input or output failed", "standard input could not be read, or a file or the socket not used"}
	Undecodable         = Kind{types.ErrDecodingFailure, 16, "cannot be decoded", "the configuration, or an answer of the daemon, is no JSON of the right form"}
	BadConfig           = Kind{types.ErrInvalidNetworkConfig, 17, "invalid network configuration", "mend the field of the conflist that the message names"}
	BadNamespace        = Kind{types.ErrInvalidNetNS, 18, "invalid network namespace", "CNI_NETNS is no network namespace, or the host's own"}
	TryAgain            = Kind{types.ErrTryAgainLater, 21, "try again later", "the daemon (kuryr node) does not run or has not finished starting, and nothing else says which port to bind; or it has all the ADDs under way that it takes"}
	NotReady            = Kind{types.ErrPluginNotAvailable, 50, "not available", "of STATUS: no container can be added now; the message says why"}
	Limited             = Kind{types.ErrLimitedConnectivity, 51, "limited connectivity", "of STATUS: no container can be added, and those that are there may be cut off"}
	NotFound            = Kind{100, 100, "not found", "the SDN has no such network or port, or Kubernetes no such pod"}
	Exhausted           = Kind{101, 101, "exhausted", "no address, port or quota is left"}
	Conflict            = Kind{102, 102, "conflict", "the address, MAC, port or interface name belongs to something else"}
	Denied              = Kind{103, 103, "denied", "the SDN or Kubernetes does not let these credentials do it"}
	Unavailable         = Kind{104, 104, "unavailable", "the SDN or the Kubernetes API does not answer"}
	TimedOut            = Kind{105, 105, "timed out", "the port has not come in time, or OVN has not wired it; is ovn-controller alive on this host?"}
	Differs             = Kind{106, 106, "differs", "of CHECK: the message says what is not as ADD left it"}
	ExecutableFailed    = Kind{107, 107, "executable failed",
		"the executable of the port's VIF type failed; the message shows its output"}
	Internal = Kind{types.ErrInternal, 1, "internal error", "the message and the daemon's log say more"}
)

// Kinds is the table, in the order of codes.
func Kinds() []Kind {
	return []Kind{IncompatibleVersion, UnsupportedField, UnknownContainer, BadEnvironment, IOFailure, Undecodable, BadConfig, BadNamespace, TryAgain, NotReady, Limited,
		NotFound, Exhausted, Conflict, Denied, Unavailable, TimedOut, Differs, ExecutableFailed, Internal}
}

// Errorf makes an error of the kind. The message is a format, of one line.
func (k Kind) Errorf(format string, args ...any) *types.Error {
	return &types.Error{Code: k.Code, Msg: k.Name, Details: oneLine(fmt.Sprintf(format, args...))}
}

// KindOf is the row of an error's code, Internal for a code that is none of Kuryr's.
func KindOf(code uint) Kind {
	for _, k := range Kinds() {
		if k.Code == code {
			return k
		}
	}
	return Internal
}

// bySDN are the kinds of errors that the SDN's contract and package bind have.
var bySDN = []struct {
	is   func(error) bool
	kind Kind
}{
	{sdn.IsNotFound, NotFound},
	{sdn.IsExhausted, Exhausted},
	{sdn.IsConflict, Conflict},
	{sdn.IsDenied, Denied},
	{sdn.IsUnsupported, UnsupportedField},
	{sdn.IsUnavailable, Unavailable},
	{sdn.IsPending, TryAgain},
	{sdn.IsInvalid, BadConfig},
}

// AsError puts any error into CNI's form; nil stays nil.
func AsError(err error) *types.Error {
	var known *types.Error
	var from *sdn.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	case errors.As(err, &from) && from.Kind == sdn.KindNotFound && from.Noun == "network namespace":
		return UnknownContainer.Errorf("%v", err)
	}
	for _, row := range bySDN {
		if row.is(err) {
			return row.kind.Errorf("%v", err)
		}
	}
	if errors.As(err, new(*vifexec.Error)) {
		return ExecutableFailed.Errorf("%v", err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return TimedOut.Errorf("%v", err)
	}
	return Internal.Errorf("%v", err)
}

func oneLine(text string) string {
	return cmp.Or(strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; "), "no more is known")
}
