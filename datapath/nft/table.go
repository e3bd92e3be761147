//go:build linux

package nft

import (
	"crypto/sha256"
	"fmt"
	"reflect"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// Table names a table of the kernel.
type Table struct {
	Name   string
	Family nftables.TableFamily
	// Words makes the hashes of rules see First as Reg(0), as package lb has always had it. To
	// the kernel they are the same.
	Words bool
}

// String is for errors.
func (t Table) String() string {
	if t.Family == nftables.TableFamilyBridge {
		return "bridge " + t.Name
	}
	return "inet " + t.Name
}

// Ref is the table as package nftables has it.
func (t Table) Ref() *nftables.Table { return &nftables.Table{Name: t.Name, Family: t.Family} }

func (t Table) chain(name string) *nftables.Chain {
	return &nftables.Chain{Table: t.Ref(), Name: name}
}

// Rule is a rule whose comment says what it is for. One without a comment has none in the kernel.
type Rule struct {
	Comment string
	Exprs   Exprs
	// Any leaves the hash out of the comment: whatever the rule does, it is as wanted.
	Any bool
}

// NewRule returns a rule of some parts.
func NewRule(comment string, parts ...Exprs) Rule {
	return Rule{Comment: comment, Exprs: Join(parts...)}
}

// Chain is a base chain if it has a hook, otherwise one that rules lead to.
type Chain struct {
	Name     string
	Type     nftables.ChainType
	Hook     *nftables.ChainHook
	Priority nftables.ChainPriority
	Rules    []Rule
}

// Add adds a rule.
func (c *Chain) Add(comment string, parts ...Exprs) {
	c.Rules = append(c.Rules, NewRule(comment, parts...))
}

// Stamp is the comment that a rule has in the kernel: what it is for, and a hash of what it does.
func (t Table) Stamp(r Rule) (string, error) {
	if r.Any || r.Comment == "" {
		return r.Comment, nil
	}
	hash := sha256.New()
	for _, e := range r.Exprs {
		if t.Words {
			e = inWords(e)
		}
		b, err := expr.Marshal(byte(t.Family), e)
		if err != nil {
			return "", fmt.Errorf("rule %q: %w", r.Comment, err)
		}
		hash.Write(b)
	}
	return fmt.Sprintf("%s #%x", r.Comment, hash.Sum(nil)[:4]), nil
}

// inWords returns an expression that names First as Reg(0).
func inWords(e expr.Any) expr.Any {
	own := reflect.New(reflect.TypeOf(e).Elem())
	own.Elem().Set(reflect.ValueOf(e).Elem())
	for _, name := range []string{"Register", "SourceRegister", "DestRegister", "RegAddrMin"} {
		field := own.Elem().FieldByName(name)
		if field.IsValid() && field.Kind() == reflect.Uint32 && field.Uint() == uint64(First) {
			field.SetUint(unix.NFT_REG32_00)
		}
	}
	return own.Interface().(expr.Any)
}

// CommentOf returns the comment of a rule that was read from the kernel.
func CommentOf(r *nftables.Rule) string {
	comment, _ := userdata.GetString(r.UserData, userdata.TypeComment)
	return comment
}
