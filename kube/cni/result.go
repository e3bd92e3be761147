package cni

import (
	"encoding/json"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/kuryr/kuryr/bind/cniresult"
)

// Plugged is an interface that has been plugged into a container, with all that a result tells of it.
type Plugged = cniresult.Plugged

// Encode is the result as a version of the specification has it. Those before 0.3.0 tell one address of each family and need at least one.
func Encode(r *types100.Result, version string) ([]byte, error) {
	as, err := r.GetAsVersion(version)
	if err != nil {
		return nil, IncompatibleVersion.Errorf("cniVersion: %v", err)
	}
	data, err := json.MarshalIndent(as, "", "    ")
	if err != nil {
		return nil, Internal.Errorf("result: %v", err)
	}
	return append(data, '\n'), nil
}

// EncodeError is an error as CNI wants it on standard output.
func EncodeError(e *types.Error, version string) []byte {
	data, _ := json.MarshalIndent(struct {
		CNIVersion string `json:"cniVersion"`
		types.Error
	}{version, *e}, "", "    ") // cannot fail: texts and a number
	return append(data, '\n')
}

// Previous reads the configuration's prevResult; nil where there is none.
func (c Config) Previous() (*types100.Result, error) {
	if len(c.PrevResult) == 0 || string(c.PrevResult) == "null" {
		return nil, nil
	}
	// Before 1.0.0 a result need not say its version, which is then the configuration's.
	previous, err := version.NewResult(c.CNIVersion, withVersion(c.PrevResult, c.CNIVersion))
	if err != nil {
		return nil, Undecodable.Errorf("prevResult: %v", err)
	}
	r, err := types100.NewResultFromResult(previous)
	if err != nil {
		return nil, Undecodable.Errorf("prevResult: %v", err)
	}
	return r, nil
}

func withVersion(raw json.RawMessage, version string) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil || fields == nil {
		return raw // refused by who reads it
	}
	fields["cniVersion"], _ = json.Marshal(version)
	data, _ := json.Marshal(fields)
	return data
}

// EncodeVersions is the answer to VERSION: the versions there are, in the words of one of them.
func EncodeVersions(asked string) []byte {
	data, _ := json.Marshal(struct {
		CNIVersion string   `json:"cniVersion"`
		Supported  []string `json:"supportedVersions"`
	}{asked, Versions}) // cannot fail: texts
	return append(data, '\n')
}
