package vif

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Encode writes the annotation's value for a pod whose interfaces (eth0, …) are these KuryrPorts, by their names. The interfaces are in the order of their names, so
// that the same ports make the same value. Errors name the interface that the kernel, or the port that Kubernetes would not take.
func Encode(ports map[string]string) (string, error) {
	if len(ports) == 0 {
		return "", errors.New("vif: a pod without interfaces has no annotation")
	}
	if len(ports) > MaxInterfaces {
		return "", fmt.Errorf("vif: %d interfaces, more than %d", len(ports), MaxInterfaces)
	}
	var b strings.Builder
	b.WriteByte('{')
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		if err := errors.Join(validInterface(name), validPort(ports[name])); err != nil {
			return "", fmt.Errorf("vif: %w", err)
		}
		// With the spaces that the spec shows, which are those of Python's json.
		fmt.Fprintf(&b, `%s: {"%s": {"selfLink": %s}}, `, quoted(name), keyData, quoted(SelfLink(ports[name])))
	}
	fmt.Fprintf(&b, `"%s": "%s", "%s": "%s"}`, keyName, nameCRD, keyVersion, versionCRD)
	return b.String(), nil
}

// quoted is a string of JSON with nothing escaped but what JSON wants.
func quoted(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a buffer and a string: nothing can fail
	return strings.TrimRight(b.String(), "\n")
}
