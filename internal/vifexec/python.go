//go:build linux

package vifexec

import (
	"slices"
	"strings"
)

// quoted is the text of a Python dictionary between double quotes: kuryr-lib's executables look for 'ovs_hybrid_plug': True in it.
func quoted(details map[string]string) string {
	if len(details) == 0 {
		return ""
	}
	keys := make([]string, 0, len(details))
	for k := range details {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b strings.Builder
	b.WriteString(`"{`)
	for i, k := range keys {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(python(k) + ": " + pythonValue(details[k]))
	}
	b.WriteString(`}"`)
	return b.String()
}

func pythonValue(s string) string {
	switch s {
	case "true":
		return "True"
	case "false":
		return "False"
	case "null":
		return "None"
	}
	return python(s)
}

func python(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(s) + "'"
}
