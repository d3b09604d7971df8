// Command jetconsume measures reading a JetStream stream with nats.go: N
// messages of a consumer that is there already, from the call of Messages or
// Consume to the last of them, and to its ack.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"liftenvelope.test/benchmarks/internal/report"
)

type options struct {
	url, stream, consumer string
	n, size, window       int
	callback, ack         bool
	deadline              time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.url, "url", nats.DefaultURL, "NATS server")
	flag.StringVar(&o.stream, "stream", "bench", "stream")
	flag.StringVar(&o.consumer, "consumer", "bench", "pull consumer of the stream")
	flag.IntVar(&o.n, "n", 100_000, "messages")
	flag.IntVar(&o.size, "size", 100, "bytes that each payload must have")
	flag.IntVar(&o.window, "window", 500, "messages asked for and buffered; 500 is the client's default")
	flag.BoolVar(&o.callback, "callback", false, "Consume instead of Messages")
	flag.BoolVar(&o.ack, "ack", false, "ack each message")
	flag.DurationVar(&o.deadline, "deadline", 2*time.Minute, "give up after this long")
	flag.Parse()

	time.AfterFunc(o.deadline, func() {
		fmt.Fprintln(os.Stderr, "not all was read before the deadline")
		os.Exit(1)
	})
	nc, err := nats.Connect(o.url)
	if err != nil {
		report.Fail(err)
	}
	consumer, err := find(nc, o)
	if err != nil {
		report.Fail(err)
	}
	read := &reading{options: o}
	start := time.Now()
	if o.callback {
		err = read.byCallback(consumer)
	} else {
		err = read.byIterator(consumer)
	}
	if err != nil {
		report.Fail(err)
	}
	// Flush answers when the server has read all that was written before it: the acks.
	if err := nc.Flush(); err != nil {
		report.Fail(err)
	}
	read.report(time.Since(start).Seconds())
}

func find(nc *nats.Conn, o options) (jetstream.Consumer, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return js.Consumer(ctx, o.stream, o.consumer)
}

type reading struct {
	options
	read, wrong, silences int
}

// take handles one message.
func (r *reading) take(message jetstream.Msg) error {
	r.read++
	if len(message.Data()) != r.size {
		r.wrong++
	}
	if r.ack {
		return message.Ack()
	}
	return nil
}

func (r *reading) byIterator(consumer jetstream.Consumer) error {
	messages, err := consumer.Messages(jetstream.PullMaxMessages(r.window))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for r.read < r.n {
		message, err := messages.Next()
		if errors.Is(err, nats.ErrNoHeartbeat) {
			r.fellSilent()
			continue
		}
		if err == nil {
			err = r.take(message)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fellSilent notes that nothing came for 30 s. nats.go has asked anew, and
// goes on.
func (r *reading) fellSilent() {
	r.silences++
	fmt.Fprintf(os.Stderr, "no heartbeat after %d messages\n", r.read)
}

func (r *reading) byCallback(consumer jetstream.Consumer) error {
	done := make(chan error, 1)
	handler := func(message jetstream.Msg) {
		if r.read == r.n {
			return
		}
		if err := r.take(message); err != nil {
			r.n = r.read
			done <- err
		} else if r.read == r.n {
			done <- nil
		}
	}
	failed := func(_ jetstream.ConsumeContext, err error) {
		if errors.Is(err, nats.ErrNoHeartbeat) {
			r.fellSilent()
		} else {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	consuming, err := consumer.Consume(handler,
		jetstream.PullMaxMessages(r.window), jetstream.ConsumeErrHandler(failed))
	if err != nil {
		return err
	}
	defer consuming.Stop()
	return <-done
}

func (r *reading) report(seconds float64) {
	report.Print(map[string]any{
		"client":         report.Version("github.com/nats-io/nats.go"),
		"n":              r.n,
		"read":           r.read,
		"wrong":          r.wrong,
		"silences":       r.silences,
		"seconds":        seconds,
		"messages_per_s": float64(r.read) / seconds,
	})
	if r.wrong > 0 {
		os.Exit(1)
	}
}
