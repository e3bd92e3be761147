package bundle

import (
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Hidden stands where something was left out.
const Hidden = "[redacted]"

// words are what names of secrets hold.
const words = `pass(?:word|wd|phrase)?|secret|token|credential|` +
	`api_?-?key|private_?-?key|access_?-?key|authorization|cookie`

var (
	// A block without its end was cut off.
	pem = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\z)`)
	// A PEM block on one line, as JSON and some logs have it, is met by the same.
	userinfo = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/@"'<>]+@`)
	// scheme: "Authorization: Basic …", also alone.
	scheme = regexp.MustCompile(`(?i)\b(bearer|basic|digest)(\s+)[A-Za-z0-9+/=._~-]{6,}`)
	jwt    = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`)
	// named is a name that holds one of the words, and what it is set to: in JSON, YAML, an
	// environment, a command line, a query.
	named = regexp.MustCompile(
		`(?i)((?:\\?["'])?[\w.-]*(?:` + words + `)[\w.-]*(?:\\?["'])?[ \t]*[:=][ \t]*|--?[\w.-]*(?:` +
			words + `)[\w.-]*[ \t]+)(\\"(?:[^"\\]|\\[^"])*\\"|"(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;&}\]]+)`,
	)
	// dangling is a name at the end of its line.
	dangling = regexp.MustCompile(`(?i)(?:` + words + `)[\w.-]*["']?[ \t]*[:=][ \t]*[|>]?[ \t]*\r?\n?$`)
	// sensitive is a key of a configuration whose value is left out whole, be it a tree.
	sensitive = regexp.MustCompile(`(?i)` + words + `|(?:^|[._-])key$`)
)

// hints are in every line that one of these may meet, in small letters. Most lines have
// none, and looking for them is quick.
var hints = []string{
	"://", "bearer", "basic", "digest", "eyj", "pass", "secret", "token", "credential", "key",
	"authorization", "cookie",
}

func hinted(line string) bool {
	line = strings.ToLower(line)
	return slices.ContainsFunc(hints, func(h string) bool { return strings.Contains(line, h) })
}

// Redact leaves out of a text what looks like a secret: PEM blocks, credentials in
// addresses, tokens, and what is set to a name that says so. It rather leaves out too
// much.
func Redact(text string) string {
	if strings.Contains(text, "-----BEGIN") {
		text = pem.ReplaceAllString(text, Hidden)
	}
	var out strings.Builder
	out.Grow(len(text))
	next := false // the value is on the line after its name
	for line := range strings.Lines(text) {
		if next && strings.TrimSpace(line) != "" {
			line, next = Hidden+"\n", false
		}
		if hinted(line) {
			next = dangling.MatchString(line)
			line = redactLine(line)
		}
		out.WriteString(line)
	}
	return out.String()
}

func redactLine(line string) string {
	line = userinfo.ReplaceAllString(line, "${1}"+Hidden+"@")
	line = scheme.ReplaceAllString(line, "${1}${2}"+Hidden)
	line = jwt.ReplaceAllString(line, Hidden)
	return named.ReplaceAllStringFunc(line, func(found string) string {
		m := named.FindStringSubmatch(found)
		for _, quote := range []string{`\"`, `"`, `'`} {
			if strings.HasPrefix(m[2], quote) {
				return m[1] + quote + Hidden + quote
			}
		}
		return m[1] + Hidden
	})
}

// IsSensitive reports whether what is set to this name is left out.
func IsSensitive(name string) bool { return sensitive.MatchString(name) }

// RedactYAML gives a file's settings without its comments and without the values of names
// that are secrets'. One that is not YAML is an error, and nothing of it is told.
func RedactYAML(data []byte) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return "", err
	}
	if document.Kind == 0 {
		return "", nil
	}
	redactNode(&document)
	out, err := yaml.Marshal(&document)
	return Redact(string(out)), err
}

func redactNode(n *yaml.Node) {
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	for i, child := range n.Content {
		redactNode(child)
		if n.Kind == yaml.MappingNode && i%2 == 1 && IsSensitive(n.Content[i-1].Value) {
			*child = yaml.Node{Kind: yaml.ScalarNode, Value: Hidden}
		}
	}
}
