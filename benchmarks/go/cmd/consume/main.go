// Command consume measures reading a stream with go-liftbridge from a running
// Liftbridge: N messages of one partition from its earliest offset, timed from
// the first of them and from the call of Subscribe to the last.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"

	"liftenvelope.test/benchmarks/internal/report"
)

type options struct {
	addr, stream string
	n            int
	partition    int
	deadline     time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.addr, "addr", "127.0.0.1:9292", "Liftbridge server")
	flag.StringVar(&o.stream, "stream", "bench-go", "stream")
	flag.IntVar(&o.n, "n", 100_000, "messages, at least 2")
	flag.IntVar(&o.partition, "partition", 0, "partition")
	flag.DurationVar(&o.deadline, "deadline", 2*time.Minute, "give up after this long")
	flag.Parse()
	if o.n < 2 {
		report.Fail(fmt.Errorf("-n=%d: expected at least 2", o.n))
	}
	client, err := lift.Connect([]string{o.addr})
	if err != nil {
		report.Fail(fmt.Errorf("connect: %w", err))
	}
	read, err := consume(client, o)
	if errors.Is(err, errDeadline) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err != nil {
		report.Fail(err)
	}
	read.report(o)
}

var errDeadline = errors.New("not all was read before the deadline")

// reading is what the handler notes. It belongs to the client's dispatcher
// until that is done with it.
type reading struct {
	subscribed, first, last time.Time
	n, bytes                int
	unordered               int
	next                    int64
	err                     error
}

// take notes one message and says whether that was the last.
func (r *reading) take(message *lift.Message, n int) bool {
	if r.n == 0 {
		r.first = time.Now()
		r.next = message.Offset()
	}
	if message.Offset() != r.next {
		r.unordered++
	}
	r.next = message.Offset() + 1
	r.n++
	r.bytes += len(message.Value())
	if r.n < n {
		return false
	}
	r.last = time.Now()
	return true
}

// consume returns what was read: all of it, or what there was at an error.
func consume(client lift.Client, o options) (*reading, error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.deadline)
	defer cancel()
	read := &reading{subscribed: time.Now()}
	done := make(chan struct{})
	over := false // The dispatcher may call on after the end until it sees the cancelled context.
	handler := func(message *lift.Message, err error) {
		if over {
			return
		}
		if err == nil && !read.take(message, o.n) {
			return
		}
		over, read.err = true, err
		close(done)
	}
	err := client.Subscribe(ctx, o.stream, handler,
		lift.StartAtEarliestReceived(), lift.Partition(int32(o.partition)))
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	select {
	case <-done:
		return read, nil
	case <-ctx.Done():
		// The handler may still be at work on read.
		return nil, errDeadline
	}
}

func (r *reading) report(o options) {
	fields := map[string]any{
		"client":                 report.Version("github.com/liftbridge-io/go-liftbridge/v2"),
		"n":                      o.n,
		"read":                   r.n,
		"bytes":                  r.bytes,
		"unordered":              r.unordered,
		"seconds":                r.last.Sub(r.first).Seconds(),
		"seconds_from_subscribe": r.last.Sub(r.subscribed).Seconds(),
		"messages_per_s":         float64(r.n-1) / r.last.Sub(r.first).Seconds(),
		"error":                  "",
	}
	if r.err != nil {
		fields["error"] = r.err.Error()
	}
	whole := r.err == nil && r.n == o.n && r.unordered == 0
	if !whole {
		// What has no last message has no time either.
		fields["seconds"], fields["seconds_from_subscribe"], fields["messages_per_s"] = 0.0, 0.0, 0.0
	}
	report.Print(fields)
	if !whole {
		os.Exit(1)
	}
}
