# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""See dledger/_fast/__init__.py. Plain cases only: anything else is left to the Python twins.

What comes in may be hostile. Every read of memory below is behind a check against the end of what it reads;
numbers have at most 18 digits; a number of a frame that becomes a size was compared with the frame first.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy

from dledger.formats.checksum import crc32 as sum_crc32

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "little-endian machines only: the Python twins do it elsewhere"
    #endif
    #define BIG32(x) __builtin_bswap32(x)
    #define BIG64(x) __builtin_bswap64(x)
    static uint32_t crc_table[8][256];
    static void crc_init(void) {
        for (int i = 0; i < 256; i++) {
            uint32_t c = (uint32_t)i;
            for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
            crc_table[0][i] = c;
        }
        for (int i = 0; i < 256; i++)
            for (int t = 1; t < 8; t++)
                crc_table[t][i] = crc_table[0][crc_table[t - 1][i] & 255] ^ (crc_table[t - 1][i] >> 8);
    }
    /* By eight bytes at a time: for pieces of some hundred bytes, where a call of zlib-ng costs more. */
    static uint32_t crc_small(const uint8_t *p, size_t n, uint32_t c) {
        c = ~c;
        while (n >= 8) {
            uint32_t a, b;
            memcpy(&a, p, 4);
            memcpy(&b, p + 4, 4);
            a ^= c;
            c = crc_table[7][a & 255] ^ crc_table[6][(a >> 8) & 255] ^ crc_table[5][(a >> 16) & 255]
                ^ crc_table[4][a >> 24] ^ crc_table[3][b & 255] ^ crc_table[2][(b >> 8) & 255]
                ^ crc_table[1][(b >> 16) & 255] ^ crc_table[0][b >> 24];
            p += 8;
            n -= 8;
        }
        while (n--) c = crc_table[0][(c ^ *p++) & 255] ^ (c >> 8);
        return ~c;
    }
    """
    void crc_init()
    uint32_t crc_small(const uint8_t *p, size_t n, uint32_t c) nogil
    uint32_t BIG32(uint32_t) nogil
    uint64_t BIG64(uint64_t) nogil

cdef extern from *:
    const char *TWINS_SOURCE

SOURCE = TWINS_SOURCE.decode()

crc_init()

# Sizes and bits of the formats (dledger/formats/entry.py and record.py), and limits (dledger/remoting/limits.py).
cdef enum:
    ENTRY = 48
    FIXED = 88
    MIN_RECORD = 91
    MAGIC_V1 = 0xDAA320A7
    ENTRY_MAGIC = 1
    MIN_BLANK = 8
    COVERED_SHIFT = 31
    TRANSACTION_ROLLBACK = 0xC
    IPV6_FLAGS = 0x30
    KEY_ROW = 32  # four columns of 8 bytes
    UNPLAIN_FLAGS = 0x73D  # those, and compressed bodies
    KIND_MESSAGE = 0
    KIND_CONFIG = 2
    MAX_ENTRY = 4 * 1024 * 1024 + 64 * 1024
    MAX_HEADER = 384 * 1024
    MAX_PROPERTIES = 32767
    OVERHEAD = 512
    ANSWER_ROOM = 512
    HOST_ROOM = 32
    BATCH_HEAD = 20
    MAX_NAMES = 32
    KEY_ROOM = 128
    MAX_MARKS = 16


# What is special about a message: `set_up` takes it from its one definition. Until then no message is plain.
cdef int64_t SPECIAL_FLAGS = 0
cdef tuple mark_texts = ()  # keeps what `marks` points at
cdef int mark_count = -1
cdef const char *marks[MAX_MARKS]
cdef Py_ssize_t mark_sizes[MAX_MARKS]


def set_up(tuple texts, int64_t special_flags):
    global SPECIAL_FLAGS, mark_texts, mark_count
    cdef bytes text
    if len(texts) > MAX_MARKS:
        raise ValueError("more marks than MAX_MARKS: raise it in compiled.pyx")
    mark_texts, mark_count, SPECIAL_FLAGS = texts, 0, special_flags
    for text in texts:
        marks[mark_count] = PyBytes_AS_STRING(text)
        mark_sizes[mark_count] = PyBytes_GET_SIZE(text)
        mark_count += 1


cdef inline void put32(uint8_t *p, uint32_t value) noexcept nogil:
    value = BIG32(value)
    memcpy(p, &value, 4)


cdef inline void put64(uint8_t *p, uint64_t value) noexcept nogil:
    value = BIG64(value)
    memcpy(p, &value, 8)


cdef inline uint32_t get32(const uint8_t *p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, 4)
    return BIG32(value)


cdef inline uint64_t get64(const uint8_t *p) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, p, 8)
    return BIG64(value)


cdef uint32_t chained(int64_t index, int64_t term, uint32_t body_crc, uint32_t chain) noexcept nogil:
    """Chain value of an entry, from that of the one before."""
    cdef uint8_t link[20]
    put64(link, index)
    put64(link + 8, term)
    put32(link + 16, body_crc)
    return crc_small(link, 20, chain)


cdef uint32_t put_entry(
    uint8_t *to,
    uint32_t size,
    int64_t index,
    int64_t term,
    int64_t pos,
    uint32_t channel,
    uint32_t body_crc,
    uint32_t chain,
) noexcept nogil:
    """The header of an entry of `size` bytes with it. Its chain value, from `chain` of the one before."""
    chain = chained(index, term, body_crc, chain)
    put32(to, 1)
    put32(to + 4, size)
    put64(to + 8, index)
    put64(to + 16, term)
    put64(to + 24, pos)
    put32(to + 32, channel)
    put32(to + 36, chain)
    put32(to + 40, body_crc)
    put32(to + 44, size - ENTRY)
    return chain


def crc32(bytes data, uint32_t begin):
    return crc_small(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), begin)


cdef Py_ssize_t find(const uint8_t *p, Py_ssize_t size, const char *word, Py_ssize_t length) noexcept nogil:
    """Where `word` is first, -1 where it is not."""
    cdef const uint8_t *begin = p
    cdef const uint8_t *end = p + size
    while end - p >= length:
        p = <const uint8_t *>memchr(p, word[0], end - p - length + 1)
        if p == NULL:
            return -1
        if memcmp(p, word, length) == 0:
            return p - begin
        p += 1
    return -1


cdef bint ascii(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """Whether all of it is ASCII."""
    cdef const uint8_t *end = p + size
    cdef uint64_t eight
    while end - p >= 8:
        memcpy(&eight, p, 8)
        if eight & 0x8080808080808080ULL:
            return False
        p += 8
    while p < end:
        if p[0] & 0x80:
            return False
        p += 1
    return True


# -- the header of a send -----------------------------------------------------------------------------------
#
# JSON as all known clients write it: no white space, every key once, texts of printable ASCII (in the properties
# the two separators besides). Each function takes where its part begins and where the header ends, and gives
# where it went on, or NULL for anything else, which the Python twin looks at.

cdef struct Send:
    int64_t opaque
    int64_t flag
    int64_t version
    int64_t number[14]  # of the fields a to n
    uint32_t fields  # bits of those that were there
    uint32_t envelope
    const uint8_t *value[14]  # what they say as text; not of i. NULL where one is bare
    Py_ssize_t value_size[14]
    const uint8_t *account
    Py_ssize_t account_size
    const uint8_t *signature
    Py_ssize_t signature_size
    const uint8_t *topic
    Py_ssize_t topic_size
    Py_ssize_t properties_size
    uint8_t properties[MAX_PROPERTIES + 1]


cdef const uint8_t *scan_text(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """A text without escapes, from its opening quote."""
    if p >= end or p[0] != c'"':
        return NULL
    p += 1
    while p < end and p[0] != c'"':
        if p[0] < 32 or p[0] > 126 or p[0] == c'\\':
            return NULL
        p += 1
    return p + 1 if p < end else NULL


cdef const uint8_t *scan_span(
    const uint8_t *p, const uint8_t *end, const uint8_t **begin, Py_ssize_t *size
) noexcept nogil:
    """A text without escapes, and where it lies."""
    cdef const uint8_t *behind = scan_text(p, end)
    if behind != NULL:
        begin[0] = p + 1
        size[0] = behind - p - 2
    return behind


cdef const uint8_t *scan_number(const uint8_t *p, const uint8_t *end, int64_t *value) noexcept nogil:
    """A whole number, bare or as text."""
    cdef bint quoted = p < end and p[0] == c'"'
    cdef bint negative = False
    cdef int64_t sum = 0
    cdef int digits = 0
    if quoted:
        p += 1
    if p < end and p[0] == c'-':
        negative = True
        p += 1
    if end - p >= 2 and p[0] == c'0' and c'0' <= p[1] <= c'9':
        return NULL
    while p < end and c'0' <= p[0] <= c'9':
        if digits == 18:
            return NULL
        sum = sum * 10 + (p[0] - c'0')
        digits += 1
        p += 1
    if digits == 0 or p >= end or (negative and sum == 0):
        return NULL
    if quoted:
        if p[0] != c'"':
            return NULL
        p += 1
    elif p[0] != c',' and p[0] != c'}':
        return NULL
    value[0] = -sum if negative else sum
    return p


cdef const uint8_t *scan_truth(const uint8_t *p, const uint8_t *end, int64_t *value) noexcept nogil:
    """true or false, bare or as text."""
    cdef bint quoted = p < end and p[0] == c'"'
    if quoted:
        p += 1
    if end - p > 4 and memcmp(p, b"true", 4) == 0:
        value[0] = 1
        p += 4
    elif end - p > 5 and memcmp(p, b"false", 5) == 0:
        value[0] = 0
        p += 5
    else:
        return NULL
    if quoted:
        if p[0] != c'"':
            return NULL
        p += 1
    return p


cdef const uint8_t *scan_properties(const uint8_t *p, const uint8_t *end, Send *send) noexcept nogil:
    """The text of the properties, decoded."""
    cdef uint8_t one
    if p >= end or p[0] != c'"':
        return NULL
    p += 1
    while True:
        if p >= end:
            return NULL
        one = p[0]
        if one == c'"':
            return p + 1
        if one < 32 or one > 126 or send.properties_size >= MAX_PROPERTIES:
            return NULL
        if one == c'\\':
            if end - p < 6 or memcmp(p, b"\\u000", 5) != 0 or (p[5] != c'1' and p[5] != c'2'):
                return NULL
            one = p[5] - c'0'
            p += 5
        send.properties[send.properties_size] = one
        send.properties_size += 1
        p += 1


cdef const uint8_t *scan_fields(const uint8_t *p, const uint8_t *end, Send *send) noexcept nogil:
    """The header fields a to n of SEND_MESSAGE_V2, and by whom it is signed."""
    cdef const uint8_t *begin
    cdef int field
    if p >= end or p[0] != c'{':
        return NULL
    p += 1
    while True:
        if end - p > 12 and memcmp(p, b'"AccessKey":', 12) == 0 and send.account == NULL:
            p = scan_span(p + 12, end, &send.account, &send.account_size)
            field = -1
        elif end - p > 12 and memcmp(p, b'"Signature":', 12) == 0 and send.signature == NULL:
            p = scan_span(p + 12, end, &send.signature, &send.signature_size)
            field = -1
        elif end - p < 5 or p[0] != c'"' or p[2] != c'"' or p[3] != c':':
            return NULL
        else:
            field = p[1] - c'a'
            if field < 0 or field > 13 or send.fields >> field & 1:
                return NULL
            send.fields |= 1 << field
            p += 4
            begin = p
        if field < 0:
            pass
        elif field == 1:  # b: topic
            p = scan_span(p, end, &send.topic, &send.topic_size)
        elif field == 0 or field == 2 or field == 13:  # a, c, n: producer group, default topic, broker
            p = scan_text(p, end)
        elif field == 8:  # i: properties
            p = scan_properties(p, end, send)
        elif field == 10 or field == 12:  # k, m: unit mode, batch
            p = scan_truth(p, end, &send.number[field])
        else:
            p = scan_number(p, end, &send.number[field])
            if field != 6 and (send.number[field] < -2147483648LL or send.number[field] > 2147483647LL):
                return NULL  # all but g, the time, are Java's int
        if p == NULL or p >= end:
            return NULL
        if field >= 0 and begin[0] == c'"':
            send.value[field] = begin + 1
            send.value_size[field] = p - 2 - begin
        if p[0] == c'}':
            return p + 1
        if p[0] != c',':
            return NULL
        p += 1


cdef bytes signed_text(Send *send):
    """What a signature covers besides the body: the values of all fields but itself, in the order of their
    names. None where one is no text."""
    cdef Py_ssize_t size = send.account_size, count
    cdef const uint8_t *value
    cdef uint8_t *to
    cdef bytes text
    cdef int field
    for field in range(14):
        if send.fields >> field & 1:
            if send.value[field] == NULL:
                return None
            size += send.properties_size if field == 8 else send.value_size[field]
    text = PyBytes_FromStringAndSize(NULL, size)
    to = <uint8_t *>PyBytes_AS_STRING(text)
    memcpy(to, send.account, send.account_size)
    to += send.account_size
    for field in range(14):
        if send.fields >> field & 1:
            value, count = send.value[field], send.value_size[field]
            if field == 8:
                value, count = send.properties, send.properties_size
            memcpy(to, value, count)
            to += count
    return text


cdef bint in_base64(const uint8_t *text, Py_ssize_t size, bytes digest) noexcept:
    """Whether a text is this digest of 20 bytes. Takes as long whatever differs."""
    cdef const char *letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    cdef const uint8_t *octets = <const uint8_t *>PyBytes_AS_STRING(digest)
    cdef uint32_t three, wrong = 0
    cdef int group, part
    if size != 28 or PyBytes_GET_SIZE(digest) != 20:
        return False
    for group in range(7):
        three = <uint32_t>octets[3 * group] << 16 | <uint32_t>octets[3 * group + 1] << 8
        if group < 6:
            three |= octets[3 * group + 2]
        for part in range(4 if group < 6 else 3):
            wrong |= text[4 * group + part] ^ <uint8_t>letters[three >> (18 - 6 * part) & 63]
    wrong |= text[27] ^ c'='
    return wrong == 0


cdef bint is_signed(key, Send *send, bytes body):
    """Whether it is signed with this key (dledger/remoting/signing.py)."""
    cdef bytes text = signed_text(send)
    if text is None:
        return False
    inner, outer = key.inner.copy(), key.outer.copy()
    inner.update(text)
    inner.update(body)
    outer.update(inner.digest())
    return in_base64(send.signature, send.signature_size, outer.digest())


cdef bint scan_header(const uint8_t *p, const uint8_t *end, Send *send) noexcept nogil:
    """The envelope behind `{"code":310,`: whether all of it was read, and a to i were there."""
    cdef uint32_t bit
    while True:
        if end - p > 12 and memcmp(p, b'"extFields":', 12) == 0:
            bit = 1
            p = scan_fields(p + 12, end, send)
        elif end - p > 9 and memcmp(p, b'"opaque":', 9) == 0:
            bit = 2
            p = scan_number(p + 9, end, &send.opaque)
        elif end - p > 7 and memcmp(p, b'"flag":', 7) == 0:
            bit = 4
            p = scan_number(p + 7, end, &send.flag)
        elif end - p > 10 and memcmp(p, b'"version":', 10) == 0:
            bit = 8
            p = scan_number(p + 10, end, &send.version)
        elif end - p > 11 and memcmp(p, b'"language":', 11) == 0:
            bit = 16
            p = scan_text(p + 11, end)
        elif end - p > 26 and memcmp(p, b'"serializeTypeCurrentRPC":', 26) == 0:
            bit = 32
            p = scan_text(p + 26, end)
        else:
            return False
        if p == NULL or p >= end or send.envelope & bit:
            return False
        send.envelope |= bit
        if p[0] == c'}':
            return p + 1 == end and send.envelope & 1 and send.fields & 0x1FF == 0x1FF
        if p[0] != c',':
            return False
        p += 1


cdef Py_ssize_t plain_key(const uint8_t *properties, Py_ssize_t size) noexcept nogil:
    """Where the unique key begins in the properties of a plain message; -1 if it has none, or is special."""
    cdef Py_ssize_t at = find(properties, size, b"UNIQ_KEY\x01", 9)
    cdef int number
    if at < 0 or (at and properties[at - 1] != 2) or mark_count < 0:
        return -1
    for number in range(mark_count):
        if find(properties, size, marks[number], mark_sizes[number]) >= 0:
            return -1
    return at + 9


# -- sends to entries -------------------------------------------------------------------------------------


def seal_sends(
    bytearray buffer, Py_ssize_t at, Py_ssize_t end, bytes born_host, terms, slots, run, answers, key_of
):
    cdef const uint8_t *base = <const uint8_t *>PyByteArray_AS_STRING(buffer)
    cdef Send send
    cdef int64_t index = run.index, pos = run.pos
    cdef int64_t room_index = run.room_index, room_pos = run.room_pos, stop_pos = run.stop_pos
    cdef int64_t max_entry = run.max_entry, now = run.now_ms, term = run.term
    cdef uint32_t chain = run.chain, channel = run.covered
    cdef uint32_t max_frame = terms.max_frame
    cdef Py_ssize_t max_body = terms.max_body
    cdef bytes added = terms.added, head = terms.answer_head, host_hex = terms.host_hex
    cdef bytes tail = terms.answer_tail, store_host = terms.store_host
    cdef list parts = run.parts, sizes = run.sizes
    cdef list frames = answers.frames, opaques = answers.opaques, costs = answers.sizes
    cdef Py_ssize_t added_size = PyBytes_GET_SIZE(added)
    cdef Py_ssize_t head_size = PyBytes_GET_SIZE(head), hex_size = PyBytes_GET_SIZE(host_hex)
    cdef list offsets = None
    cdef bytes field = None, front, body, texts, key, answer
    cdef const uint8_t *last_topic = NULL
    cdef const uint8_t *last_account = NULL
    cdef Py_ssize_t last_size = -1, last_account_size = -1, queues = 0, field_size = 0
    cdef Py_ssize_t stop, body_at, body_size, key_at, key_size, properties_size, size, entry_size
    cdef uint32_t length, header_size, body_crc, record_crc, next_chain
    cdef int64_t queue, offset
    cdef uint8_t *to
    cdef const uint8_t *key_end
    cdef char text[ANSWER_ROOM]
    cdef int text_size, number
    slot = puts = secret = None
    stored, looked_for = terms.stored_again, terms.looked_for
    if PyBytes_GET_SIZE(born_host) != 8 or PyBytes_GET_SIZE(store_host) != 8:
        return at
    if end > PyByteArray_GET_SIZE(buffer):
        raise ValueError("beyond the buffer")
    while end - at >= 8:
        length = get32(base + at)
        header_size = get32(base + at + 4)
        stop = at + 4 + <Py_ssize_t>length
        body_at = at + 8 + <Py_ssize_t>header_size
        if stop > end or length > max_frame or header_size > MAX_HEADER or header_size < 13 or body_at > stop:
            break
        if memcmp(base + at + 8, b'{"code":310,', 12) != 0:
            break
        send.opaque = send.flag = send.version = 0
        send.fields = send.envelope = 0
        send.account = send.signature = NULL
        send.account_size = send.signature_size = 0
        send.properties_size = 0
        for number in range(14):
            send.number[number] = 0
            send.value[number] = NULL
        if not scan_header(base + at + 20, base + body_at, &send):
            break
        body_size = stop - body_at
        queue = send.number[4]
        # Other flags than FLAG_REDIRECT; a batch; sysFlag that is not for clients to set.
        if send.flag & ~4 or send.number[12] or send.number[5] & SPECIAL_FLAGS or body_size > max_body:
            break
        if send.topic_size != last_size or memcmp(send.topic, last_topic, last_size) != 0:
            slot = slots.get(send.topic[: send.topic_size].decode("ascii"))
            if slot is None or not slot.writable or slot.is_retry:
                break
            last_topic, last_size, last_account_size = send.topic, send.topic_size, -1
            offsets, field, puts = slot.next, slot.field, slot.puts
            queues = min(<Py_ssize_t>slot.queues, len(offsets))
            field_size = PyBytes_GET_SIZE(field)
        if not 0 <= queue < queues:
            break
        key_at = plain_key(send.properties, send.properties_size)
        if key_at < 0:
            break
        body = PyBytes_FromStringAndSize(<char *>(base + body_at), body_size)
        if key_of is not None:
            # Who signs, and may send there: asked again where either is another.
            if send.account == NULL or send.signature == NULL:
                break
            if (
                send.account_size != last_account_size
                or memcmp(send.account, last_account, last_account_size) != 0
            ):
                secret = key_of(
                    send.account[: send.account_size].decode("ascii"),
                    send.topic[: send.topic_size].decode("ascii"),
                )
                last_account, last_account_size = send.account, send.account_size
            if secret is None or not is_signed(secret, &send, body):
                break
        if send.properties[send.properties_size - 1] != 2:
            send.properties[send.properties_size] = 2
            send.properties_size += 1
        key_end = <const uint8_t *>memchr(&send.properties[key_at], 2, send.properties_size - key_at)
        key_size = key_end - &send.properties[key_at]
        properties_size = send.properties_size + added_size
        if key_size > KEY_ROOM or properties_size > MAX_PROPERTIES:
            break
        key = PyBytes_FromStringAndSize(<char *>&send.properties[key_at], key_size)
        if key in stored or key in looked_for or not key.isalnum():
            break
        size = FIXED + body_size + field_size + 2 + properties_size
        entry_size = ENTRY + size
        if pos >= room_pos or index > room_index or pos + entry_size > stop_pos or entry_size > max_entry:
            break
        # The record and its entry.
        offset = offsets[queue]
        record_crc = sum_crc32(body)
        front = PyBytes_FromStringAndSize(NULL, ENTRY + FIXED)
        to = <uint8_t *>PyBytes_AS_STRING(front) + ENTRY
        put32(to, <uint32_t>size)
        put32(to + 4, MAGIC_V1)
        put32(to + 8, record_crc & 0x7FFFFFFF)
        put32(to + 12, <uint32_t>queue)
        put32(to + 16, <uint32_t>send.number[7])
        put64(to + 20, offset)
        put64(to + 28, pos + ENTRY)
        put32(to + 36, <uint32_t>send.number[5])
        put64(to + 40, send.number[6])
        memcpy(to + 48, PyBytes_AS_STRING(born_host), 8)
        put64(to + 56, now)
        memcpy(to + 64, PyBytes_AS_STRING(store_host), 8)
        put32(to + 72, <uint32_t>send.number[9])
        put64(to + 76, 0)
        put32(to + 84, <uint32_t>body_size)
        body_crc = crc_small(to, FIXED, channel)
        body_crc = sum_crc32(body, body_crc)
        texts = PyBytes_FromStringAndSize(NULL, field_size + 2 + properties_size)
        to = <uint8_t *>PyBytes_AS_STRING(texts)
        memcpy(to, PyBytes_AS_STRING(field), field_size)
        to[field_size] = properties_size >> 8
        to[field_size + 1] = properties_size & 255
        memcpy(to + field_size + 2, send.properties, send.properties_size)
        memcpy(to + field_size + 2 + send.properties_size, PyBytes_AS_STRING(added), added_size)
        body_crc = crc_small(to, field_size + 2 + properties_size, body_crc)
        to = <uint8_t *>PyBytes_AS_STRING(front)
        next_chain = put_entry(to, <uint32_t>entry_size, index, term, pos, channel, body_crc, chain)
        # Its answer.
        text_size = snprintf(
            text,
            ANSWER_ROOM,
            b'%016llX","queueId":"%lld","queueOffset":"%lld","transactionId":"%s"},"flag":1,"language":"JAVA"'
            b',"opaque":%lld%s',
            <unsigned long long>(pos + ENTRY),
            <long long>queue,
            <long long>offset,
            PyBytes_AS_STRING(key),
            <long long>send.opaque,
            PyBytes_AS_STRING(tail),
        )
        if text_size <= 0 or text_size >= ANSWER_ROOM:
            break
        answer = PyBytes_FromStringAndSize(NULL, 8 + head_size + hex_size + text_size)
        to = <uint8_t *>PyBytes_AS_STRING(answer)
        put32(to, <uint32_t>(4 + head_size + hex_size + text_size))
        put32(to + 4, <uint32_t>(head_size + hex_size + text_size))
        memcpy(to + 8, PyBytes_AS_STRING(head), head_size)
        memcpy(to + 8 + head_size, PyBytes_AS_STRING(host_hex), hex_size)
        memcpy(to + 8 + head_size + hex_size, text, text_size)
        # From here on nothing fails but for want of memory, as in the Python twin.
        parts.append(front)
        parts.append(body)
        parts.append(texts)
        sizes.append(entry_size)
        frames.append(answer)
        opaques.append(send.opaque)
        costs.append(length + OVERHEAD)
        offsets[queue] = offset + 1
        puts.messages += 1
        puts.size += size
        index += 1
        pos += entry_size
        chain = next_chain
        at = stop
        run.index, run.pos, run.chain = index, pos, chain
    return at


# -- a batch to entries -----------------------------------------------------------------------------------


def measure_batch(bytes body, Py_ssize_t most, Py_ssize_t added):
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(body)
    cdef const uint8_t *properties
    cdef const uint8_t *key_end
    cdef Py_ssize_t total = PyBytes_GET_SIZE(body), at = 0, messages = 0, size = 0, rest, found, first_size = 0
    cdef int64_t body_size, properties_size, kept
    cdef bytes first = None
    while at < total:
        rest = total - at
        if messages == most or rest < BATCH_HEAD + 2:
            return None
        body_size = <int32_t>get32(base + at + 16)
        if body_size < 0 or body_size > rest - BATCH_HEAD - 2:
            return None
        properties = base + at + BATCH_HEAD + body_size + 2
        properties_size = <int64_t>properties[-2] << 8 | properties[-1]
        if (
            properties_size > MAX_PROPERTIES
            or properties_size > rest - BATCH_HEAD - 2 - body_size
            or <int64_t><int32_t>get32(base + at) != BATCH_HEAD + body_size + 2 + properties_size
            or not ascii(properties, properties_size)
        ):
            return None
        found = plain_key(properties, properties_size)
        if found < 0:
            return None
        if first is None:
            key_end = <const uint8_t *>memchr(properties + found, 2, properties_size - found)
            first_size = (properties_size if key_end == NULL else key_end - properties) - found
            first = PyBytes_FromStringAndSize(<const char *>(properties + found), first_size)
        kept = properties_size + (properties[properties_size - 1] != 2) + added
        if kept > MAX_PROPERTIES:
            return None
        size += body_size + kept
        messages += 1
        at += BATCH_HEAD + 2 + body_size + properties_size
    return None if first is None else (messages, size, first)


def seal_batch(
    bytes body,
    bytes added,
    bytes born_host,
    bytes store_host,
    bytes host_hex,
    slot,
    Py_ssize_t queue_id,
    int64_t sys_flag,
    int64_t born_timestamp,
    Py_ssize_t messages,
    Py_ssize_t size,
    int following,
    run,
):
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(body)
    cdef bytes field = slot.field
    cdef list offsets = slot.next, sizes = run.sizes, own = []
    cdef Py_ssize_t field_size = PyBytes_GET_SIZE(field), added_size = PyBytes_GET_SIZE(added)
    cdef Py_ssize_t hex_size = PyBytes_GET_SIZE(host_hex), total = PyBytes_GET_SIZE(body), at = 0, number
    cdef Py_ssize_t record_size, body_size, properties_size, kept, written = 0
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size + messages * (ENTRY + FIXED + field_size + 2))
    cdef bytes ids = PyBytes_FromStringAndSize(NULL, messages * (hex_size + 17))
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(data)
    cdef uint8_t *id = <uint8_t *>PyBytes_AS_STRING(ids)
    cdef uint8_t *to
    cdef uint8_t *into
    cdef const uint8_t *properties
    cdef int64_t index = run.index, pos = run.pos, now = run.now_ms, term = run.term, offset
    cdef uint32_t chain = run.chain, covered = run.covered, channel, body_crc
    cdef char text[24]
    if PyBytes_GET_SIZE(born_host) != 8 or PyBytes_GET_SIZE(store_host) != 8 or messages <= 0 or following < 0:
        raise ValueError("hosts of 8 bytes, and a message")
    offset = offsets[queue_id]
    view = memoryview(data)
    for number in range(messages):
        if total - at < BATCH_HEAD + 2:
            raise ValueError("another batch was measured")
        body_size = <int32_t>get32(base + at + 16)
        if body_size < 0 or body_size > total - at - BATCH_HEAD - 2:
            raise ValueError("another batch was measured")
        properties = base + at + BATCH_HEAD + body_size + 2
        properties_size = <Py_ssize_t>properties[-2] << 8 | properties[-1]
        if not 0 < properties_size <= total - at - BATCH_HEAD - 2 - body_size:
            raise ValueError("another batch was measured")
        kept = properties_size + (properties[properties_size - 1] != 2) + added_size
        record_size = FIXED + body_size + field_size + 2 + kept
        if written + ENTRY + record_size > PyBytes_GET_SIZE(data):
            raise ValueError("another batch was measured")
        to = out + written + ENTRY
        put32(to, <uint32_t>record_size)
        put32(to + 4, MAGIC_V1)
        put32(to + 12, <uint32_t>queue_id)
        put32(to + 16, get32(base + at + 12))
        put64(to + 20, offset)
        put64(to + 28, pos + ENTRY)
        put32(to + 36, <uint32_t>sys_flag)
        put64(to + 40, born_timestamp)
        memcpy(to + 48, PyBytes_AS_STRING(born_host), 8)
        put64(to + 56, now)
        memcpy(to + 64, PyBytes_AS_STRING(store_host), 8)
        put32(to + 72, 0)
        put64(to + 76, 0)
        put32(to + 84, <uint32_t>body_size)
        into = to + FIXED
        memcpy(into, base + at + BATCH_HEAD, body_size)
        put32(
            to + 8,
            <uint32_t>sum_crc32(view[written + ENTRY + FIXED : written + ENTRY + FIXED + body_size]) & 0x7FFFFFFF,
        )
        into += body_size
        memcpy(into, PyBytes_AS_STRING(field), field_size)
        into += field_size
        into[0] = kept >> 8
        into[1] = kept & 255
        memcpy(into + 2, properties, properties_size)
        into += 2 + properties_size
        if properties[properties_size - 1] != 2:
            into[0] = 2
            into += 1
        memcpy(into, PyBytes_AS_STRING(added), added_size)
        channel = covered | <uint32_t>(messages - number - 1 + following)
        body_crc = sum_crc32(view[written + ENTRY : written + ENTRY + record_size], channel if covered else 0)
        to = out + written
        chain = put_entry(to, <uint32_t>(ENTRY + record_size), index, term, pos, channel, body_crc, chain)
        memcpy(id, PyBytes_AS_STRING(host_hex), hex_size)
        snprintf(text, 24, b"%016llX", <unsigned long long>(pos + ENTRY))
        memcpy(id + hex_size, text, 16)
        id[hex_size + 16] = c','
        id += hex_size + 17
        own.append(ENTRY + record_size)
        written += ENTRY + record_size
        at += BATCH_HEAD + 2 + body_size + properties_size
        offset += 1
        index += 1
        pos += ENTRY + record_size
    if written != PyBytes_GET_SIZE(data) or at != total:
        raise ValueError("another batch was measured")
    told = ids[: messages * (hex_size + 17) - 1]
    # From here on nothing fails but for want of memory, as in the Python twin.
    run.parts.append(data)
    sizes.extend(own)
    run.index, run.pos, run.chain = index, pos, chain
    return told


# -- messages that waited, to entries ---------------------------------------------------------------------


cdef struct Waited:
    # Of one record: what of it goes on.
    const uint8_t *record
    Py_ssize_t body_size
    Py_ssize_t properties_size
    # What is left out of its properties: where, and how much, in order.
    Py_ssize_t cut_at[3]
    Py_ssize_t cut_size[3]
    int cuts
    int slot
    int64_t queue
    int64_t size


cdef bint named(const uint8_t *p, Py_ssize_t size, const char *name, Py_ssize_t length) noexcept nogil:
    """Whether a property has this name, given with its separator."""
    return size >= length and memcmp(p, name, length) == 0


cdef bint read_waited(
    const uint8_t *p, int64_t total, bint delayed, Waited *one, const uint8_t **text, Py_ssize_t *sizes
) noexcept nogil:
    """Take a record apart. False: it is no plain one. `text`, `sizes`: real topic, real queue, unique key, delay
    level."""
    cdef int64_t at, body_size
    cdef const uint8_t *end = p + total
    cdef const uint8_t *name
    cdef const uint8_t *stop
    cdef const uint8_t *middle
    cdef const uint8_t *names[MAX_NAMES]
    cdef Py_ssize_t lengths[MAX_NAMES]
    cdef int which, other, count = 0
    if total < MIN_RECORD or get32(p + 4) != MAGIC_V1 or get32(p + 36) & 0x30:
        return False
    body_size = <int32_t>get32(p + 84)
    if body_size < 0 or FIXED + body_size + 3 > total:
        return False
    at = FIXED + body_size
    at += 3 + p[at]
    if at > total or get32(p) != total or (<int>p[at - 2] << 8 | p[at - 1]) != total - at:
        return False
    one.record, one.body_size, one.properties_size, one.cuts = p, body_size, total - at, 0
    for which in range(4):
        text[which] = NULL
    name = p + at
    while name < end:
        stop = <const uint8_t *>memchr(name, 2, end - name)
        if stop == NULL:
            return False
        if delayed:  # the Python twin writes these anew: one pair of each name
            middle = <const uint8_t *>memchr(name, 1, stop - name)
            if middle == NULL or middle == name or stop - name < 3 or count == MAX_NAMES:
                return False
            if stop - name < 6 and not ascii(name, stop - name):
                return False  # of fewer than three characters, perhaps
            names[count], lengths[count] = name, middle - name
            for other in range(count):
                if lengths[other] == lengths[count] and memcmp(names[other], name, lengths[count]) == 0:
                    return False
            count += 1
        which = -1
        if name[0] == c'R':
            if text[0] == NULL and named(name, stop - name, b"REAL_TOPIC\x01", 11):
                which, at = 0, 11
            elif text[1] == NULL and named(name, stop - name, b"REAL_QID\x01", 9):
                which, at = 1, 9
        elif name[0] == c'U':
            if text[2] == NULL and named(name, stop - name, b"UNIQ_KEY\x01", 9):
                which, at = 2, 9
        elif name[0] == c'D' and delayed:
            if text[3] == NULL and named(name, stop - name, b"DELAY\x01", 6):
                which, at = 3, 6
        if which >= 0:
            text[which], sizes[which] = name + at, stop - name - at
            # RocketMQ leaves the names of the real queue in what a delay level delivers.
            if which == 3 or (which < 2 and not delayed):
                one.cut_at[one.cuts] = name - (end - one.properties_size)
                one.cut_size[one.cuts] = stop + 1 - name
                one.cuts += 1
        name = stop + 1
    return text[0] != NULL and text[1] != NULL


cdef class Restored:
    """See compiled.pyi."""

    cdef Waited *items
    cdef Py_buffer *buffers
    cdef Py_ssize_t held
    cdef bint sealed
    cdef list slots
    cdef readonly Py_ssize_t taken, messages, recalled
    cdef readonly int64_t size

    def __dealloc__(self):
        self.release()
        free(self.items)
        free(self.buffers)

    cdef void release(self):
        while self.held:
            self.held -= 1
            PyBuffer_Release(&self.buffers[self.held])

    def seal(self, run, bytes store_host, int following):
        cdef bytes data = PyBytes_FromStringAndSize(NULL, self.size), field
        cdef uint8_t *base = <uint8_t *>PyBytes_AS_STRING(data)
        cdef uint8_t *to
        cdef uint8_t *into
        cdef const uint8_t *properties
        cdef Waited *one
        cdef int64_t index = run.index, pos = run.pos, now = run.now_ms, term = run.term, at = 0, offset
        cdef uint32_t chain = run.chain, covered = run.covered, channel, body_crc
        cdef Py_ssize_t number, field_size = 0, properties_size, kept, copied
        cdef int64_t messages = 0, total = 0
        cdef int cut, last = -1
        cdef list sizes = run.sizes, offsets = None, own = []
        if PyBytes_GET_SIZE(store_host) != 8 or self.sealed:
            raise ValueError("a host of 8 bytes, and once")
        self.sealed = True
        view = memoryview(data)
        puts = None
        field = None
        for number in range(self.messages):
            one = &self.items[number]
            if one.slot != last:
                if puts is not None:
                    puts.messages += messages
                    puts.size += total
                last, messages, total = one.slot, 0, 0
                slot = self.slots[last]
                offsets, field, puts = slot.next, slot.field, slot.puts
                field_size = PyBytes_GET_SIZE(field)
            properties_size = one.properties_size
            for cut in range(one.cuts):
                properties_size -= one.cut_size[cut]
            if one.size != ENTRY + FIXED + one.body_size + field_size + 2 + properties_size:
                raise ValueError("not the topic that was there")
            offset = offsets[one.queue]
            channel = covered | <uint32_t>(self.messages - number - 1 + following)
            to = base + at + ENTRY
            memcpy(to, one.record, FIXED)
            put32(to, <uint32_t>(one.size - ENTRY))
            put32(to + 12, <uint32_t>one.queue)
            put64(to + 20, offset)
            put64(to + 28, pos + ENTRY)
            put32(to + 36, get32(one.record + 36) & ~<uint32_t>0x3C)
            put64(to + 56, now)
            memcpy(to + 64, PyBytes_AS_STRING(store_host), 8)
            put64(to + 76, 0)
            into = to + FIXED
            memcpy(into, one.record + FIXED, one.body_size)
            put32(to + 8, <uint32_t>sum_crc32(view[at + ENTRY + FIXED : at + ENTRY + FIXED + one.body_size]) & 0x7FFFFFFF)
            into += one.body_size
            memcpy(into, PyBytes_AS_STRING(field), field_size)
            into += field_size
            into[0] = properties_size >> 8
            into[1] = properties_size & 255
            into += 2
            properties = one.record + FIXED + one.body_size
            properties += 3 + properties[0]
            copied = 0
            for cut in range(one.cuts):
                kept = one.cut_at[cut] - copied
                memcpy(into, properties + copied, kept)
                into += kept
                copied = one.cut_at[cut] + one.cut_size[cut]
            memcpy(into, properties + copied, one.properties_size - copied)
            body_crc = sum_crc32(view[at + ENTRY : at + one.size], channel if covered else 0)
            chain = put_entry(base + at, <uint32_t>one.size, index, term, pos, channel, body_crc, chain)
            own.append(one.size)
            offsets[one.queue] = offset + 1
            messages += 1
            total += one.size - ENTRY
            index += 1
            pos += one.size
            at += one.size
        if puts is not None:
            puts.messages += messages
            puts.size += total
        if self.messages:
            run.parts.append(data)
            sizes.extend(own)
        run.index, run.pos, run.chain = index, pos, chain
        self.release()


def restore(records, slots, deleted, list recalled, bint delayed, int64_t room):
    cdef Restored found = Restored()
    cdef Py_buffer *record
    cdef Py_ssize_t count = len(records), queues = 0, number
    cdef Waited *one
    cdef const uint8_t *text[4]
    cdef Py_ssize_t sizes[4]
    cdef const uint8_t *last_topic = NULL
    cdef Py_ssize_t last_size = -1, digit, field_size = 0
    cdef int64_t queue, size
    cdef int cut
    cdef bytes field
    topic = None
    found.slots = []
    found.items = <Waited *>calloc(count + 1, sizeof(Waited))
    found.buffers = <Py_buffer *>calloc(count + 1, sizeof(Py_buffer))
    if found.items == NULL or found.buffers == NULL:
        raise MemoryError()
    for number in range(count):
        data = records[number]
        if data is None:
            break
        PyObject_GetBuffer(data, &found.buffers[found.held], PyBUF_SIMPLE)
        record = &found.buffers[found.held]
        found.held += 1
        one = &found.items[found.messages]
        if not read_waited(<const uint8_t *>record.buf, record.len, delayed, one, text, sizes):
            break
        if sizes[0] != last_size or memcmp(text[0], last_topic, last_size) != 0:
            if not 0 < sizes[0] < 128:
                break
            try:
                topic = (<const char *>text[0])[: sizes[0]].decode("utf-8")
            except UnicodeDecodeError:
                break
            slot = slots.get(topic)
            if slot is None or topic in deleted:
                last_size = -1
                break
            queues = min(<Py_ssize_t>slot.queues, len(slot.next))
            if queues <= 0 or queues != slot.queues:
                break
            field = slot.field
            field_size = PyBytes_GET_SIZE(field)
            found.slots.append(slot)
            last_topic, last_size = text[0], sizes[0]
        one.slot = len(found.slots) - 1
        if recalled is not None and recalled[number]:
            try:
                key = (topic, (<const char *>text[2])[: sizes[2]].decode("utf-8") if text[2] != NULL else "")
            except UnicodeDecodeError:
                break
            if key in recalled[number]:
                found.recalled += 1
                found.taken += 1
                continue
        if not 0 < sizes[1] < 10:
            break
        queue = 0
        for digit in range(sizes[1]):
            if not c'0' <= text[1][digit] <= c'9':
                queue = -1
                break
            queue = queue * 10 + text[1][digit] - c'0'
        if queue < 0:
            break
        one.queue = queue % queues
        size = ENTRY + FIXED + one.body_size + field_size + 2 + one.properties_size
        for cut in range(one.cuts):
            size -= one.cut_size[cut]
        room -= size
        if room < 0:
            break
        one.size = size
        found.size += size
        found.messages += 1
        found.taken += 1
    return found


# -- a follower's check -----------------------------------------------------------------------------------


def check_run(bytes data, first_index, last_index, first_pos, lowest, highest, previous_chain, run):
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef list sizes = run.sizes, terms = run.terms, chains = run.chains, remaining = run.remaining
    cdef int64_t total = PyBytes_GET_SIZE(data), offset = 0, end, index, last, pos, term, before, max_term
    cdef bint known = previous_chain is not None
    cdef uint32_t chain, channel, body_crc, left = 0, chain_before = 0
    cdef int64_t size
    cdef const uint8_t *p
    try:
        index, last, pos = first_index, last_index, first_pos
        before, max_term = lowest, highest
        if known:
            chain_before = previous_chain
    except OverflowError:
        return False
    if pos > 1LL << 62:
        return False
    view = memoryview(data)
    while offset < total:
        if total - offset < ENTRY:
            return False
        p = base + offset
        size = <int32_t>get32(p + 4)
        term = <int64_t>get64(p + 16)
        channel = get32(p + 32)
        chain = get32(p + 36)
        body_crc = get32(p + 40)
        end = offset + size
        if (
            get32(p) != 1
            or <int64_t>get64(p + 8) != index
            or <int64_t>get64(p + 24) != pos + offset
            or size != <int64_t><int32_t>get32(p + 44) + ENTRY
            or size < ENTRY
            or size > MAX_ENTRY
            or end > total
            or not before <= term <= max_term
        ):
            return False
        if <uint32_t>sum_crc32(view[offset + ENTRY : end], channel if channel >> COVERED_SHIFT else 0) != body_crc:
            return False
        if known:
            if chained(index, term, body_crc, chain_before) != chain:
                return False
        left = channel & 0xFFFFFF
        if channel >> 24 & 0x7F == KIND_CONFIG:
            run.configs.append(index)
        sizes.append(size)
        terms.append(term)
        chains.append(chain)
        remaining.append(left)
        known = True
        chain_before = chain
        before = term
        index += 1
        offset = end
    return index == last + 1 and left == 0


# -- committed entries to queues --------------------------------------------------------------------------


def dispatch(
    bytes data,
    int64_t at,
    int64_t count,
    int64_t pos,
    by_raw_topic,
    tag_codes,
    bytes timer_topic,
    int64_t store_time,
    dict touched,
):
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef int64_t total = PyBytes_GET_SIZE(data), done = 0, size, end, topic_at, properties_at, time, offset
    cdef uint32_t sys_flag
    cdef int64_t body_size
    cdef int32_t queue_id
    cdef const uint8_t *p
    cdef const uint8_t *last_topic = NULL
    cdef const uint8_t *tag_end
    cdef Py_ssize_t last_size = -1, topic_size, found
    cdef uint8_t unit[20]
    cdef bytearray units
    queues = None
    while done < count:
        if total - at < ENTRY + MIN_RECORD:
            break
        p = base + at
        size = <int32_t>get32(p + 4)
        end = at + size
        if p[32] & 0x7F != KIND_MESSAGE or size < ENTRY + MIN_RECORD or end > total:
            break
        sys_flag = get32(p + ENTRY + 36)
        body_size = <int32_t>get32(p + ENTRY + 84)
        topic_at = at + ENTRY + FIXED + body_size
        if get32(p + ENTRY + 4) != MAGIC_V1 or sys_flag & SPECIAL_FLAGS or body_size < 0 or topic_at >= end:
            break
        topic_size = base[topic_at]
        properties_at = topic_at + 3 + topic_size
        if properties_at > end:
            break
        if topic_size != last_size or memcmp(base + topic_at + 1, last_topic, topic_size) != 0:
            raw = PyBytes_FromStringAndSize(<char *>(base + topic_at + 1), topic_size)
            if raw == timer_topic:
                break
            queues = by_raw_topic.get(raw)
            if queues is None:
                break
            last_topic, last_size = base + topic_at + 1, topic_size
        queue_id = <int32_t>get32(p + ENTRY + 12)
        queue = queues.get(queue_id)
        if queue is None:
            break
        found = find(base + properties_at, end - properties_at, b"TAGS\x01", 5)
        code = 0
        if found >= 0:
            if found and base[properties_at + found - 1] != 2:
                break
            found += properties_at + 5
            tag_end = <const uint8_t *>memchr(base + found, 2, end - found)
            if tag_end == NULL or tag_end == base + found:
                break
            code = tag_codes.get(PyBytes_FromStringAndSize(<char *>(base + found), tag_end - (base + found)))
            if code is None:
                break
        bounds = queue.bounds
        offset = <int64_t>get64(p + ENTRY + 20)
        if bounds.next != offset:
            break
        time = <int64_t>get64(p + ENTRY + 56)
        if time > store_time:
            store_time = time
        if offset == 0:
            bounds.first_position = pos + at + ENTRY
        put64(unit, pos + at + ENTRY)
        put32(unit + 8, <uint32_t>(size - ENTRY))
        put64(unit + 12, <uint64_t><int64_t>code)
        units = queue.tail
        units += PyBytes_FromStringAndSize(<char *>unit, 20)
        bounds.next = offset + 1
        touched[queue] = None
        done += 1
        at = end
    return done, at, store_time


# -- records to messages of a client ------------------------------------------------------------------------


cdef str text_of(const uint8_t *p, Py_ssize_t size):
    """A text of ASCII characters."""
    return PyUnicode_DecodeASCII(<const char *>p, size, NULL)


cdef str host_of(const uint8_t *p):
    """An IPv4 host of a record."""
    cdef char text[HOST_ROOM]
    cdef int size = snprintf(text, HOST_ROOM, b"%d.%d.%d.%d:%u", p[0], p[1], p[2], p[3], get32(p + 4))
    return text_of(<uint8_t *>text, size)


cdef str id_of(const uint8_t *host, const uint8_t *position):
    """The offset message id: both in hexadecimal digits."""
    cdef char text[40]
    cdef int size = snprintf(
        text, 40, b"%08X%08X%016llX", get32(host), get32(host + 4), <unsigned long long>get64(position)
    )
    return text_of(<uint8_t *>text, size)


cdef dict properties_of(const uint8_t *p, const uint8_t *end):
    """Name and value between separators, as Java reads them: what is no pair is skipped."""
    cdef dict found = {}
    cdef const uint8_t *stop
    cdef const uint8_t *middle
    while p < end:
        stop = <const uint8_t *>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        if stop - p >= 3:
            middle = <const uint8_t *>memchr(p, 1, stop - p)
            if middle != NULL and middle != p:
                found[text_of(p, middle - p)] = text_of(middle + 1, stop - middle - 1)
        p = stop + 1
    return found


def read_messages(bytes data, Py_ssize_t at, str broker_name, message_type, queue_type, list messages):
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t total = PyBytes_GET_SIZE(data), size, body_size, topic_size, properties_size
    cdef const uint8_t *p
    cdef const uint8_t *topic_at
    cdef const uint8_t *texts
    cdef const uint8_t *last_topic = NULL
    cdef const uint8_t *last_born = NULL
    cdef const uint8_t *last_store = NULL
    cdef Py_ssize_t last_size = -1
    cdef int32_t queue_id, last_queue = 0
    cdef uint32_t sys_flag
    cdef str topic = None, born_host = None, store_host = None, offset_id
    cdef dict properties
    queue = None
    if at < 0:
        return at
    while total - at >= MIN_RECORD:
        p = base + at
        size = <int32_t>get32(p)
        sys_flag = get32(p + 36)
        body_size = <int32_t>get32(p + 84)
        # Compressed bodies, transactions and IPv6 hosts are not plain.
        if get32(p + 4) != MAGIC_V1 or sys_flag & UNPLAIN_FLAGS or not MIN_RECORD <= size <= total - at:
            break
        if body_size < 0 or body_size > size - MIN_RECORD:
            break
        topic_at = p + FIXED + body_size + 1
        topic_size = topic_at[-1]
        if topic_size > size - MIN_RECORD - body_size:
            break
        texts = topic_at + topic_size + 2
        properties_size = texts[-2] << 8 | texts[-1]
        if properties_size != size - MIN_RECORD - body_size - topic_size or properties_size > MAX_PROPERTIES:
            break
        queue_id = <int32_t>get32(p + 12)
        if topic_size != last_size or queue_id != last_queue or memcmp(topic_at, last_topic, topic_size) != 0:
            if topic_size == 0 or topic_at[0] == c'%' or not ascii(topic_at, topic_size):
                break  # a topic of retries goes by the name of the one before
            topic = text_of(topic_at, topic_size)
            queue = queue_type(topic, broker_name, queue_id)
            last_topic, last_size, last_queue = topic_at, topic_size, queue_id
        if not ascii(texts, properties_size):
            break
        properties = properties_of(texts, texts + properties_size)
        if last_born == NULL or memcmp(p + 48, last_born, 8) != 0:
            born_host = host_of(p + 48)
            last_born = p + 48
        if last_store == NULL or memcmp(p + 64, last_store, 8) != 0:
            store_host = host_of(p + 64)
            last_store = p + 64
        offset_id = id_of(p + 64, p + 28)
        messages.append(
            message_type(
                topic,
                PyBytes_FromStringAndSize(<const char *>(p + FIXED), body_size),
                queue,
                <int64_t>get64(p + 20),
                properties.get("UNIQ_KEY", offset_id),
                offset_id,
                properties,
                <int32_t>get32(p + 16),
                <int32_t>get32(p + 72),
                <int64_t>get64(p + 40),
                <int64_t>get64(p + 56),
                born_host,
                store_host,
                <int64_t>get64(p + 28),
                <int32_t>sys_flag,
            )
        )
        at += size
    return at


# -- keys of messages for the index -------------------------------------------------------------------------


cdef struct Rows:
    int64_t *at
    Py_ssize_t count
    Py_ssize_t room


cdef bint put_key(
    Rows *rows, const uint8_t *p, const uint8_t *end, uint32_t hashed, int64_t position, int64_t stored, int64_t index
) noexcept nogil:
    """A row for one key; `hashed`: of what stands before it. Whether the key is ASCII, and there was room."""
    cdef int64_t *grown
    cdef int64_t *row
    cdef int64_t absolute
    cdef uint8_t seen = 0
    while p < end:
        seen |= p[0]
        hashed = hashed * 31 + p[0]
        p += 1
    if seen & 0x80:
        return False
    if rows.count == rows.room:
        grown = <int64_t *>realloc(rows.at, 2 * (rows.room + 512) * KEY_ROW)
        if grown == NULL:
            return False
        rows.at = grown
        rows.room = 2 * (rows.room + 512)
    absolute = <int32_t>hashed
    if absolute < 0:
        absolute = 0 if hashed == 0x80000000u else -absolute
    row = rows.at + rows.count * 4
    row[0], row[1], row[2], row[3] = position, absolute, stored, index
    rows.count += 1
    return True


cdef bint put_keys(
    Rows *rows, const uint8_t *texts, const uint8_t *end, uint32_t hashed, int64_t position, int64_t stored, int64_t index
) noexcept nogil:
    """Rows for a message: its unique key, then its others."""
    cdef const uint8_t *p = texts
    cdef const uint8_t *stop
    cdef const uint8_t *unique = NULL
    cdef const uint8_t *unique_end = NULL
    cdef const uint8_t *keys = NULL
    cdef const uint8_t *keys_end = NULL
    while p < end:
        stop = <const uint8_t *>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        if stop - p >= 9 and unique == NULL and memcmp(p, b"UNIQ_KEY\x01", 9) == 0:
            unique, unique_end = p + 9, stop
        elif stop - p >= 5 and keys == NULL and memcmp(p, b"KEYS\x01", 5) == 0:
            keys, keys_end = p + 5, stop
        p = stop + 1
    if unique != NULL and not put_key(rows, unique, unique_end, hashed, position, stored, index):
        return False
    while keys != NULL and keys < keys_end:
        stop = <const uint8_t *>memchr(keys, c" ", keys_end - keys)
        if stop == NULL:
            stop = keys_end
        if stop > keys and not put_key(rows, keys, stop, hashed, position, stored, index):
            return False
        keys = stop + 1
    return True


cdef int64_t collect_keys(const uint8_t *base, int64_t total, int64_t pos, Rows *rows) noexcept nogil:
    """Where the last whole entry ends; -1 where anything is not plain."""
    cdef int64_t at = 0, size, body_size, topic_size, properties_size
    cdef const uint8_t *p
    cdef const uint8_t *record
    cdef const uint8_t *topic
    cdef const uint8_t *texts
    cdef const uint8_t *last_topic = NULL
    cdef int64_t last_size = -1, number
    cdef uint32_t sys_flag, hashed = 0
    while total - at >= MIN_BLANK:
        p = base + at
        size = <int32_t>get32(p + 4)
        if get32(p) != ENTRY_MAGIC or size < ENTRY:
            return -1
        if size > total - at:
            break
        at += size
        if p[32] & 0x7F != KIND_MESSAGE:
            continue
        if size < ENTRY + MIN_RECORD:
            return -1
        record = p + ENTRY
        size -= ENTRY
        sys_flag = get32(record + 36)
        body_size = <int32_t>get32(record + 84)
        if get32(record + 4) != MAGIC_V1 or sys_flag & IPV6_FLAGS or <int32_t>get32(record) != size:
            return -1
        if <int64_t>get64(p + 24) != pos + (p - base) or <int64_t>get64(record + 28) != pos + (record - base):
            return -1
        if body_size < 0 or body_size > size - MIN_RECORD:
            return -1
        topic = record + FIXED + body_size + 1
        topic_size = topic[-1]
        if topic_size > size - MIN_RECORD - body_size:
            return -1
        texts = topic + topic_size + 2
        properties_size = texts[-2] << 8 | texts[-1]
        if properties_size != size - MIN_RECORD - body_size - topic_size or properties_size > MAX_PROPERTIES:
            return -1
        if sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK:
            continue
        if topic_size != last_size or memcmp(topic, last_topic, topic_size) != 0:
            hashed = 0
            for number in range(topic_size):
                if topic[number] & 0x80:
                    return -1
                hashed = hashed * 31 + topic[number]
            hashed = hashed * 31 + c"#"
            last_topic, last_size = topic, topic_size
        if not put_keys(
            rows,
            texts,
            texts + properties_size,
            hashed,
            pos + (record - base),
            <int64_t>get64(record + 56),
            <int64_t>get64(p + 8),
        ):
            return -1
    return at


def index_keys(bytes data, int64_t pos):
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef int64_t total = PyBytes_GET_SIZE(data), end
    cdef Rows rows
    rows.at, rows.count, rows.room = NULL, 0, 0
    try:
        with nogil:
            end = collect_keys(base, total, pos, &rows)
        if end <= 0:
            return None
        return PyBytes_FromStringAndSize(<const char *>rows.at, rows.count * KEY_ROW), end
    finally:
        free(rows.at)


NUMBERS = {
    "ENTRY": ENTRY,
    "FIXED": FIXED,
    "MIN_RECORD": MIN_RECORD,
    "MAGIC_V1": MAGIC_V1,
    "ENTRY_MAGIC": ENTRY_MAGIC,
    "MIN_BLANK": MIN_BLANK,
    "COVERED_SHIFT": COVERED_SHIFT,
    "TRANSACTION_ROLLBACK": TRANSACTION_ROLLBACK,
    "IPV6_FLAGS": IPV6_FLAGS,
    "UNPLAIN_FLAGS": UNPLAIN_FLAGS,
    "KIND_MESSAGE": KIND_MESSAGE,
    "KIND_CONFIG": KIND_CONFIG,
    "MAX_ENTRY": MAX_ENTRY,
    "MAX_HEADER": MAX_HEADER,
    "MAX_PROPERTIES": MAX_PROPERTIES,
    "OVERHEAD": OVERHEAD,
    "BATCH_HEAD": BATCH_HEAD,
}
