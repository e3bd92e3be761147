// Package parity holds what Kuryr's REST API answers against what a real Neutron answers, request by request.
//
// It owns the table of requests (table.go), how two answers are compared (by status, by the names and JSON types of what is in them, by the error's
// type, and by chosen values), and the table of the differences that there are, each with its reason (differences.go). A difference that is not listed fails
// a test, and so does one that is listed and is none any more.
//
// What Neutron answered is recorded in testdata, so that every run of the tests compares; the suite on a real Neutron compares with what that one
// answers, and writes the record anew where it is asked to. The package must not know what serves: it is given a function that asks.
package parity
