// Package house keeps the laws of the source tree: who may import whom, what a package must say of itself, how large a
// file may grow, which calls have no place where, and what programs must not be made of. It reads source files, and asks
// the go command for a program's packages; it holds nothing that the program runs.
//
// The laws are a table in rules.go and a test beside it, so that breaking one fails "make test" with a sentence that says why.
package house
