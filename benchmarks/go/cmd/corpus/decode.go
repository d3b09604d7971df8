package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"slices"

	api "github.com/liftbridge-io/liftbridge-api/go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"liftenvelope.test/benchmarks/internal/report"
)

const (
	typeMessage = 0
	typeAck     = 1
)

var (
	magic      = []byte{0xb9, 0x0e, 0x43, 0xb4}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// The API's types without their methods. The API v1.9.0 was generated with
// gogo, whose methods decode more strictly in some ways (wrong wire types) and
// less in others (UTF-8), and marshal maps in no fixed order. Without them
// google.golang.org/protobuf works from the struct tags, as protobuf does.
// (The API v2.0.0, generated for it, cannot be linked beside v1.9.0: both
// register the same names.)
type (
	message api.Message
	ack     api.Ack
)

func (m *message) Reset()       { *m = message{} }
func (*message) String() string { return "message" }
func (*message) ProtoMessage()  {}

func (a *ack) Reset()       { *a = ack{} }
func (*ack) String() string { return "ack" }
func (*ack) ProtoMessage()  {}

func crc32c(payload []byte) uint32 { return crc32.Checksum(payload, castagnoli) }

func marshal(m protoadapt.MessageV1) []byte {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(protoadapt.MessageV2Of(m))
	if err != nil {
		report.Fail(err)
	}
	return data
}

// envelope puts a header before a payload.
func envelope(kind byte, payload []byte, crc bool) []byte {
	if !crc {
		return slices.Concat(magic, []byte{0, 8, 0, kind}, payload)
	}
	head := slices.Concat(magic, []byte{0, 12, 1, kind})
	head = binary.BigEndian.AppendUint32(head, crc32c(payload))
	return append(head, payload...)
}

// check does what the server's checkEnvelope does, and says which check failed
// ("" if none). "crash" is where the server slices beyond the end and panics.
func check(data []byte, kind byte) (payload []byte, reason string) {
	if len(data) < 8 {
		return nil, "short"
	}
	if !bytes.Equal(data[:4], magic) {
		return nil, "magic"
	}
	if data[4] != 0 {
		return nil, "version"
	}
	headerLen := int(data[5])
	if headerLen > len(data) {
		return nil, "crash"
	}
	payload = data[headerLen:]
	if data[7] != kind {
		return nil, "type"
	}
	if data[6]&1 != 0 {
		if headerLen != 12 {
			return nil, "crc header"
		}
		if crc32c(payload) != binary.BigEndian.Uint32(data[8:12]) {
			return nil, "crc"
		}
	}
	return payload, ""
}

// decode says what google.golang.org/protobuf makes of a payload, nil if it refuses.
func decode(kind byte, payload []byte) map[string]any {
	if kind == typeMessage {
		m := new(message)
		if proto.Unmarshal(payload, protoadapt.MessageV2Of(m)) != nil {
			return nil
		}
		return messageFields(m)
	}
	a := new(ack)
	if proto.Unmarshal(payload, protoadapt.MessageV2Of(a)) != nil {
		return nil
	}
	return ackFields(a)
}

// decode19 says what the server 1.9.0 makes of a payload, nil if it refuses.
func decode19(kind byte, payload []byte) map[string]any {
	if kind == typeMessage {
		m := new(api.Message)
		if m.Unmarshal(payload) != nil {
			return nil
		}
		return messageFields((*message)(m))
	}
	a := new(api.Ack)
	if a.Unmarshal(payload) != nil {
		return nil
	}
	return ackFields((*ack)(a))
}

// fields holds what is not a default, under protobuf's names.
type fields map[string]any

func (f fields) text(name, value string) {
	if value != "" {
		f[name] = value
	}
}

func (f fields) bytes(name string, value []byte) {
	if len(value) > 0 {
		f[name] = hex.EncodeToString(value)
	}
}

func (f fields) int(name string, value int64) {
	if value != 0 {
		f[name] = value
	}
}

func messageFields(m *message) map[string]any {
	f := fields{}
	f.int("offset", m.Offset)
	f.bytes("key", m.Key)
	f.bytes("value", m.Value)
	f.int("timestamp", m.Timestamp)
	f.text("stream", m.Stream)
	f.int("partition", int64(m.Partition))
	f.text("subject", m.Subject)
	f.text("replySubject", m.ReplySubject)
	f.text("ackInbox", m.AckInbox)
	f.text("correlationId", m.CorrelationId)
	f.int("ackPolicy", int64(m.AckPolicy))
	if len(m.Headers) > 0 {
		f["headers"] = headerPairs(m.Headers)
	}
	return f
}

// headerPairs returns [key, value in hex] pairs, in the order of the keys.
func headerPairs(headers map[string][]byte) [][2]string {
	pairs := make([][2]string, 0, len(headers))
	for key, value := range headers {
		pairs = append(pairs, [2]string{key, hex.EncodeToString(value)})
	}
	slices.SortFunc(pairs, func(a, b [2]string) int { return bytes.Compare([]byte(a[0]), []byte(b[0])) })
	return pairs
}

func ackFields(a *ack) map[string]any {
	f := fields{}
	f.text("stream", a.Stream)
	f.text("partitionSubject", a.PartitionSubject)
	f.text("msgSubject", a.MsgSubject)
	f.int("offset", a.Offset)
	f.text("ackInbox", a.AckInbox)
	f.text("correlationId", a.CorrelationId)
	f.int("ackPolicy", int64(a.AckPolicy))
	f.int("receptionTimestamp", a.ReceptionTimestamp)
	f.int("commitTimestamp", a.CommitTimestamp)
	f.int("ackError", int64(a.AckError))
	return f
}
