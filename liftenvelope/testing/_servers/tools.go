//go:build tools

// Package servers pins the programs that the tests run; the blank import keeps them in go.mod.
package servers

import _ "github.com/liftbridge-io/liftbridge"
