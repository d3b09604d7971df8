// Package report prints what a benchmark found: one JSON object on stdout.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"
)

// Print writes v to stdout as one line of JSON.
func Print(v any) {
	line, err := json.Marshal(v)
	if err != nil {
		Fail(err)
	}
	fmt.Println(string(line))
}

// Fail writes err to stderr and exits with status 2, so that a caller can tell
// "did not run" from "ran, but not everything was acked" (status 1).
func Fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}

// Quantile returns the q-quantile (nearest rank) of values, 0 of none. It sorts values.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[int(q*float64(len(values)-1)+0.5)]
}

// Micros returns d in microseconds.
func Micros(d time.Duration) float64 {
	return float64(d) / float64(time.Microsecond)
}

// Version returns the version of a module that this program was built with.
func Version(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module {
				return dep.Version
			}
		}
	}
	return "unknown"
}
