// The style check of "make lint". It has a module of its own, so that the program's build and tests do not include it.
module github.com/kuryr/kuryr/hack/tools/stylecheck

go 1.26.0
