// Command publish measures acked publishing with go-liftbridge against a
// running Liftbridge: PublishAsync with a window of messages in flight, or
// with -sync one Publish after the other. The ack policy is LEADER.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"

	"liftenvelope.test/benchmarks/internal/report"
)

type options struct {
	addr, subject, stream   string
	size, n, window, warmup int
	sync, create            bool
	ackWait, deadline       time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.addr, "addr", "127.0.0.1:9292", "Liftbridge server")
	flag.StringVar(&o.stream, "stream", "bench-go", "stream")
	flag.BoolVar(&o.create, "create", false, "create the stream (one partition) if it does not exist")
	flag.StringVar(&o.subject, "subject", "", "subject of a created stream; default: the stream's name")
	flag.IntVar(&o.size, "size", 256, "bytes of the value")
	flag.IntVar(&o.n, "n", 100_000, "messages")
	flag.IntVar(&o.window, "window", 1000, "messages in flight")
	flag.IntVar(&o.warmup, "warmup", 200, "messages published one by one before the clock starts")
	flag.BoolVar(&o.sync, "sync", false, "publish one by one")
	flag.DurationVar(&o.ackWait, "ack-wait", 5*time.Second, "a message without an ack for this long is lost")
	flag.DurationVar(&o.deadline, "deadline", 2*time.Minute, "give up after this long and report what there is")
	flag.Parse()
	if o.subject == "" {
		o.subject = o.stream
	}

	// Whatever hangs inside the client (its ack dispatcher ends for good on most
	// errors), the deadline reports. The client is never closed: its Close waits
	// for the dispatcher while it holds the lock that the dispatcher may want.
	t := &tally{options: o, latencies: make([]float64, 0, o.n)}
	time.AfterFunc(o.deadline, func() { t.finish(true) })
	client, err := prepare(o)
	if err != nil {
		report.Fail(err)
	}
	t.begin()
	if o.sync {
		publishSync(client, t)
	} else {
		publishAsync(client, t)
	}
	t.finish(false)
}

// prepare connects, creates the stream if asked to, and warms up.
func prepare(o options) (lift.Client, error) {
	// Not ConnectCtx with a timeout: the client opens its PublishAsync stream
	// with that context, so the stream, and every ack, would end with it.
	client, err := lift.Connect([]string{o.addr}, lift.AckWaitTime(o.ackWait))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if o.create {
		err := client.CreateStream(context.Background(), o.subject, o.stream)
		if err != nil && !errors.Is(err, lift.ErrStreamExists) {
			return nil, fmt.Errorf("create stream: %w", err)
		}
	}
	value := bytes.Repeat([]byte("w"), o.size)
	for range o.warmup {
		if _, err := publishOne(client, o.stream, value); err != nil {
			return nil, fmt.Errorf("warm-up: %w", err)
		}
	}
	return client, nil
}

func publishOne(client lift.Client, stream string, value []byte) (time.Duration, error) {
	start := time.Now()
	_, err := client.Publish(context.Background(), stream, value, lift.AckPolicyLeader())
	return time.Since(start), err
}

func publishSync(client lift.Client, t *tally) {
	value := bytes.Repeat([]byte("x"), t.size)
	for range t.n {
		t.sent()
		t.outcome(publishOne(client, t.stream, value))
	}
}

// publishAsync sends from this goroutine alone: the client writes to one gRPC
// stream without a lock, and such a stream takes one sender at a time.
func publishAsync(client lift.Client, t *tally) {
	value := bytes.Repeat([]byte("x"), t.size)
	slots := make(chan struct{}, t.window)
	for range t.n {
		slots <- struct{}{}
		start := time.Now()
		t.sent()
		err := client.PublishAsync(context.Background(), t.stream, value, func(_ *lift.Ack, err error) {
			t.outcome(time.Since(start), err)
			<-slots
		}, lift.AckPolicyLeader())
		if err != nil {
			// The handler may or may not be called later, so the window is no
			// longer known: the run is over.
			t.outcome(0, err)
			return
		}
	}
	for range t.window {
		slots <- struct{}{}
	}
}

// tally counts outcomes. It has a lock because the client calls handlers from
// its dispatcher and from timers.
type tally struct {
	options
	mu        sync.Mutex
	started   time.Time
	published int
	latencies []float64 // of the acked messages, in microseconds
	timeouts  int
	errors    int
	firstErr  string
}

func (t *tally) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started = time.Now()
}

func (t *tally) sent() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.published++
}

func (t *tally) outcome(took time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		t.latencies = append(t.latencies, report.Micros(took))
	case errors.Is(err, lift.ErrAckTimeout):
		t.timeouts++
	default:
		t.errors++
		if t.firstErr == "" {
			t.firstErr = err.Error()
		}
	}
}

// finish prints the report and ends the process. It never gives the lock back,
// so that only one of the run and the deadline reports.
func (t *tally) finish(hung bool) {
	t.mu.Lock()
	if t.started.IsZero() {
		report.Fail(errors.New("not connected and warmed up before the deadline"))
	}
	seconds := time.Since(t.started).Seconds()
	acked := len(t.latencies)
	window := t.window
	mode := "async"
	if t.sync {
		mode, window = "sync", 1
	}
	report.Print(map[string]any{
		"client":      report.Version("github.com/liftbridge-io/go-liftbridge/v2"),
		"mode":        mode,
		"n":           t.n,
		"size":        t.size,
		"window":      window,
		"sent":        t.published,
		"acked":       acked,
		"errors":      t.errors,
		"first_error": t.firstErr,
		"lost":        t.published - acked - t.errors, // timed out, or still without an outcome
		"timeouts":    t.timeouts,
		"hung":        hung,
		"seconds":     seconds,
		"acked_per_s": float64(acked) / seconds,
		"p50_us":      report.Quantile(t.latencies, 0.5),
		"p99_us":      report.Quantile(t.latencies, 0.99),
		"max_us":      report.Quantile(t.latencies, 1),
	})
	if acked != t.n {
		os.Exit(1)
	}
	os.Exit(0)
}
