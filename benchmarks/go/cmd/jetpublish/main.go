// Command jetpublish measures nats.go's PublishAsync to a JetStream stream
// that is there already, from the first call to the last ack.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"liftenvelope.test/benchmarks/internal/report"
)

func main() {
	url := flag.String("url", nats.DefaultURL, "NATS server")
	subject := flag.String("subject", "bench", "subject that the stream records")
	n := flag.Int("n", 100_000, "messages")
	size := flag.Int("size", 100, "bytes of the payload")
	window := flag.Int("window", 4_000, "messages without their ack")
	deadline := flag.Duration("deadline", 2*time.Minute, "give up after this long")
	flag.Parse()

	time.AfterFunc(*deadline, func() {
		fmt.Fprintln(os.Stderr, "not all was acked before the deadline")
		os.Exit(1)
	})
	nc, err := nats.Connect(*url)
	if err != nil {
		report.Fail(err)
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(*window))
	if err != nil {
		report.Fail(err)
	}
	payload := bytes.Repeat([]byte("x"), *size)
	start := time.Now()
	futures, err := publish(js, *subject, payload, *n)
	if err != nil {
		report.Fail(err)
	}
	<-js.PublishAsyncComplete()
	seconds := time.Since(start).Seconds()
	acked, last := count(futures)
	report.Print(map[string]any{
		"client":      report.Version("github.com/nats-io/nats.go"),
		"n":           *n,
		"acked":       acked,
		"last":        last,
		"seconds":     seconds,
		"acked_per_s": float64(acked) / seconds,
	})
	if acked < *n {
		os.Exit(1)
	}
}

func publish(js jetstream.JetStream, subject string, payload []byte, n int) ([]jetstream.PubAckFuture, error) {
	futures := make([]jetstream.PubAckFuture, n)
	for i := range futures {
		// The default is to wait 0.2 s for room, and then to give up.
		future, err := js.PublishAsync(subject, payload, jetstream.WithStallWait(time.Minute))
		if err != nil {
			return nil, err
		}
		futures[i] = future
	}
	return futures, nil
}

// count returns how many are acked, and the largest sequence of them.
func count(futures []jetstream.PubAckFuture) (acked int, last uint64) {
	for _, future := range futures {
		select {
		case ack := <-future.Ok():
			acked++
			last = max(last, ack.Sequence)
		case err := <-future.Err():
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return acked, last
}
