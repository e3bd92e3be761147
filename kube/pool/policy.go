package pool

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The bounds of what a policy may say.
const (
	MaxPorts = 100000
	MaxBatch = 1000
	MinTTL   = time.Second
)

// With gives the policy with what text says in place of its own, such as "minimum=2,maximum=20,batch=5,ttl=10m"; what text does not name stays. An error names the word.
func (p Policy) With(text string) (Policy, error) {
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		name, value, _ := strings.Cut(word, "=")
		if err := p.set(strings.TrimSpace(name), strings.TrimSpace(value)); err != nil {
			return Policy{}, err
		}
	}
	return p, p.Validate()
}

func (p *Policy) set(name, value string) error {
	if name == "ttl" {
		ttl, err := time.ParseDuration(value)
		if err != nil {
			return fmt.Errorf("ttl: want a time such as 90s or 10m, or 0, not %q", value)
		}
		p.TTL = ttl
		return nil
	}
	field := map[string]*int{"minimum": &p.Minimum, "maximum": &p.Maximum, "batch": &p.Batch}[name]
	if field == nil {
		return fmt.Errorf("%q is not minimum, maximum, batch or ttl", name)
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		return fmt.Errorf("%s: want a number, not %q", name, value)
	}
	*field = n
	return nil
}

// Validate refuses a policy that cannot be kept. The error names the word.
func (p Policy) Validate() error {
	switch {
	case p.Minimum < 0 || p.Minimum > MaxPorts:
		return fmt.Errorf("minimum: want a number from 0 to %d, not %d", MaxPorts, p.Minimum)
	case p.Maximum < 0 || p.Maximum > MaxPorts:
		return fmt.Errorf("maximum: want a number from 0 to %d, not %d", MaxPorts, p.Maximum)
	case p.Maximum > 0 && p.Minimum > p.Maximum:
		return fmt.Errorf("minimum: %d is above maximum, which is %d", p.Minimum, p.Maximum)
	case p.Batch < 1 || p.Batch > MaxBatch:
		return fmt.Errorf("batch: want a number from 1 to %d, not %d", MaxBatch, p.Batch)
	case p.TTL != 0 && p.TTL < MinTTL:
		return fmt.Errorf("ttl: want a time of at least %s, or 0, not %s", MinTTL, p.TTL)
	}
	return nil
}
