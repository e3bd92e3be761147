package ovsdb

import (
	"context"
	"encoding/json"
	"fmt"
)

// Op is an operation of a transaction (RFC 7047, section 5.2).
type Op map[string]any

// Condition selects rows: a column, a function and a value. Conditions of one operation
// must all hold.
type Condition [3]any

// Mutation changes a column: its name, a mutator and a value.
type Mutation [3]any

// Equals holds for rows whose column has the value.
func Equals(column string, value any) Condition { return Condition{column, "==", value} }

// Differs holds for rows whose column has another value.
func Differs(column string, value any) Condition { return Condition{column, "!=", value} }

// Includes holds for rows whose column, a set or a map, has the value or all of its elements.
func Includes(column string, value any) Condition { return Condition{column, "includes", value} }

// Select reads columns of the rows that meet all conditions.
func Select(table string, where []Condition, columns ...string) Op {
	return Op{"op": "select", "table": table, "where": all(where), "columns": columns}
}

// Insert makes a row, which other operations of the transaction know as Named(name).
func Insert(table, name string, row map[string]any) Op {
	return Op{"op": "insert", "table": table, "uuid-name": name, "row": row}
}

// Mutate changes the rows that meet all conditions, by each mutation in turn.
func Mutate(table string, where []Condition, mutations ...Mutation) Op {
	return Op{"op": "mutate", "table": table, "where": all(where), "mutations": mutations}
}

// Comment is written into the database's log with the transaction, for an operator's eyes.
func Comment(text string) Op { return Op{"op": "comment", "comment": text} }

func all(where []Condition) []Condition {
	if where == nil {
		return []Condition{} // the protocol wants a list
	}
	return where
}

// Result is what came of an operation.
type Result struct {
	Count   int   `json:"count"` // rows that a Mutate has met
	UUID    UUID  `json:"uuid"`  // of the row that an Insert has made
	Rows    []Row `json:"rows"`  // that a Select has found
	Error   string
	Details string
}

// OpError says which operation failed, so that nothing of the transaction was done.
type OpError struct {
	Op      int    // its position; the number of operations where it was the commit
	Code    string // RFC 7047's, such as "constraint violation"
	Details string // for people
}

// ConstraintViolation is the code of a transaction that would have made two rows of one
// name, or otherwise broken the schema.
const ConstraintViolation = "constraint violation"

// Error names what the database said.
func (e *OpError) Error() string {
	if e.Details == "" {
		return "Open vSwitch's database: " + e.Code
	}
	return fmt.Sprintf("Open vSwitch's database: %s: %s", e.Code, e.Details)
}

// Transact does all operations or none, and returns their results by position. The error
// is an *OpError where the database refuses; nothing was done then. IsUnavailable:
// whether it was done is unknown.
func (c *Conn) Transact(ctx context.Context, ops ...Op) ([]Result, error) {
	params := []any{Database}
	for _, op := range ops {
		params = append(params, op)
	}
	answer, err := c.call(ctx, "transact", params)
	if err != nil {
		return nil, err
	}
	var results []Result // a null, of an operation after one that failed, is left empty
	if err := json.Unmarshal(answer, &results); err != nil {
		return nil, c.lost(ctx, "transact rightly", err)
	}
	for n, r := range results {
		if r.Error != "" {
			return nil, &OpError{Op: n, Code: r.Error, Details: r.Details}
		}
	}
	if len(results) < len(ops) {
		return nil, c.lost(ctx, "transact rightly", fmt.Errorf("%d results for %d operations", len(results), len(ops)))
	}
	return results, nil
}
