//go:build tools

// Package tools names the program, so that go.mod keeps it.
package tools

import _ "github.com/summerwind/h2spec/cmd/h2spec"
