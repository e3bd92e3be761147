package install

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/deploy/kubernetes"
	"github.com/kuryr/kuryr/internal/config"
	"sigs.k8s.io/yaml"
)

// Values are those of the chart: what values.yaml has, and what was set over it.
type Values map[string]any

// free are the keys below which anything may be set; everything else must be in values.yaml.
var free = []string{"config", "controller.nodeSelector", "controller.resources", "node.config", "node.nodeSelector", "node.resources", "sdn.nodeSelector", "sdn.resources"}

// Defaults are the chart's values.yaml.
func Defaults() (Values, error) {
	data, err := kubernetes.Files.ReadFile("values.yaml")
	if err != nil {
		return nil, err
	}
	v := Values{}
	return v, yaml.Unmarshal(data, &v)
}

// Set sets one value by its key, such as node.binDir; text is YAML, or the text itself where a text belongs. Errors name the key.
func (v Values) Set(key, text string) error {
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		value = text
	}
	words := strings.Split(key, ".")
	into := map[string]any(v)
	for _, word := range words[:len(words)-1] {
		below, ok := into[word].(map[string]any)
		if !ok {
			if _, there := into[word]; there || word == "" || !isFree(key) {
				return fmt.Errorf("value %s: %q has nothing below it", key, word)
			}
			below = map[string]any{}
			into[word] = below
		}
		into = below
	}
	last := words[len(words)-1]
	old, there := into[last]
	if !there && !isFree(key) {
		return fmt.Errorf("value %s: unknown; there are %s", key, strings.Join(slices.Sorted(maps.Keys(into)), ", "))
	}
	if _, isText := old.(string); isText {
		value = text
	}
	if there && kind(old) != kind(value) && value != nil && old != nil && !isFree(key) {
		return fmt.Errorf("value %s: want %s, not %q", key, kind(old), text)
	}
	into[last] = value
	return nil
}

// Merge sets all that a file of values has. Errors name the key.
func (v Values) Merge(file []byte) error {
	more := map[string]any{}
	if err := yaml.UnmarshalStrict(file, &more); err != nil {
		return err
	}
	return merge("", v, more)
}

func merge(prefix string, into, more map[string]any) error {
	for name, value := range more {
		key := prefix + name
		old, there := into[name]
		if !there && !isFree(key) {
			return fmt.Errorf("value %s: unknown; there are %s", key, strings.Join(slices.Sorted(maps.Keys(into)), ", "))
		}
		below, isMap := value.(map[string]any)
		oldBelow, wasMap := old.(map[string]any)
		if isMap && wasMap {
			if err := merge(key+".", oldBelow, below); err != nil {
				return err
			}
			continue
		}
		if is, isBool := value.(bool); isBool && key == "services" {
			value = strconv.FormatBool(is) // auto is a text
		}
		if there && value != nil && kind(old) != kind(value) && !isFree(key) {
			return fmt.Errorf("value %s: want %s, not %v", key, kind(old), value)
		}
		into[name] = value
	}
	return nil
}

func isFree(key string) bool {
	return slices.ContainsFunc(free, func(f string) bool { return strings.HasPrefix(key, f+".") })
}

func kind(v any) string {
	switch v.(type) {
	case string:
		return "a text"
	case bool:
		return "true or false"
	case float64, int64, int:
		return "a number"
	case []any:
		return "a list"
	case map[string]any:
		return "values below it"
	}
	return "nothing"
}

// Check refuses what would render and not work. Errors name the value.
func (v Values) Check() error {
	provider, _ := v["provider"].(string)
	if provider != Embedded && provider != Neutron {
		return fmt.Errorf("value provider: want %s or %s, not %q", Embedded, Neutron, provider)
	}
	name, _ := v["installation"].(string)
	if len(name) > 36 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("value installation: want at most 36 of a-z, 0-9 and '-', not %q", name)
	}
	if by, _ := v["loadBalancers"].(string); by != "" && by != "sdn" && by != "node" {
		return fmt.Errorf("value loadBalancers: want sdn or node, not %q", by)
	}
	image, _ := v["image"].(map[string]any)
	if digest, _ := image["digest"].(string); digest != "" && !digests.MatchString(digest) {
		return fmt.Errorf("value image.digest: want sha256: and 64 digits of 0-9 and a-f, not %q", digest)
	}
	services := fmt.Sprint(v["services"])
	if !slices.Contains([]string{"auto", "true", "false", "<nil>"}, services) {
		return fmt.Errorf("value services: want auto, true or false, not %q", services)
	}
	if services == "true" || services == "false" {
		if err := v.onlyOnce("services", "services"); err != nil {
			return err
		}
	}
	return errors.Join(v.checkBalancers(), v.checkRavenConf(), v.checkSettings())
}

// AutoServices reports whether Services are on or off by what the cluster has.
func (v Values) AutoServices() bool {
	return v["services"] == "auto" && v.onlyOnce("services", "services") == nil
}

// checkSettings refuses settings that Raven or the nodes' daemons would not start with.
func (v Values) checkSettings() error {
	raven, err := settings("config", v["config"])
	if err != nil {
		return err
	}
	node, _ := v["node"].(map[string]any)
	if _, err := settings("node.config", node["config"]); err != nil {
		return err
	}
	if conf, _ := v["ravenConf"].(string); conf != "" {
		return nil // it may have what the settings lack together
	}
	if err := raven.Check(); err != nil {
		return valueError("config", err)
	}
	return checkRanges(raven.Controller)
}

// settings reads the settings below a value.
func settings(at string, value any) (config.Config, error) {
	data, err := yaml.Marshal(value)
	if err != nil {
		return config.Config{}, fmt.Errorf("value %s: %w", at, err)
	}
	cfg, err := config.Parse(at, data)
	return cfg, valueError(at, err)
}

// valueError names the value in place of a line in a file.
func valueError(at string, err error) error {
	var wrong *config.Error
	if !errors.As(err, &wrong) {
		return err
	}
	if wrong.Key == "" {
		return fmt.Errorf("value %s: %s", at, wrong.Detail)
	}
	return fmt.Errorf("value %s.%s: %s", at, wrong.Key, wrong.Detail)
}

// checkRanges refuses ranges of pods and of ClusterIPs that overlap. The default of
// controller.service_ranges counts where Services are on.
func checkRanges(c config.Controller) error {
	if slices.Equal(c.ServiceRanges, config.Default().Controller.ServiceRanges) && !c.Services {
		return nil
	}
	for _, pods := range c.PodRanges {
		for _, services := range c.ServiceRanges {
			if pods.Overlaps(services) {
				return fmt.Errorf("value config.controller.pod_ranges: %s overlaps %s of config.controller.service_ranges",
					pods, services)
			}
		}
	}
	return nil
}

var digests = regexp.MustCompile("^sha256:[0-9a-f]{64}$")

// checkBalancers refuses that who balances is said twice: one of them would count, and nobody be told which.
func (v Values) checkBalancers() error {
	if by, _ := v["loadBalancers"].(string); by == "" {
		return nil
	}
	return v.onlyOnce("loadBalancers", "load_balancers")
}

// onlyOnce refuses a value whose setting stands below config or node.config too.
func (v Values) onlyOnce(value, setting string) error {
	node, _ := v["node"].(map[string]any)
	for _, of := range []struct {
		at, section string
		config      any
	}{{"config", "controller", v["config"]}, {"node.config", "node", node["config"]}} {
		config, _ := of.config.(map[string]any)
		section, _ := config[of.section].(map[string]any)
		if config[of.section+"."+setting] != nil || section[setting] != nil {
			return fmt.Errorf("values %s and %s.%s.%s: want one of them; %s is the setting of both Raven and the nodes",
				value, of.at, of.section, setting, value)
		}
	}
	return nil
}

// checkRavenConf refuses secrets: raven.conf goes into a ConfigMap, which many may read.
func (v Values) checkRavenConf() error {
	text, _ := v["ravenConf"].(string)
	secrets, err := config.RavenSecrets("value ravenConf", text)
	if err != nil {
		return err
	}
	if len(secrets) > 0 {
		neutron, _ := v["neutron"].(map[string]any)
		return fmt.Errorf("value ravenConf: %s: a ConfigMap is no place for it; take it out, and put the credentials as clouds.yaml into the Secret %v", strings.Join(secrets, ", "), neutron["secret"])
	}
	return nil
}

// Providers.
const (
	Embedded = "embedded"
	Neutron  = "neutron"
)
