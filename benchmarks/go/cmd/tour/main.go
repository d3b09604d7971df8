// Command tour goes once through what go-liftbridge's client can do, against a
// running server of the Liftbridge API, and prints what it found: one JSON
// object, which is the same for every sound server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync/atomic"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"

	"liftenvelope.test/benchmarks/internal/report"
)

// tour is what the parts share. Each of them returns what it found, by name.
type tour struct {
	context.Context
	lift.Client
	stream string // a stream of its own for each part begins with this name
	wait   time.Duration
}

type found = map[string]any

func main() {
	addr := flag.String("addr", "127.0.0.1:9292", "Liftbridge server")
	stream := flag.String("stream", "tour", "what the names of the streams begin with")
	deadline := flag.Duration("deadline", 2*time.Minute, "give up after this long")
	flag.Parse()

	var part atomic.Value // what the clock's goroutine may read
	time.AfterFunc(*deadline, func() { report.Fail(fmt.Errorf("not done with %q before the deadline", part.Load())) })
	// Not ConnectCtx with a timeout: every ack would end with that context.
	client, err := lift.Connect([]string{*addr}, lift.AckWaitTime(*deadline))
	if err != nil {
		report.Fail(fmt.Errorf("connect: %w", err))
	}
	t := &tour{context.Background(), client, *stream, *deadline}
	all := found{"client": report.Version("github.com/liftbridge-io/go-liftbridge/v2")}
	for _, one := range []struct {
		name string
		run  func(stream string) (found, error)
	}{
		{"streams", t.streams},
		{"publish", t.publish},
		{"async", t.async},
		{"checked", t.checked},
		{"subscribe", t.subscribe},
		{"follow", t.follow},
		{"states", t.states},
		{"cursors", t.cursors},
		{"group", t.group},
	} {
		part.Store(one.name)
		result, err := one.run(*stream + "-" + one.name)
		if err != nil {
			report.Fail(fmt.Errorf("%s: %w", one.name, err))
		}
		all[one.name] = result
	}
	// The client is not closed: its Close can wait for ever for its own dispatcher.
	report.Print(all)
}

// streams makes, looks at and removes a stream.
func (t *tour) streams(name string) (found, error) {
	options := []lift.StreamOption{
		lift.Partitions(3), lift.RetentionMaxMessages(1000), lift.RetentionMaxAge(time.Hour), lift.MinISR(1),
	}
	if err := t.CreateStream(t, name, name, options...); err != nil {
		return nil, err
	}
	again := t.CreateStream(t, name, name)
	metadata, err := t.FetchMetadata(t)
	if err != nil {
		return nil, err
	}
	stream := metadata.GetStream(name)
	if stream == nil {
		return nil, errors.New("not in the metadata")
	}
	led := 0
	for _, partition := range stream.Partitions() {
		if partition.Leader() != nil && len(partition.ISR()) > 0 && len(partition.Replicas()) > 0 {
			led++
		}
	}
	if err := t.DeleteStream(t, name); err != nil {
		return nil, err
	}
	_, unknown := t.Publish(t, name, []byte("x"), lift.AckPolicyLeader())
	return found{
		"exists":       errors.Is(again, lift.ErrStreamExists),
		"subject":      stream.Subject() == name,
		"led":          led,
		"recent":       time.Since(stream.CreationTime()) < t.wait,
		"broker":       len(metadata.Brokers()) > 0 && len(metadata.Addrs()) > 0,
		"deleted":      errors.Is(t.DeleteStream(t, name), lift.ErrNoSuchStream),
		"publish_gone": text(unknown),
	}, nil
}

// publish publishes one after the other with every policy, and reads it again.
func (t *tour) publish(name string) (found, error) {
	if err := t.CreateStream(t, name, name, lift.Partitions(2)); err != nil {
		return nil, err
	}
	leader, err := t.Publish(t, name, []byte("one"), lift.AckPolicyLeader(), lift.Key([]byte("k")),
		lift.Header("h", []byte("v")), lift.CorrelationID("id-1"))
	if err != nil {
		return nil, err
	}
	all, err := t.Publish(t, name, []byte("two"), lift.AckPolicyAll())
	if err != nil {
		return nil, err
	}
	none, err := t.Publish(t, name, []byte("three"), lift.AckPolicyNone())
	if err != nil {
		return nil, err
	}
	other, err := t.Publish(t, name, []byte("four"), lift.AckPolicyLeader(), lift.ToPartition(1))
	if err != nil {
		return nil, err
	}
	direct, err := t.PublishToSubject(t, name+".1", []byte("five"), lift.AckPolicyLeader())
	if err != nil {
		return nil, err
	}
	messages, err := t.read(name, 3, lift.StartAtEarliestReceived())
	if err != nil {
		return nil, err
	}
	first := messages[0]
	return found{
		"leader": []any{leader.Offset(), leader.CorrelationID(), leader.Stream() == name,
			leader.MessageSubject() == name, leader.AckPolicy() == 0},
		"all":    []any{all.Offset(), all.AckPolicy() == 1},
		"none":   none == nil,
		"other":  []any{other.Offset(), other.MessageSubject() == name+".1"},
		"direct": []any{direct.Offset(), direct.Stream() == name},
		"first": []any{first.Offset(), string(first.Key()), string(first.Value()), string(first.Headers()["h"]),
			first.Subject() == name, first.Stream() == name, first.Partition()},
		"values": values(messages),
	}, nil
}

// async publishes with all acks outstanding, to both partitions.
func (t *tour) async(name string) (found, error) {
	const count = 2000
	if err := t.CreateStream(t, name, name, lift.Partitions(2)); err != nil {
		return nil, err
	}
	type outcome struct {
		ack *lift.Ack
		err error
	}
	outcomes := make(chan outcome, count)
	policies := []lift.MessageOption{lift.AckPolicyLeader(), lift.AckPolicyAll()}
	for number := range count {
		err := t.PublishAsync(t, name, fmt.Appendf(nil, "%d", number),
			func(ack *lift.Ack, err error) { outcomes <- outcome{ack, err} },
			policies[number/2%2], lift.ToPartition(int32(number%2)))
		if err != nil {
			return nil, err
		}
	}
	type place struct {
		subject string
		offset  int64
	}
	places := map[place]bool{}
	for range count {
		one := <-outcomes
		if one.err != nil {
			return nil, one.err
		}
		places[place{one.ack.MessageSubject(), one.ack.Offset()}] = true
	}
	inOrder := 0
	for partition := range 2 {
		messages, err := t.read(name, count/2, lift.StartAtEarliestReceived(), lift.Partition(int32(partition)))
		if err != nil {
			return nil, err
		}
		for at, message := range messages {
			wanted := fmt.Sprint(2*at + partition)
			if message.Offset() == int64(at) && string(message.Value()) == wanted {
				inOrder++
			}
		}
	}
	return found{"acked": len(places), "in_order": inOrder}, nil
}

// checked publishes to a stream that checks offsets.
func (t *tour) checked(name string) (found, error) {
	if err := t.CreateStream(t, name, name, lift.OptimisticConcurrencyControl(true)); err != nil {
		return nil, err
	}
	first, err := t.Publish(t, name, []byte("a"), lift.AckPolicyLeader(), lift.ExpectedOffset(0))
	if err != nil {
		return nil, err
	}
	_, wrong := t.Publish(t, name, []byte("b"), lift.AckPolicyLeader(), lift.ExpectedOffset(7))
	second, err := t.Publish(t, name, []byte("c"), lift.AckPolicyLeader(), lift.ExpectedOffset(1))
	if err != nil {
		return nil, err
	}
	next, err := t.Publish(t, name, []byte("d"), lift.AckPolicyLeader())
	if err != nil {
		return nil, err
	}
	return found{"offsets": []int64{first.Offset(), second.Offset(), next.Offset()}, "wrong": text(wrong)}, nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
