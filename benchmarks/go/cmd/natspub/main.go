// Command natspub measures how fast nats.go publishes ready-made payloads,
// with one Flush (PING, PONG) at the end.
package main

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"liftenvelope.test/benchmarks/internal/report"
)

func main() {
	url := flag.String("url", nats.DefaultURL, "NATS server")
	subject := flag.String("subject", "bench.natspub", "subject")
	n := flag.Int("n", 1_000_000, "messages")
	size := flag.Int("size", 256, "bytes of the payload, when it is not given")
	payloadHex := flag.String("payload", "", "payload, hex")
	deadline := flag.Duration("deadline", time.Minute, "give up after this long")
	flag.Parse()

	payload := bytes.Repeat([]byte("x"), *size)
	if *payloadHex != "" {
		var err error
		if payload, err = hex.DecodeString(*payloadHex); err != nil {
			report.Fail(err)
		}
	}
	nc, err := nats.Connect(*url)
	if err != nil {
		report.Fail(err)
	}
	time.AfterFunc(*deadline, func() {
		report.Print(map[string]any{"n": *n, "hung": true})
		os.Exit(1)
	})
	start := time.Now()
	for range *n {
		if err := nc.Publish(*subject, payload); err != nil {
			report.Fail(err)
		}
	}
	// Flush answers when the server has read all that was written before it.
	if err := nc.Flush(); err != nil {
		report.Fail(err)
	}
	seconds := time.Since(start).Seconds()
	report.Print(map[string]any{
		"client":     report.Version("github.com/nats-io/nats.go"),
		"n":          *n,
		"bytes":      len(payload),
		"seconds":    seconds,
		"msgs_per_s": float64(*n) / seconds,
		"mb_per_s":   float64(*n) * float64(len(payload)) / seconds / 1e6,
		"hung":       false,
	})
}
