// Package install puts Kuryr into a Kubernetes cluster: it renders the manifests of deploy/kubernetes, which are a Helm chart's templates, and applies them with server-side
// apply.
//
// It owns which part of Helm's templates they may use: the actions and functions of
// internal/template, quote, default, toYaml, fromYaml, nindent, sha256sum, hasKey,
// regexReplaceAll, fail, include and lookup with the meaning that helm gives them, .Values,
// .Release.Name, .Release.Namespace and .Chart.AppVersion. A template that uses more does not
// render, and its test fails.
//
// It must not decide what Kuryr does when it runs, nor remove anything from a cluster.
package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/deploy/kubernetes"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/template"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// Release is which Kuryr goes where.
type Release struct {
	Namespace string // of Kuryr's own pods
	Version   string // the program's, which is the image's tag; "" is the chart's
	Values    Values
	// Lookup reads objects of the cluster; nil means that there is no cluster. The output can
	// depend on what the cluster has, as with helm.
	Lookup Lookup
}

// Manifest is one object as it is rendered, with its comments, and as it is applied.
type Manifest struct {
	Text   string
	Object *unstructured.Unstructured
}

// checkManifests refuses what single values cannot show to be wrong.
func checkManifests(all []Manifest) error {
	for _, m := range all {
		if m.Object.GetKind() != "ConfigMap" {
			continue
		}
		text, _, _ := unstructured.NestedString(m.Object.Object, "data", "kuryr.yaml")
		cfg, err := config.Parse("kuryr.yaml", []byte(text))
		if err != nil {
			return valueError("config", err)
		}
		if err := checkRanges(cfg.Controller); err != nil {
			return err
		}
	}
	return nil
}

// order is that of applying: what others need comes first. What is not named comes last.
var order = []string{
	"Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ConfigMap",
}

// refusal is the message of a template that refuses the values.
type refusal string

func (r refusal) Error() string { return string(r) }

// Render makes the manifests in the order in which they are applied. An error names the
// template, or what of the release is wrong. The templates refuse what helm must refuse too.
func Render(r Release) ([]Manifest, error) {
	if bad := validation.IsDNS1123Label(r.Namespace); bad != nil {
		return nil, fmt.Errorf("namespace %q: %s", r.Namespace, strings.Join(bad, ", "))
	}
	if err := r.Values.Check(); err != nil {
		return nil, err
	}
	texts, err := renderTemplates(r, "templates/*.yaml")
	var refused refusal
	if errors.As(err, &refused) {
		return nil, refused // without the place in the template
	}
	if err != nil {
		return nil, err
	}
	crds, err := fs.Glob(kubernetes.Files, "crds/*.yaml")
	if err != nil {
		return nil, err
	}
	for _, name := range crds {
		text, err := kubernetes.Files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		texts = append(texts, rendered{name, string(text)})
	}
	var all []Manifest
	for _, t := range texts {
		for _, text := range documents(t.text) {
			object := map[string]any{}
			if err := yaml.Unmarshal([]byte(text), &object); err != nil {
				return nil, fmt.Errorf("%s: %w", t.name, err)
			}
			if len(object) > 0 {
				all = append(all, Manifest{Text: text, Object: &unstructured.Unstructured{Object: object}})
			}
		}
	}
	rank := func(m Manifest) int {
		if i := slices.Index(order, m.Object.GetKind()); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortStableFunc(all, func(a, b Manifest) int { return rank(a) - rank(b) })
	return all, checkManifests(all)
}

// Text is the manifests as one stream of YAML, for kubectl apply -f.
func Text(manifests []Manifest) string {
	var b strings.Builder
	for i, m := range manifests {
		if i > 0 {
			b.WriteString("---\n")
		}
		b.WriteString(strings.Trim(m.Text, "\n") + "\n")
	}
	return b.String()
}

// Notes returns what helm prints after an installation, in lines.
func Notes(r Release) (string, error) {
	texts, err := renderTemplates(r, "templates/NOTES.txt")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(texts[0].text) + "\n", nil
}

type rendered struct{ name, text string }

// renderTemplates renders the templates whose names match the pattern.
func renderTemplates(r Release, pattern string) ([]rendered, error) {
	all := template.Template{}
	functions := r.functions(all)
	files, err := fs.Glob(kubernetes.Files, "templates/*")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := kubernetes.Files.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := all.Parse(path.Base(file), string(text), functions); err != nil {
			return nil, err
		}
	}
	version := r.Version
	if version == "" {
		if version, err = chartVersion(); err != nil {
			return nil, err
		}
	}
	data := map[string]any{
		"Values":  map[string]any(r.Values),
		"Release": map[string]any{"Name": "kuryr", "Namespace": r.Namespace},
		"Chart":   map[string]any{"AppVersion": version},
	}
	var out []rendered
	names, err := fs.Glob(kubernetes.Files, pattern)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		var b bytes.Buffer
		if err := all.Execute(&b, path.Base(name), data, functions); err != nil {
			return nil, err
		}
		out = append(out, rendered{name, b.String()})
	}
	return out, nil
}

// documents are the parts of a stream of YAML.
func documents(text string) []string {
	return strings.Split("\n"+text, "\n---\n")
}

func chartVersion() (string, error) {
	var chart struct{ AppVersion string }
	data, err := kubernetes.Files.ReadFile("Chart.yaml")
	if err == nil {
		err = yaml.Unmarshal(data, &chart)
	}
	return chart.AppVersion, err
}

// functions are those of Helm's that the templates may use, with those that need the release.
func (r Release) functions(all template.Template) template.Funcs {
	set := maps.Clone(plain)
	set["lookup"] = func(apiVersion, kind, namespace, name string) (map[string]any, error) {
		if r.Lookup == nil {
			return nil, nil
		}
		return r.Lookup(apiVersion, kind, namespace, name)
	}
	set["include"] = func(name string, data any) (string, error) {
		var b strings.Builder
		err := all.Execute(&b, name, data, set)
		return b.String(), err
	}
	return set
}

// plain are the functions that need nothing but their arguments.
var plain = template.Funcs{
	"fail":   func(message string) (string, error) { return "", refusal(message) },
	"hasKey": func(m map[string]any, key string) bool { _, has := m[key]; return has },
	"quote": func(v any) string {
		if v == nil {
			return ""
		}
		return strconv.Quote(fmt.Sprint(v))
	},
	"default": func(instead, v any) any {
		if template.IsTrue(v) && !isZero(v) {
			return v
		}
		return instead
	},
	"toYaml": func(v any) (string, error) {
		data, err := yaml.Marshal(v)
		return strings.TrimSuffix(string(data), "\n"), err
	},
	// A text that is no map gives the key Error.
	"fromYaml": func(text string) map[string]any {
		m := map[string]any{}
		if err := yaml.Unmarshal([]byte(text), &m); err != nil {
			m = map[string]any{"Error": err.Error()}
		}
		return m
	},
	"regexReplaceAll": func(expression, text, replacement string) (string, error) {
		re, err := regexp.Compile(expression)
		if err != nil {
			return "", err
		}
		return re.ReplaceAllString(text, replacement), nil
	},
	"nindent": func(n int, text string) string {
		space := strings.Repeat(" ", n)
		return "\n" + space + strings.ReplaceAll(text, "\n", "\n"+space)
	},
	"sha256sum": func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return hex.EncodeToString(sum[:])
	},
}

func isZero(v any) bool { return v == nil || reflect.ValueOf(v).IsZero() }
