package parity

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// A Step is one request of the table.
type Step struct {
	Name   string            // of the step; unique
	Method string            // GET, POST, PUT or DELETE
	Path   string            // below /v2.0; ${name} is what an earlier step has saved
	Body   string            // JSON, with ${name} as well; "" is none
	Header map[string]string // of the request
	Save   map[string]string // name → where in the answer: "network.id", "ports.0.id"
	Same   []string          // where in the answer the values are compared too, not only their types; "ports.#" is how many there are
}

// An Answer is what is compared of an answer to a step.
type Answer struct {
	Status int               `json:"status"`
	Error  string            `json:"error,omitempty"` // the type of the NeutronError
	Shape  map[string]string `json:"shape,omitempty"` // where → JSON type; "[]" in it stands for every element of a list
	Values map[string]string `json:"values,omitempty"`
}

// Asker sends a request to a server of Neutron's API, whose paths begin with /v2.0.
type Asker func(r *http.Request) (*http.Response, error)

// Run asks every step of the table, in order, and gives the answers by the steps' names. The error is that of a step that could not be asked.
func Run(ctx context.Context, ask Asker) (map[string]Answer, error) {
	saved := map[string]string{"project": "parity"}
	answers := map[string]Answer{}
	for _, step := range Table {
		answer, err := step.run(ctx, ask, saved)
		if err != nil {
			return answers, fmt.Errorf("%s: %w", step.Name, err)
		}
		if _, twice := answers[step.Name]; twice {
			return answers, fmt.Errorf("two steps are called %q", step.Name)
		}
		answers[step.Name] = answer
	}
	return answers, nil
}

func (s Step) run(ctx context.Context, ask Asker, saved map[string]string) (Answer, error) {
	var pairs []string
	for name, value := range saved {
		pairs = append(pairs, "${"+name+"}", value)
	}
	fill := strings.NewReplacer(pairs...).Replace
	var body io.Reader
	if s.Body != "" {
		body = strings.NewReader(fill(s.Body))
	}
	r, err := http.NewRequestWithContext(ctx, s.Method, "http://parity/v2.0"+fill(s.Path), body)
	if err != nil {
		return Answer{}, err
	}
	if s.Body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for name, value := range s.Header {
		r.Header.Set(name, fill(value))
	}
	response, err := ask(r)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return Answer{}, err
	}
	answer := Answer{Status: response.StatusCode, Shape: map[string]string{}, Values: map[string]string{}}
	var content any
	if len(bytes.TrimSpace(data)) > 0 {
		if err := json.Unmarshal(data, &content); err != nil {
			content = "no JSON"
		}
	}
	if kind, ok := at(content, "NeutronError.type").(string); ok {
		answer.Error = kind
	}
	shape(content, "", answer.Shape)
	for _, where := range s.Same {
		answer.Values[where] = printed(at(content, where))
	}
	for name, where := range s.Save {
		value, ok := at(content, where).(string)
		if saved[name] = value; !ok {
			saved[name] = "absent-" + name
		}
	}
	return answer, nil
}

func printed(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
