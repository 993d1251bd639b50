/* Philox4x32-10 and the streams of random numbers drawn from it. */
#include "core/philox.h"
#include "core/base.h"

#include <math.h>
#include <string.h>

/* The finaliser of MurmurHash3: a bijection of 64 bits. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 33)) * UINT64_C(0xFF51AFD7ED558CCD);
    x = (x ^ (x >> 33)) * UINT64_C(0xC4CEB9FE1A85EC53);
    return x ^ (x >> 33);
}

/* How streams are kept apart. The key is mix(seed ^ mix(FNV-1a of purpose and name)): with one
 * seed, two pairs of purpose and name share a key only if their 64-bit hashes collide, and with one
 * purpose and name, two seeds never do. The index fills counter words 2 and 3 unhashed, so that
 * streams of one key with different indices cannot overlap: blocks are counted in words 0 and 1
 * without a carry into word 2, which gives each stream 2^64 blocks of its own. */
mn_stream mn_stream_open(uint64_t seed, mn_stream_purpose purpose, const char *name, uint64_t index)
{
    uint64_t hash = mn_hash(MN_HASH_START, &(unsigned char){(unsigned char)purpose}, 1);
    if (name)
        hash = mn_hash(hash, name, strlen(name));
    uint64_t key = mix(seed ^ mix(hash));
    mn_stream stream = {
        .key = {(uint32_t)key, (uint32_t)(key >> 32)},
        .counter = {0, 0, (uint32_t)index, (uint32_t)(index >> 32)},
    };
    return stream;
}

uint32_t mn_stream_u32(mn_stream *stream)
{
    if (stream->left == 0) {
        mn_philox4x32(stream->key, stream->counter, stream->block);
        stream->left = 4;
        if (++stream->counter[0] == 0)
            stream->counter[1]++;
    }
    return stream->block[4 - stream->left--];
}

static uint64_t next_u64(mn_stream *stream)
{
    uint64_t low = mn_stream_u32(stream);
    return low | (uint64_t)mn_stream_u32(stream) << 32;
}

uint64_t mn_stream_below(mn_stream *stream, uint64_t bound)
{
    if (bound == 0)
        return 0;
    /* Draws below 2^64 mod bound are rejected; what is left is a multiple of bound values. */
    uint64_t reject = (UINT64_MAX - bound + 1) % bound;
    uint64_t draw = next_u64(stream);
    while (draw < reject)
        draw = next_u64(stream);
    return draw % bound;
}

float mn_stream_uniform(mn_stream *stream)
{
    return (float)(mn_stream_u32(stream) >> 8) * 0x1p-24F;
}

double mn_stream_normal(mn_stream *stream)
{
    /* The radius' draw lies in (0, 1], so that its logarithm is finite. The sine half is not kept:
     * a draw must depend on the stream's position only. */
    double radius = (double)((next_u64(stream) >> 11) + 1) * 0x1p-53;
    double angle = (double)(next_u64(stream) >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(radius)) * cos(6.283185307179586476925 * angle);
}

void mn_stream_permutation(mn_stream *stream, int64_t count, int64_t *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = (int64_t)mn_stream_below(stream, (uint64_t)i + 1);
        int64_t moved = out[i];
        out[i] = out[j];
        out[j] = moved;
    }
}
