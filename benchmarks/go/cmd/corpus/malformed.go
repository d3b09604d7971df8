package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	pw "google.golang.org/protobuf/encoding/protowire"

	"liftenvelope.test/benchmarks/internal/report"
)

func same(a, b map[string]any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	if errX != nil || errY != nil {
		report.Fail(fmt.Errorf("%v %v", errX, errY))
	}
	return bytes.Equal(x, y)
}

// bad records an envelope whatever the decoders make of it.
func (g *generator) bad(kind byte, what string, data []byte) {
	g.records = append(g.records, g.judge(kind, what, data))
}

// Bits of wire format.
func varint(n uint64) []byte { return pw.AppendVarint(nil, n) }
func tag(field pw.Number, t pw.Type) []byte {
	return varint(uint64(field)<<3 | uint64(t))
}
func lenField(field pw.Number, data []byte) []byte {
	return slices.Concat(tag(field, pw.BytesType), varint(uint64(len(data))), data)
}
func intField(field pw.Number, n uint64) []byte {
	return append(tag(field, pw.VarintType), varint(n)...)
}

// overlong returns n as a varint of size bytes, more than it needs.
func overlong(n uint64, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(n&0x7f) | 0x80
		n >>= 7
	}
	b[size-1] &= 0x7f
	return b
}

// valueOf returns a value of each wire type.
func valueOf(t pw.Type) []byte {
	switch t {
	case pw.VarintType:
		return []byte{0x05}
	case pw.Fixed64Type:
		return []byte("12345678")
	case pw.BytesType:
		return []byte("\x02ab")
	case pw.Fixed32Type:
		return []byte("1234")
	}
	return nil
}

func group(field pw.Number, content []byte) []byte {
	return slices.Concat(tag(field, pw.StartGroupType), content, tag(field, pw.EndGroupType))
}

func nested(field pw.Number, depth int) []byte {
	return slices.Concat(bytes.Repeat(tag(field, pw.StartGroupType), depth), bytes.Repeat(tag(field, pw.EndGroupType), depth))
}

// unusual records payloads that no encoder writes and a decoder must read all
// the same. (upb loses a header whose entry has unknown fields; protobuf's other
// decoders and both of Go's keep it.)
func (g *generator) unusual() {
	entry := func(parts ...[]byte) []byte { return lenField(9, slices.Concat(parts...)) }
	k, v := lenField(1, []byte("k")), lenField(2, []byte("v"))
	for _, c := range []struct {
		what    string
		payload []byte
	}{
		{"header value before key", entry(v, k)},
		{"header without value", entry(k)},
		{"header without key", entry(v)},
		{"header of nothing", entry()},
		{"header twice, last wins", slices.Concat(entry(k, lenField(2, []byte("old"))), entry(k, v))},
		{"header twice, last has no value", slices.Concat(entry(k, v), entry(k))},
		{"header with two keys and values", entry(lenField(1, []byte("x")), lenField(2, []byte("y")), k, v)},
		{"header with unknown fields", entry(intField(3, 7), k, lenField(15, []byte("u")), v)},
		{"header key overlong length", entry(tag(1, 2), overlong(1, 3), []byte("k"), v)},
		{"scalar twice, last wins", slices.Concat(intField(1, 1), intField(1, 2))},
		{"scalar twice, last is the default", slices.Concat(intField(1, 1), intField(1, 0))},
		{"string twice, last is empty", slices.Concat(lenField(5, []byte("s")), lenField(5, nil))},
		{"bytes twice, last wins", slices.Concat(lenField(3, []byte("first")), lenField(3, []byte("2")))},
		{"defaults written out", slices.Concat(intField(1, 0), lenField(2, nil), lenField(3, nil), intField(12, 0))},
		{"fields in reverse", slices.Concat(lenField(11, []byte("id")), lenField(3, []byte("v")), lenField(2, []byte("k")), intField(1, 9))},
		{"unknown fields", slices.Concat(intField(13, 1), lenField(3, []byte("v")), lenField(100, []byte("u")),
			tag(200, 1), valueOf(1), tag(536870911, 5), valueOf(5))},
		{"unknown group", slices.Concat(lenField(3, []byte("v")), group(50, intField(1, 1)), lenField(2, []byte("k")))},
		{"unknown group with length field", group(50, lenField(1, []byte("\x94\x03")))},
		{"overlong int", slices.Concat(tag(1, 0), overlong(5, 10))},
		{"overlong length", slices.Concat(tag(3, 2), overlong(2, 5), []byte("ab"))},
		{"overlong tag", slices.Concat(overlong(3<<3|2, 5), []byte("\x02ab"))},
		{"int32 of more bits", intField(6, 1<<40|7)},
		{"int32 with bit 31 alone", intField(6, 1<<31)},
		{"enum of more bits", intField(12, 1<<40|1)},
		{"enum with bit 31 alone", intField(12, 1<<31)},
	} {
		g.add(typeMessage, c.what, c.payload, false)
	}
	for _, n := range []uint64{1<<40 | 2, 1 << 31, 1<<32 - 1, 1 << 63} {
		g.add(typeAck, "enum of more bits", slices.Concat(intField(7, n), intField(10, n)), false)
	}
	g.add(typeAck, "scalar and string twice", slices.Concat(intField(4, 1), lenField(6, []byte("a")), intField(4, 7), lenField(6, []byte("b"))), false)
}

// headers records broken envelope headers.
func (g *generator) headers() {
	payload := marshal(&message{Offset: -1, Value: []byte("hello")})
	plain, sealed := envelope(typeMessage, payload, false), envelope(typeMessage, payload, true)
	with := func(data []byte, at int, b byte) []byte {
		c := slices.Clone(data)
		c[at] = b
		return c
	}
	for n := range 9 {
		g.bad(typeMessage, "header cut", plain[:n])
	}
	for n := 8; n < 13; n++ {
		g.bad(typeMessage, "header with crc cut", sealed[:n])
	}
	for _, n := range []byte{0, 1, 4, 7, 9, 10, 12, byte(len(plain) - 1), byte(len(plain)), byte(len(plain) + 1), 255} {
		g.bad(typeMessage, "header length", with(plain, 5, n))
		g.bad(typeMessage, "header length with crc", with(sealed, 5, n))
	}
	// The server parses header bytes as protobuf here, and these make sense.
	for _, kind := range []byte{typeMessage, typeAck} {
		body := slices.Concat(intField(4, 1), lenField(3, []byte("hello")))
		g.bad(kind, "header length below 8", slices.Concat(magic, []byte{0, 0, 0, kind}, body))
		g.bad(kind, "header length below 8", slices.Concat(magic, []byte{0, 6, 8, kind}, body))
	}
	long := slices.Concat(magic, []byte{0, 20, 0, typeMessage}, make([]byte, 12), payload)
	g.bad(typeMessage, "longer header", long)
	for _, flags := range []byte{1, 2, 3, 0x80, 0xfe, 0xff} {
		g.bad(typeMessage, "flags", with(plain, 6, flags))
		g.bad(typeMessage, "flags with crc", with(sealed, 6, flags))
	}
	for at := range 4 {
		g.bad(typeMessage, "magic", with(plain, at, plain[at]^0x20))
	}
	g.bad(typeMessage, "version", with(plain, 4, 1))
	for _, t := range []byte{1, 2, 14, 15, 255} {
		g.bad(typeMessage, "type", with(plain, 7, t))
	}
	g.bad(typeAck, "type", plain)
	g.bad(typeMessage, "crc wrong", with(sealed, 9, sealed[9]^1))
	g.bad(typeMessage, "crc of other bytes", with(sealed, len(sealed)-1, 'p'))
	g.bad(typeMessage, "crc little-endian", func() []byte {
		c := slices.Clone(sealed)
		binary.LittleEndian.PutUint32(c[8:], binary.BigEndian.Uint32(sealed[8:]))
		return c
	}())
	g.bad(typeMessage, "crc of nothing", envelope(typeMessage, nil, true))
	g.bad(typeAck, "crc of nothing", envelope(typeAck, nil, true))
}

// wire records payloads with broken or doubtful protobuf.
func (g *generator) wire() {
	// A field before and one after, so that a decoder that stops early shows.
	add := func(what string, broken ...[]byte) {
		g.bad(typeMessage, what, envelope(typeMessage, slices.Concat(
			lenField(2, []byte("before")), slices.Concat(broken...), lenField(11, []byte("after"))), false))
	}
	last := func(what string, broken ...[]byte) {
		g.bad(typeMessage, what, envelope(typeMessage, slices.Concat(broken...), false))
	}
	g.wireTypes()
	for _, text := range []string{"\x80", "\xff", "a\xc3", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xed\xbf\xbf",
		"\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xe2\x82", "ok\xf0\x9f\x99", "12345678\xfe"} {
		add("bad UTF-8", lenField(5, []byte(text)))
		add("bad UTF-8 header key", lenField(9, lenField(1, []byte(text))))
	}
	for _, field := range []pw.Number{7, 8, 10, 11} {
		add("bad UTF-8", lenField(field, []byte("\xfe")))
	}
	for _, field := range []pw.Number{1, 2, 3, 5, 6} {
		g.bad(typeAck, "bad UTF-8", envelope(typeAck, lenField(field, []byte("\xfe")), false))
	}
	add("bad UTF-8, then good", lenField(5, []byte("\xfe")), lenField(5, []byte("good")))
	add("bad UTF-8 in an unknown field", lenField(77, []byte("\xfe")))

	for size := 2; size <= 11; size++ {
		add(fmt.Sprintf("int of %d bytes", size), tag(1, 0), overlong(5, size))
		add(fmt.Sprintf("int32 of %d bytes", size), tag(6, 0), overlong(5, size))
		add(fmt.Sprintf("length of %d bytes", size), tag(3, 2), overlong(2, size), []byte("ab"))
		add(fmt.Sprintf("tag of %d bytes", size), overlong(3<<3|2, size), []byte("\x02ab"))
		add(fmt.Sprintf("unknown int of %d bytes", size), tag(99, 0), overlong(5, size))
		add(fmt.Sprintf("unknown tag of %d bytes", size), overlong(99<<3, size), []byte{1})
	}
	nines := bytes.Repeat([]byte{0x80}, 9)
	for _, tenth := range []byte{0x00, 0x01, 0x02, 0x03, 0x7f, 0x80, 0xff} {
		add("tenth byte of an int", tag(1, 0), nines, []byte{tenth})
		add("tenth byte of an unknown int", tag(99, 0), nines, []byte{tenth})
		add("tenth byte of a length", tag(3, 2), nines, []byte{tenth})
		add("tenth byte of a tag", overlong(99<<3, 9), []byte{tenth}, []byte{1})
	}
	for _, number := range []uint64{0, 1<<29 - 1, 1 << 29, 1<<29 + 3, 1<<32 - 1, 1 << 32, 1<<32 + 3, 1<<61 - 1} {
		for _, t := range []pw.Type{pw.VarintType, pw.BytesType} {
			add(fmt.Sprintf("field number %d", number), varint(number<<3|uint64(t)), valueOf(t))
		}
	}
	for _, length := range []uint64{1, 2, 100, 1 << 31, 1<<31 - 1, 1<<32 - 1, 1 << 32, 1 << 63, 1<<64 - 1, 1<<64 - 5} {
		for _, field := range []pw.Number{3, 5, 9, 99} {
			last(fmt.Sprintf("length %d beyond the end", length), intField(1, 4), tag(field, 2), varint(length))
		}
	}
	for _, field := range []pw.Number{1, 3, 99} { // cut in the middle
		last("tag alone", tag(field, 0))
		last("tag of a length alone", tag(field, 2))
		last("int without end", tag(field, 0), []byte{0x80, 0x80})
		last("fixed64 cut", tag(field, 1), []byte("1234567"))
		last("fixed32 cut", tag(field, 5), []byte("123"))
	}
	last("tag without end", []byte{0x80})
	g.groups(add, last)
	g.entries(add)
}

// wireTypes gives every field every wire type. protobuf takes a known field of
// the wrong type for an unknown one; 1.9.0 refuses it.
func (g *generator) wireTypes() {
	for kind, count := range []int{typeMessage: messageFieldCount, typeAck: ackFieldCount} {
		for field := pw.Number(1); field <= pw.Number(count); field++ {
			for t := pw.Type(0); t < 8; t++ {
				if t == pw.StartGroupType {
					continue // see groups
				}
				payload := slices.Concat(tag(field, t), valueOf(t))
				g.bad(byte(kind), fmt.Sprintf("field %d as wire type %d", field, t), envelope(byte(kind), payload, false))
			}
		}
	}
}

func (g *generator) groups(add, last func(string, ...[]byte)) {
	for _, field := range []pw.Number{1, 3, 9, 50} {
		add("group", group(field, slices.Concat(intField(1, 1), lenField(3, []byte("in")))))
		add("group with another's end", tag(field, 3), tag(field+1, 4))
		add("group crossed", tag(field, 3), tag(60, 3), tag(field, 4), tag(60, 4))
		add("stray end of group", tag(field, 4))
		last("group without end", tag(field, 3), intField(1, 1))
		add("group with field number 0", group(field, []byte{0x00, 0x01}))
		add("group with wire type 6", group(field, []byte{0x0e, 0x01}))
		add("group with wire type 7", group(field, []byte{0x0f, 0x01}))
		add("group with bad length", group(field, slices.Concat(tag(1, 2), varint(1<<40))))
	}
	add("group with an end of tag in 5 bytes", tag(50, 3), overlong(50<<3|4, 5))
	add("group with an end of tag in 10 bytes", tag(50, 3), overlong(50<<3|4, 10))
	for _, depth := range []int{10, 63, 64, 65, 98, 99, 100, 101, 102, 200, 1000} {
		add(fmt.Sprintf("groups %d deep", depth), nested(50, depth))
	}
}

// entries records broken entries of the headers map.
func (g *generator) entries(add func(string, ...[]byte)) {
	k, v := lenField(1, []byte("k")), lenField(2, []byte("v"))
	for t := pw.Type(0); t < 8; t++ {
		odd := slices.Concat(tag(1, t), valueOf(t))
		add(fmt.Sprintf("header key as wire type %d", t), lenField(9, slices.Concat(odd, v)))
		odd = slices.Concat(tag(2, t), valueOf(t))
		add(fmt.Sprintf("header value as wire type %d", t), lenField(9, slices.Concat(k, odd)))
		odd = slices.Concat(tag(3, t), valueOf(t))
		add(fmt.Sprintf("unknown field of a header as wire type %d", t), lenField(9, slices.Concat(k, v, odd)))
	}
	add("header field number 0", lenField(9, slices.Concat(k, v, []byte{0x02, 0x00})))
	add("header key longer than the entry", tag(9, 2), varint(4), tag(1, 2), varint(5), []byte("ab"), []byte("cde"))
	add("header value longer than the entry", tag(9, 2), varint(7), k, tag(2, 2), varint(4), []byte("ab"), []byte("cd"))
	add("header tag over the end of the entry", tag(9, 2), varint(4), k, []byte{0x92}, []byte{0x00})
	add("header entry cut after a tag", lenField(9, slices.Concat(k, []byte{0x12})))
	add("header group", lenField(9, slices.Concat(k, v, group(3, intField(1, 1)))))
	add("header group over the end of the entry", lenField(9, slices.Concat(k, v, tag(3, 3))), tag(3, 4))
	add("header stray end of group", lenField(9, slices.Concat(k, v, tag(3, 4))))
	for _, depth := range []int{98, 99, 100, 101} {
		add(fmt.Sprintf("header groups %d deep", depth), lenField(9, slices.Concat(k, v, nested(3, depth))))
	}
}

// mutate records n random mutations of valid envelopes. Of those with a CRC
// every second gets a new one, or none would reach the protobuf decoder.
func (g *generator) mutate(n int) {
	for range n {
		from := pick(g.rnd, g.valid)
		if len(from.data) <= 13 {
			continue
		}
		what, data := g.mutation(slices.Clone(from.data))
		if len(data) > 12 && data[5] == 12 && data[6]&1 != 0 && g.rnd.IntN(2) == 0 {
			binary.BigEndian.PutUint32(data[8:], crc32c(data[12:]))
		}
		g.bad(from.kind, "random: "+what, data)
	}
}

// mutation changes a few bytes behind the first eight, rarely among them.
func (g *generator) mutation(data []byte) (string, []byte) {
	first := 8
	if g.rnd.IntN(20) == 0 {
		first = 4
	}
	at := func() int { return first + g.rnd.IntN(len(data)-first) }
	switch g.rnd.IntN(8) {
	case 0:
		return "truncated", data[:at()]
	case 1:
		data[at()] ^= 1 << g.rnd.IntN(8)
		return "bit flipped", data
	case 2:
		data[at()] = pick(g.rnd, []byte{0x00, 0x01, 0x7f, 0x80, 0xff})
		return "byte set", data
	case 3:
		return "byte inserted", slices.Insert(data, at(), byte(g.rnd.Uint32()))
	case 4:
		i := at()
		return "byte removed", slices.Delete(data, i, i+1)
	case 5:
		i, j := at(), at()
		data[i], data[j] = data[j], data[i]
		return "bytes swapped", data
	case 6:
		other := pick(g.rnd, g.valid).data
		return "another's payload after it", append(data, other[8:]...)
	default:
		for range 3 {
			data[at()] = byte(g.rnd.Uint32())
		}
		return "three bytes set", data
	}
}
