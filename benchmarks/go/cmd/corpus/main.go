// Command corpus writes envelopes made by Go, and what Go makes of broken
// ones, for the tests of the Python codec. The same seed gives the same file.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"

	"liftenvelope.test/benchmarks/internal/report"
)

// record is one line of the corpus.
type record struct {
	Kind string `json:"kind"`           // "message", "ack" or "malformed"
	Type string `json:"type,omitempty"` // of a malformed one: what it was decoded as
	What string `json:"what"`           // how it was made

	// Of a valid one: whether the hex is what protobuf's encoder makes of the
	// fields, headers in the order of their keys; else it only decodes to them.
	Canonical bool `json:"canonical,omitempty"`
	CRC       bool `json:"crc,omitempty"` // has a CRC-32C

	// The verdict of google.golang.org/protobuf, which the Go client v2.4.0 and
	// the server 26 use, after the server's check of the header.
	Error  *bool  `json:"error,omitempty"`  // of a malformed one
	Reason string `json:"reason,omitempty"` // which check failed; "crash": the process of either server dies
	// What it decoded to. A field that is absent has its default.
	Fields map[string]any `json:"fields,omitempty"`

	// The same for the generated code of the server 1.9.0 (gogo).
	Error19  *bool          `json:"error_1_9,omitempty"`
	Fields19 map[string]any `json:"fields_1_9,omitempty"` // only if both accept, but not alike

	Hex string `json:"hex"`
}

func main() {
	out := flag.String("o", "go_corpus.jsonl.gz", "file to write")
	seed := flag.Uint64("seed", 3, "seed")
	mutants := flag.Int("mutants", 480, "malformed envelopes made by random mutation, beside the hand-made ones")
	flag.Parse()

	g := &generator{rnd: rand.New(rand.NewPCG(*seed, 0))}
	g.messages()
	g.acks()
	g.unusual()
	g.headers()
	g.wire()
	g.mutate(*mutants)

	var file bytes.Buffer
	packed, err := gzip.NewWriterLevel(&file, gzip.BestCompression) // writes no time and no name
	if err != nil {
		report.Fail(err)
	}
	lines := json.NewEncoder(packed)
	lines.SetEscapeHTML(false)
	counts := map[string]int{}
	for _, r := range g.records {
		if err := lines.Encode(r); err != nil {
			report.Fail(err)
		}
		count(counts, r)
	}
	if err := packed.Close(); err != nil {
		report.Fail(err)
	}
	if err := os.WriteFile(*out, file.Bytes(), 0o644); err != nil {
		report.Fail(err)
	}
	report.Print(map[string]any{
		"file": *out, "seed": *seed, "records": len(g.records), "bytes": file.Len(), "counts": counts,
		"protobuf": report.Version("google.golang.org/protobuf"),
		"api":      report.Version("github.com/liftbridge-io/liftbridge-api"),
	})
}

func count(counts map[string]int, r record) {
	counts[r.Kind]++
	if r.Kind != "malformed" {
		return
	}
	if !*r.Error {
		counts["malformed accepted"]++
	}
	if r.Reason == "crash" {
		counts["malformed crash"]++
	}
	if *r.Error != *r.Error19 {
		counts["malformed judged differently by 1.9.0"]++
	}
}
