package vif

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Words of oslo.versionedobjects.
const (
	keyName    = "versioned_object.name"
	keyVersion = "versioned_object.version"
	keyData    = "versioned_object.data"

	nameCRD    = "KuryrPortCRD"
	versionCRD = "1.0"
)

// defaultInterface is the one of an object that names none: the peer had no other then.
const defaultInterface = "eth0"

// object is a versioned object.
type object struct {
	Name    string          `json:"versioned_object.name"`
	Version string          `json:"versioned_object.version"`
	Data    json.RawMessage `json:"versioned_object.data"`
}

// read reads the object's data. An object of another first number of its version is not known.
func (o object) read(into any) error {
	if o.Version != "" && o.Version != "1" && !strings.HasPrefix(o.Version, "1.") {
		return fmt.Errorf("%.40s: version %.20q is not known, only 1", o.Name, o.Version)
	}
	if len(o.Data) == 0 || string(o.Data) == "null" {
		return fmt.Errorf("%.40s: no %s", o.Name, keyData)
	}
	if err := json.Unmarshal(o.Data, into); err != nil {
		return fmt.Errorf("%.40s: %w", o.Name, err)
	}
	return nil
}

// Decode reads an annotation's value in any of the package's forms, sorted by the interfaces' names. What it gives is a claim: see the package's comment. Errors name
// the interface and the field; a value longer than MaxSize is not looked at.
func Decode(value string) ([]VIF, error) {
	vifs, err := decode(value)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", Annotation, err)
	}
	return sorted(vifs), nil
}

func decode(value string) ([]VIF, error) {
	if len(value) > MaxSize {
		return nil, fmt.Errorf("%d bytes, more than %d", len(value), MaxSize)
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal([]byte(value), &top); err != nil {
		return nil, err
	}
	var whole object
	for key, into := range map[string]*string{keyName: &whole.Name, keyVersion: &whole.Version} {
		if raw, there := top[key]; there {
			if err := json.Unmarshal(raw, into); err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
		}
	}
	whole.Data = top[keyData]
	interfaces := top
	switch {
	case whole.Name == namePodState:
		var err error
		if interfaces, err = podState(whole); err != nil {
			return nil, err
		}
	case whole.Data != nil: // one object, of the time when a pod had one interface
		v, err := decodeOne(defaultInterface, whole)
		return []VIF{v}, err
	case whole.Name != "" && whole.Name != nameCRD:
		return nil, fmt.Errorf("%s: %.40q is not known", keyName, whole.Name)
	case whole.Version != "" && whole.Version != versionCRD:
		return nil, fmt.Errorf("%s: %.20q is not known", keyVersion, whole.Version)
	}
	var vifs []VIF
	for name, raw := range interfaces {
		if strings.HasPrefix(name, "versioned_object.") {
			continue
		}
		o := object{Name: whole.Name, Version: whole.Version}
		if err := json.Unmarshal(raw, &o); err != nil {
			return nil, fmt.Errorf("interface %.40q: %w", name, err)
		}
		v, err := decodeOne(name, o)
		if err != nil {
			return nil, err
		}
		if vifs = append(vifs, v); len(vifs) > MaxInterfaces {
			return nil, fmt.Errorf("more than %d interfaces", MaxInterfaces)
		}
	}
	if len(vifs) == 0 {
		return nil, errEmpty
	}
	return vifs, nil
}

// decodeOne reads the object of one interface.
func decodeOne(name string, o object) (VIF, error) {
	if err := validInterface(name); err != nil {
		return VIF{}, err
	}
	v := VIF{Interface: name}
	var err error
	switch o.Name {
	case nameCRD:
		v.Port, err = linked(o)
	case "":
		err = errors.New("no " + keyName)
	default:
		v.Peer, err = peer(o)
	}
	if err != nil {
		return VIF{}, fmt.Errorf("interface %q: %w", name, err)
	}
	return v, nil
}

// linked is the name of the KuryrPort whose link the object has.
func linked(o object) (string, error) {
	var data struct {
		SelfLink string `json:"selfLink"`
	}
	if err := o.read(&data); err != nil {
		return "", err
	}
	port, ok := strings.CutPrefix(data.SelfLink, linkPrefix)
	if !ok {
		return "", fmt.Errorf("selfLink %.300q: want %s and a name", data.SelfLink, linkPrefix)
	}
	if err := validPort(port); err != nil {
		return "", fmt.Errorf("selfLink: %w", err)
	}
	return port, nil
}
