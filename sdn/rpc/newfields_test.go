package rpc

import (
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// A server refuses fields that it does not know. So a client leaves out the newer ones unless they say something.
func TestNewerFieldsAreLeftOut(t *testing.T) {
	t.Parallel()
	yes, id := true, sdn.ID("x")
	for name, c := range map[string]struct {
		zero, full any
		fields     []string
	}{
		"network": {sdn.NetworkSpec{}, sdn.NetworkSpec{QoSPolicy: id, Default: true}, []string{"QoSPolicy", "Default"}},
		"network patch": {sdn.NetworkPatch{}, sdn.NetworkPatch{QoSPolicy: &id, Default: &yes},
			[]string{"QoSPolicy", "Default"}},
		"subnet pool":       {sdn.SubnetPoolSpec{}, sdn.SubnetPoolSpec{Scope: id}, []string{"Scope"}},
		"subnet pool patch": {sdn.SubnetPoolPatch{}, sdn.SubnetPoolPatch{Scope: &id}, []string{"Scope"}},
		"QoS policy":        {sdn.QoSPolicySpec{}, sdn.QoSPolicySpec{Default: true}, []string{"Default"}},
	} {
		for _, field := range c.fields {
			for full, arg := range map[bool]any{false: c.zero, true: c.full} {
				sent, err := encodeArgs([]any{arg})
				if err != nil || strings.Contains(string(sent), `"`+field+`"`) != full {
					t.Errorf("%s: %s is sent: %s, %v", name, field, sent, err)
				}
			}
		}
	}
}
