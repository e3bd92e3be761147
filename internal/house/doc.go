// Package house keeps the laws of the source tree: who may import whom, what a package must say of itself, how large a
// file may grow, and which calls have no place where. It reads source files only, and holds nothing that the program runs.
//
// The laws are a table in rules.go and a test beside it, so that breaking one fails "make test" with a sentence that says why.
package house
