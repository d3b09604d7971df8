package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
)

// delivery is what a subscription's handler is called with.
type delivery struct {
	message *lift.Message
	err     error
}

// fill makes a stream with so many messages, each with its number as value.
func (t *tour) fill(name string, count int) error {
	if err := t.CreateStream(t, name, name); err != nil {
		return err
	}
	for number := range count {
		if _, err := t.Publish(t, name, fmt.Append(nil, number), lift.AckPolicyLeader()); err != nil {
			return err
		}
	}
	return nil
}

// open subscribes; what comes is in the channel until cancel is called.
func (t *tour) open(name string, options ...lift.SubscriptionOption) (<-chan delivery, func(), error) {
	ctx, cancel := context.WithCancel(t)
	deliveries := make(chan delivery, 1000)
	err := t.Subscribe(ctx, name, func(message *lift.Message, err error) {
		select {
		case deliveries <- delivery{message, err}:
		case <-ctx.Done():
		}
	}, options...)
	return deliveries, cancel, err
}

// read returns the first so many messages of a subscription.
func (t *tour) read(name string, count int, options ...lift.SubscriptionOption) ([]*lift.Message, error) {
	deliveries, cancel, err := t.open(name, options...)
	defer cancel()
	if err != nil {
		return nil, err
	}
	messages := make([]*lift.Message, 0, count)
	for len(messages) < count {
		one := <-deliveries
		if one.err != nil {
			return nil, one.err
		}
		messages = append(messages, one.message)
	}
	return messages, nil
}

// readAll returns the values up to the end of a subscription that has one, and
// what the client says of that end.
func (t *tour) readAll(name string, options ...lift.SubscriptionOption) []any {
	deliveries, cancel, err := t.open(name, options...)
	defer cancel()
	if err != nil {
		return []any{nil, text(err)}
	}
	read := []string{}
	for one := range deliveries {
		if one.err != nil {
			return []any{read, text(one.err)}
		}
		read = append(read, string(one.message.Value()))
	}
	return nil
}

// subscribe reads from every start to every stop.
func (t *tour) subscribe(name string) (found, error) {
	if err := t.fill(name, 3); err != nil {
		return nil, err
	}
	// Times are taken by the server: those of the messages say where it is between two.
	time.Sleep(20 * time.Millisecond)
	if _, err := t.Publish(t, name, []byte("3"), lift.AckPolicyLeader()); err != nil {
		return nil, err
	}
	messages, err := t.read(name, 4, lift.StartAtEarliestReceived())
	if err != nil {
		return nil, err
	}
	between := messages[3].Timestamp().Add(-10 * time.Millisecond)
	stop := lift.StopAtLatestReceived()
	return found{
		"earliest":    t.readAll(name, lift.StartAtEarliestReceived(), stop),
		"offset":      t.readAll(name, lift.StartAtOffset(2), stop),
		"latest":      t.readAll(name, lift.StartAtLatestReceived(), stop),
		"time":        t.readAll(name, lift.StartAtTime(between), stop),
		"delta":       t.readAll(name, lift.StartAtTimeDelta(time.Hour), stop),
		"stop_offset": t.readAll(name, lift.StartAtEarliestReceived(), lift.StopAtOffset(1)),
		"stop_time":   t.readAll(name, lift.StartAtEarliestReceived(), lift.StopAtTime(between)),
		"replica":     t.readAll(name, lift.StartAtEarliestReceived(), stop, lift.ReadISRReplica()),
	}, nil
}

// follow reads what is published after it began, until the stream is removed.
func (t *tour) follow(name string) (found, error) {
	if err := t.fill(name, 2); err != nil {
		return nil, err
	}
	deliveries, cancel, err := t.open(name, lift.StartAtNewOnly())
	defer cancel()
	if err != nil {
		return nil, err
	}
	if _, err := t.Publish(t, name, []byte("new"), lift.AckPolicyAll()); err != nil {
		return nil, err
	}
	first := <-deliveries
	if first.err != nil {
		return nil, first.err
	}
	if err := t.DeleteStream(t, name); err != nil {
		return nil, err
	}
	last := <-deliveries
	return found{
		"value": string(first.message.Value()), "offset": first.message.Offset(),
		"deleted": errors.Is(last.err, lift.ErrStreamDeleted),
	}, nil
}

// states pauses a partition, wakes it, and makes it readonly and writable.
func (t *tour) states(name string) (found, error) {
	if err := t.fill(name, 2); err != nil {
		return nil, err
	}
	deliveries, cancel, err := t.open(name, lift.StartAtNewOnly())
	defer cancel()
	if err != nil {
		return nil, err
	}
	if err := t.PauseStream(t, name, lift.ResumeAll()); err != nil {
		return nil, err
	}
	paused := <-deliveries
	woken, err := t.Publish(t, name, []byte("2"), lift.AckPolicyLeader())
	if err != nil {
		return nil, err
	}
	if err := t.PauseStream(t, name); err != nil {
		return nil, err
	}
	resumed := t.readAll(name, lift.StartAtEarliestReceived(), lift.StopAtLatestReceived(), lift.Resume())
	if err := t.SetStreamReadonly(t, name, lift.ReadonlyPartitions(0)); err != nil {
		return nil, err
	}
	_, refused := t.Publish(t, name, []byte("no"), lift.AckPolicyLeader())
	end := t.readAll(name, lift.StartAtEarliestReceived())
	if err := t.SetStreamReadonly(t, name, lift.Readonly(false)); err != nil {
		return nil, err
	}
	writable, err := t.Publish(t, name, []byte("3"), lift.AckPolicyLeader())
	if err != nil {
		return nil, err
	}
	partition, err := t.FetchPartitionMetadata(t, name, 0)
	if err != nil {
		return nil, err
	}
	return found{
		"paused":   errors.Is(paused.err, lift.ErrPartitionPaused),
		"woken":    woken.Offset(),
		"resumed":  resumed,
		"refused":  errors.Is(refused, lift.ErrReadonlyPartition),
		"end":      end,
		"writable": writable.Offset(),
		"newest":   []int64{partition.NewestOffset(), partition.HighWatermark()},
		"readonly": partition.Readonly(),
		"when": !partition.MessagesReceivedTimestamps().LatestTime().IsZero() &&
			!partition.PauseTimestamps().FirstTime().IsZero() &&
			!partition.ReadonlyTimestamps().LatestTime().IsZero(),
	}, nil
}

// cursors keeps a position.
func (t *tour) cursors(name string) (found, error) {
	if err := t.fill(name, 1); err != nil {
		return nil, err
	}
	offsets := []int64{}
	for _, offset := range []int64{-1, 7, 3} {
		if offset >= 0 {
			if err := t.SetCursor(t, "reader", name, 0, offset); err != nil {
				return nil, err
			}
		}
		read, err := t.FetchCursor(t, "reader", name, 0)
		if err != nil {
			return nil, err
		}
		offsets = append(offsets, read)
	}
	return found{"offsets": offsets}, nil
}

// group reads a stream as a member of a group, leaves, and has another member go on.
func (t *tour) group(name string) (found, error) {
	if err := t.fill(name, 5); err != nil {
		return nil, err
	}
	first, err := t.member(name, 5)
	if err != nil {
		return nil, err
	}
	for number := 5; number < 8; number++ {
		if _, err := t.Publish(t, name, fmt.Append(nil, number), lift.AckPolicyLeader()); err != nil {
			return nil, err
		}
	}
	second, err := t.member(name, 3)
	if err != nil {
		return nil, err
	}
	return found{"first": first, "second": second}, nil
}

// member joins the group, reads so many messages, commits them and leaves.
func (t *tour) member(name string, count int) ([]string, error) {
	consumer, err := t.CreateConsumer(name, lift.AutoOffsetEarliest())
	if err != nil {
		return nil, err
	}
	var once sync.Once
	ended := make(chan error, 1)
	messages := make(chan *lift.Message, 1000)
	err = consumer.Subscribe(t, []string{name}, func(message *lift.Message, err error) {
		if err != nil {
			once.Do(func() { ended <- err })
			return
		}
		messages <- message
	})
	if err != nil {
		return nil, err
	}
	read := []string{}
	var last int64
	for len(read) < count {
		select {
		case message := <-messages:
			read = append(read, string(message.Value()))
			last = message.Offset()
		case err := <-ended:
			return nil, err
		}
	}
	if err := t.commit(consumer, name, last); err != nil {
		return nil, err
	}
	return read, consumer.Close()
}

// commit has a member commit up to an offset. The client notes what was handled
// a moment after it was, and loses the note if that was before its own books of
// the subscription were made; then the cursor is set as a member would set it.
func (t *tour) commit(consumer *lift.Consumer, name string, offset int64) error {
	for range 20 {
		if err := consumer.Checkpoint(t); err != nil {
			return err
		}
		committed, err := t.FetchCursor(t, "__group:"+name, name, 0)
		if err != nil || committed == offset {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return t.SetCursor(t, "__group:"+name, name, 0, offset)
}

func values(messages []*lift.Message) []string {
	read := make([]string, 0, len(messages))
	for _, message := range messages {
		read = append(read, string(message.Value()))
	}
	return read
}
