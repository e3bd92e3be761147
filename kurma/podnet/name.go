package podnet

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/internal/template"
)

// Vars are what a template of an interface's name is filled in with.
type Vars struct {
	Pod   uuid.UUID
	Num   int      // how many networks the pod has already
	Taken []string // names of the pod's other interfaces; "lo" is always among them
}

// maxIfName is IFNAMSIZ without its closing zero byte.
const maxIfName = 15

// attempts bounds how often a template with random in it is filled in until its name is free.
const attempts = 64

// errTaken tells a collision, which a template with random in it may yet avoid.
var errTaken = errors.New("is the name of another interface of the pod")

// InterfaceName fills the template in. Without containerInterface the name is "". A name that the pod has already is tried again where the template draws
// at random, and is an error elsewhere; so is one that the kernel cannot have.
func (n Network) InterfaceName(v Vars) (string, error) {
	if n.Interface == "" {
		return "", nil
	}
	for attempt := 1; ; attempt++ {
		name, random, err := fill(n.name, v)
		if err == nil {
			err = checkInterface(name)
		}
		if err == nil && (name == "lo" || slices.Contains(v.Taken, name)) {
			if random && attempt < attempts {
				continue
			}
			err = errTaken
		}
		if err != nil {
			return "", fmt.Errorf("network %s: containerInterface: %q: %w", n.Name, cutName(name), err)
		}
		return name, nil
	}
}

// parseName parses the template and fills it in once, so that what can never be right is found when the configuration is read.
func parseName(text string) (template.Template, error) {
	if text == "" {
		return nil, nil
	}
	t := template.Template{}
	if err := t.Parse("", text, functions(Vars{}, new(bool))); err != nil {
		return nil, plain(err)
	}
	name, _, err := fill(t, Vars{Pod: uuid.UUID{0xff}})
	if err != nil {
		return nil, err
	}
	if name == "lo" {
		return nil, errors.New(`"lo" is in every pod already`)
	}
	if err := checkInterface(name); err != nil {
		return nil, fmt.Errorf("it gives %q, which %w", cutName(name), err)
	}
	return t, nil
}

// fill executes t, and tells whether it drew at random.
func fill(t template.Template, v Vars) (name string, random bool, err error) {
	var out bounded
	if err := t.Execute(&out, "", nil, functions(v, &random)); err != nil {
		return "", random, plain(err)
	}
	return out.String(), random, nil
}

// bounded takes no more than any name needs: a template can loop for ever.
type bounded struct{ strings.Builder }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > 4096 {
		return 0, errors.New("the name becomes too long")
	}
	return b.Builder.Write(p)
}

// plain takes the template's empty name off its messages.
func plain(err error) error {
	return errors.New(strings.TrimPrefix(strings.TrimPrefix(err.Error(), "template: :"), "template: "))
}

func functions(v Vars, random *bool) template.Funcs {
	return template.Funcs{
		"uuid":      v.Pod.String,
		"shortuuid": func() string { return v.Pod.String()[:8] },
		"num":       func() int { return v.Num },
		"random": func(n int) (string, error) {
			*random = true
			return draw(n)
		},
	}
}

const alphanumeric = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// draw makes n letters and digits, each as likely as any other.
func draw(n int) (string, error) {
	if n < 1 || n > 32 {
		return "", fmt.Errorf("random %d: want 1 to 32", n)
	}
	out := make([]byte, 0, n)
	var b [64]byte
	for {
		_, _ = rand.Read(b[:]) // never fails (crypto/rand)
		for _, c := range b {
			if int(c) >= 256/len(alphanumeric)*len(alphanumeric) { // the rest would favour the first letters
				continue
			}
			if out = append(out, alphanumeric[int(c)%len(alphanumeric)]); len(out) == n {
				return string(out), nil
			}
		}
	}
}

// checkInterface refuses what the kernel does (dev_valid_name), and names that mean something else to it (sysctl's all and default, a % of its own templates).
func checkInterface(name string) error {
	switch {
	case name == "":
		return errors.New("is empty")
	case len(name) > maxIfName:
		return fmt.Errorf("is %d bytes long; the kernel takes at most %d", len(name), maxIfName)
	case name == "." || name == ".." || name == "all" || name == "default":
		return errors.New("is a name that the kernel keeps for itself")
	}
	for _, r := range name {
		if r == '/' || r == ':' || r == '%' || unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return fmt.Errorf("has %q in it, which an interface's name cannot have", r)
		}
	}
	return nil
}

func cutName(name string) string {
	if len(name) > 64 {
		return name[:64] + "…"
	}
	return name
}
