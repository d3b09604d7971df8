// Command codec measures go-liftbridge's envelope functions: NewMessage,
// UnmarshalMessage and UnmarshalAck, in nanoseconds per call.
package main

import (
	"encoding/hex"
	"flag"
	"runtime"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
	api "github.com/liftbridge-io/liftbridge-api/v2/go"
	"google.golang.org/protobuf/proto"

	"liftenvelope.test/benchmarks/internal/report"
)

const clientModule = "github.com/liftbridge-io/go-liftbridge/v2"

// sink keeps the compiler from removing calls whose result is not used.
var sink int

type result struct {
	NsPerOp float64   `json:"ns_per_op"` // median of the rounds
	Rounds  []float64 `json:"rounds"`    // sorted
	Bytes   int       `json:"bytes"`     // length of the envelope
}

func main() {
	valueSize := flag.Int("value-size", 100, "bytes of the value that NewMessage gets")
	key := flag.String("key", "key-1234", "key that NewMessage gets")
	inbox := flag.String("inbox", "my.ack.inbox", "ack inbox that NewMessage gets")
	id := flag.String("id", "correlation-1234", "correlation id that NewMessage gets")
	messageHex := flag.String("message", "", "envelope for UnmarshalMessage, hex; default: what NewMessage made")
	ackHex := flag.String("ack", "", "envelope for UnmarshalAck, hex; default: one with every field")
	rounds := flag.Int("rounds", 7, "rounds per function")
	roundTime := flag.Duration("round-time", 200*time.Millisecond, "time of a round, about")
	flag.Parse()

	value := make([]byte, *valueSize)
	for i := range value {
		value[i] = byte(i)
	}
	keyBytes := []byte(*key)
	encode := func() []byte {
		return lift.NewMessage(value, lift.Key(keyBytes), lift.AckInbox(*inbox), lift.CorrelationID(*id))
	}
	encoded := encode()
	message := unhex(*messageHex, encoded)
	ack := unhex(*ackHex, defaultAck(*inbox, *id))

	// Each decoder must accept its input before it is timed.
	if err := readMessage(message); err != nil {
		report.Fail(err)
	}
	if err := readAck(ack); err != nil {
		report.Fail(err)
	}
	timed := func(n int, f func()) result {
		r := measure(*rounds, *roundTime, f)
		return result{NsPerOp: report.Quantile(r, 0.5), Rounds: r, Bytes: n}
	}
	report.Print(map[string]any{
		"client":            report.Version(clientModule),
		"protobuf":          report.Version("google.golang.org/protobuf"),
		"go":                runtime.Version(),
		"new_message":       timed(len(encoded), func() { sink += len(encode()) }),
		"unmarshal_message": timed(len(message), func() { _ = readMessage(message) }),
		"unmarshal_ack":     timed(len(ack), func() { _ = readAck(ack) }),
		"encoded_hex":       hex.EncodeToString(encoded),
		"message_hex":       hex.EncodeToString(message),
		"ack_hex":           hex.EncodeToString(ack),
	})
}

// measure returns the ns/op of each round. The number of calls in a round is
// found by doubling until a trial takes long enough to be scaled from.
func measure(rounds int, roundTime time.Duration, f func()) []float64 {
	run := func(n int) time.Duration {
		start := time.Now()
		for range n {
			f()
		}
		return time.Since(start)
	}
	n := 1
	took := run(n)
	for took < roundTime/8 {
		n *= 2
		took = run(n)
	}
	n = max(1, int(float64(n)*float64(roundTime)/float64(took)))
	perOp := make([]float64, rounds)
	for i := range perOp {
		perOp[i] = float64(run(n)) / float64(n)
	}
	return perOp
}

// readMessage decodes and reads every field that the client shows: it hides
// the ack inbox, the correlation id and the ack policy.
func readMessage(data []byte) error {
	m, err := lift.UnmarshalMessage(data)
	if err != nil {
		return err
	}
	sink += int(m.Offset()) + len(m.Key()) + len(m.Value()) + int(m.Partition()) + m.Timestamp().Nanosecond() +
		len(m.Stream()) + len(m.Subject()) + len(m.ReplySubject()) + len(m.Headers())
	return nil
}

// readAck decodes and reads every field that the client shows: it hides the
// ack error.
func readAck(data []byte) error {
	a, err := lift.UnmarshalAck(data)
	if err != nil {
		return err
	}
	sink += len(a.Stream()) + len(a.PartitionSubject()) + len(a.MessageSubject()) + int(a.Offset()) +
		len(a.AckInbox()) + len(a.CorrelationID()) + int(a.AckPolicy()) +
		a.ReceptionTimestamp().Nanosecond() + a.CommitTimestamp().Nanosecond()
	return nil
}

func unhex(text string, otherwise []byte) []byte {
	if text == "" {
		return otherwise
	}
	data, err := hex.DecodeString(text)
	if err != nil {
		report.Fail(err)
	}
	return data
}

// defaultAck returns an ack as a server sends it.
func defaultAck(inbox, id string) []byte {
	payload, err := proto.Marshal(&api.Ack{
		Stream: "bench-stream", PartitionSubject: "bench.subject", MsgSubject: "bench.subject", Offset: 123456,
		AckInbox: inbox, CorrelationId: id,
		ReceptionTimestamp: 1_700_000_000_123_456_789, CommitTimestamp: 1_700_000_000_123_556_789,
	})
	if err != nil {
		report.Fail(err)
	}
	return append([]byte{0xb9, 0x0e, 0x43, 0xb4, 0, 8, 0, 1}, payload...)
}
