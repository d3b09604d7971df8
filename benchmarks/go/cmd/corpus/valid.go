package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	api "github.com/liftbridge-io/liftbridge-api/go"

	"liftenvelope.test/benchmarks/internal/report"
)

// generator collects records; all that is random comes from rnd.
type generator struct {
	rnd     *rand.Rand
	records []record
	valid   []envelopeOf // to be mutated
}

type envelopeOf struct {
	kind byte
	data []byte
}

var (
	int64s = []int64{1, -1, 127, 128, 300, math.MaxInt32, math.MaxInt32 + 1, math.MinInt32, 1<<56 - 1, 1 << 56, 1 << 62,
		math.MaxInt64, math.MaxInt64 - 1, math.MinInt64, math.MinInt64 + 1, 1_700_000_000_123_456_789}
	int32s = []int32{1, -1, 2, 3, 4, 5, 127, 128, 16_383, 16_384, math.MaxInt32, math.MinInt32, math.MinInt32 + 1}
	texts  = []string{"a", "foo.bar", "_INBOX.x4Kd0WzkJp1qTzHjF2bU7z", "é", "žluťoučký kůň", "日本語", "🙂", "\x00",
		"a\x00b", "\u007f\u0080\u07ff\u0800\uffff", "\U00010000\U0010ffff", "\ufeffbom", "e\u0301", "\ue000", "\n\t\"\\/",
		strings.Repeat("s", 127), strings.Repeat("s", 128), strings.Repeat("é", 700)}
	blobs = [][]byte{{0}, {0xff}, {0xff, 0xfe, 0x80, 0xc3}, []byte("hello"), []byte("\xb9\x0e\x43\xb4\x00\x08\x00\x00"),
		bytes.Repeat([]byte("v"), 100), bytes.Repeat([]byte("v"), 127), bytes.Repeat([]byte("v"), 128),
		bytes.Repeat([]byte{0x00}, 4096), bytes.Repeat([]byte("0123456789abcdef"), 300)}
)

func pick[T any](rnd *rand.Rand, from []T) T { return from[rnd.IntN(len(from))] }

// text is mostly short, so that the file stays small.
func (g *generator) text() string {
	if g.rnd.IntN(3) > 0 {
		return fmt.Sprintf("s%x", g.rnd.IntN(1<<16))
	}
	return pick(g.rnd, texts)
}

func (g *generator) blob() []byte {
	if g.rnd.IntN(3) == 0 {
		return pick(g.rnd, blobs)
	}
	b := make([]byte, 1+g.rnd.IntN(24))
	for i := range b {
		b[i] = byte(g.rnd.Uint32())
	}
	return b
}

func (g *generator) headerMap() map[string][]byte {
	h := map[string][]byte{}
	for range 1 + g.rnd.IntN(4) {
		h[g.text()] = g.blob()
	}
	switch g.rnd.IntN(4) {
	case 0:
		h[g.text()] = nil // an empty value is written all the same
	case 1:
		h[""] = g.blob()
	}
	return h
}

const messageFieldCount, ackFieldCount = 12, 10

// messageWith sets the fields whose bits are set, to values that are no defaults.
func (g *generator) messageWith(set uint) *message {
	m := &message{}
	for i, fill := range []func(){
		func() { m.Offset = pick(g.rnd, int64s) },
		func() { m.Key = g.blob() },
		func() { m.Value = g.blob() },
		func() { m.Timestamp = pick(g.rnd, int64s) },
		func() { m.Stream = g.text() },
		func() { m.Partition = pick(g.rnd, int32s) },
		func() { m.Subject = g.text() },
		func() { m.ReplySubject = g.text() },
		func() { m.Headers = g.headerMap() },
		func() { m.AckInbox = g.text() },
		func() { m.CorrelationId = g.text() },
		func() { m.AckPolicy = api.AckPolicy(pick(g.rnd, int32s)) },
	} {
		if set&(1<<i) != 0 {
			fill()
		}
	}
	return m
}

func (g *generator) ackWith(set uint) *ack {
	a := &ack{}
	for i, fill := range []func(){
		func() { a.Stream = g.text() },
		func() { a.PartitionSubject = g.text() },
		func() { a.MsgSubject = g.text() },
		func() { a.Offset = pick(g.rnd, int64s) },
		func() { a.AckInbox = g.text() },
		func() { a.CorrelationId = g.text() },
		func() { a.AckPolicy = api.AckPolicy(pick(g.rnd, int32s)) },
		func() { a.ReceptionTimestamp = pick(g.rnd, int64s) },
		func() { a.CommitTimestamp = pick(g.rnd, int64s) },
		func() { a.AckError = api.Ack_Error(pick(g.rnd, int32s)) },
	} {
		if set&(1<<i) != 0 {
			fill()
		}
	}
	return a
}

// subsets returns none, all, each one, all but each one, each pair, and then n
// random ones: with the default seed any four fields meet in every combination.
func (g *generator) subsets(fields, n int) []uint {
	all := uint(1)<<fields - 1
	sets := []uint{0, all}
	for i := range fields {
		sets = append(sets, 1<<i, all&^(1<<i))
		for j := range i {
			sets = append(sets, 1<<i|1<<j)
		}
	}
	for range n {
		sets = append(sets, uint(g.rnd.Uint32())&all)
	}
	return sets
}

func (g *generator) messages() {
	for _, set := range g.subsets(messageFieldCount, 180) {
		g.message("fields", g.messageWith(set))
	}
	for _, n := range int64s {
		g.message("offset", &message{Offset: n})
		g.message("timestamp", &message{Timestamp: n})
	}
	for _, n := range int32s {
		g.message("partition", &message{Partition: n})
		g.message("ack policy", &message{AckPolicy: api.AckPolicy(n)})
	}
	for _, s := range texts {
		g.message("text", &message{Stream: s, AckInbox: s, CorrelationId: s})
		g.message("header key", &message{Headers: map[string][]byte{s: []byte("v")}})
	}
	for _, b := range blobs {
		g.message("bytes", &message{Key: b, Value: b})
		g.message("header value", &message{Headers: map[string][]byte{"k": b}})
	}
	g.message("header empty value", &message{Headers: map[string][]byte{"k": {}}})
	g.message("header empty key", &message{Headers: map[string][]byte{"": []byte("v")}})
	g.message("header empty both", &message{Headers: map[string][]byte{"": {}}})
	many := map[string][]byte{}
	for i := range 200 {
		many[fmt.Sprintf("k%d", i)] = []byte{byte(i)}
	}
	g.message("200 headers", &message{Headers: many})
	// What go-liftbridge's NewMessage sends: an offset of -1.
	g.message("as the Go client", &message{Offset: -1, Value: []byte("hello")})
	g.message("as the Go client", &message{Offset: -1, Value: []byte("hello"), AckInbox: "my.ack.inbox", CorrelationId: "123"})
}

func (g *generator) acks() {
	for _, set := range g.subsets(ackFieldCount, 110) {
		g.ack("fields", g.ackWith(set))
	}
	for _, n := range int64s {
		g.ack("times", &ack{Offset: n, ReceptionTimestamp: n, CommitTimestamp: n})
	}
	for _, n := range int32s {
		g.ack("enums", &ack{AckPolicy: api.AckPolicy(n), AckError: api.Ack_Error(n)})
	}
	for _, s := range texts {
		g.ack("text", &ack{Stream: s, MsgSubject: s, PartitionSubject: s, AckInbox: s, CorrelationId: s})
	}
	g.ack("as the server", &ack{Stream: "s", PartitionSubject: "foo", MsgSubject: "foo", AckInbox: "i", CorrelationId: "c",
		AckError: api.Ack_INCORRECT_OFFSET})
}

// message and ack record what protobuf's own encoder makes, every third time
// with a CRC, and see to it that the server's generated code agrees.
func (g *generator) message(what string, m *message) {
	payload := marshal(m)
	g.add(typeMessage, what, payload, true)
	// gogo leaves out empty header values, and has no order for several headers.
	if old, err := (*api.Message)(m).Marshal(); err != nil {
		report.Fail(err)
	} else if len(m.Headers) <= 1 && !bytes.Equal(old, payload) {
		g.add(typeMessage, what+", encoded by 1.9.0", old, false)
	}
}

func (g *generator) ack(what string, a *ack) {
	payload := marshal(a)
	g.add(typeAck, what, payload, true)
	if old, err := (*api.Ack)(a).Marshal(); err != nil {
		report.Fail(err)
	} else if !bytes.Equal(old, payload) {
		report.Fail(fmt.Errorf("1.9.0 encodes %v differently", ackFields(a)))
	}
}

// add records a valid envelope with what both decoders read from it.
func (g *generator) add(kind byte, what string, payload []byte, canonical bool) {
	crc := len(g.records)%3 == 0
	data := envelope(kind, payload, crc)
	r := g.judge(kind, what, data)
	if *r.Error {
		report.Fail(fmt.Errorf("%s: refused: %x", what, data))
	}
	r.Kind, r.Type, r.Error = r.Type, "", nil
	r.Canonical, r.CRC = canonical, crc
	if r.Error19 != nil && !*r.Error19 {
		r.Error19 = nil
	}
	g.records = append(g.records, r)
	if len(data) < 600 {
		g.valid = append(g.valid, envelopeOf{kind, data})
	}
}

// judge decodes an envelope with both decoders.
func (g *generator) judge(kind byte, what string, data []byte) record {
	yes, no := true, false
	r := record{Kind: "malformed", Type: []string{"message", "ack"}[kind], What: what, Hex: hex.EncodeToString(data)}
	payload, reason := check(data, kind)
	if reason != "" {
		r.Error, r.Error19, r.Reason = &yes, &yes, reason
		return r
	}
	r.Error, r.Error19 = &no, &no
	r.Fields = decode(kind, payload)
	if r.Fields == nil {
		r.Error, r.Reason = &yes, "protobuf"
	}
	old := decode19(kind, payload)
	if old == nil {
		r.Error19 = &yes
	} else if r.Fields != nil && !same(r.Fields, old) {
		r.Fields19 = old
	}
	return r
}
