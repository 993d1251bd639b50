/* Philox4x32-10, the counter-based generator of Salmon et al. 2011 (doi 10.1145/2063384.2063405).
 * Streams are told apart by purpose, so that no draw depends on how many others were made. */
#ifndef MN_CORE_PHILOX_H
#define MN_CORE_PHILOX_H

#include <stddef.h>
#include <stdint.h>

/* One block of four words; here, so that loops over blocks vectorise. */
static inline void mn_philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)UINT32_C(0xD2511F53) * c0;
        uint64_t b = (uint64_t)UINT32_C(0xCD9E8D57) * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += UINT32_C(0x9E3779B9);
        k1 += UINT32_C(0xBB67AE85);
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* What a stream of random numbers is for; part of its key. */
typedef enum mn_stream_purpose {
    MN_STREAM_PARAMETER = 1, /* name: the parameter's */
    MN_STREAM_SHUFFLE = 2,   /* index: epoch */
    MN_STREAM_SPLIT = 3,
    MN_STREAM_SYNTHETIC = 4, /* index: image */
    MN_STREAM_DROPOUT = 5,
    MN_STREAM_ROUNDING = 6,
    MN_STREAM_TEST = 7
} mn_stream_purpose;

typedef struct mn_stream {
    uint32_t key[2];
    uint32_t counter[4]; /* words 2 and 3 hold the stream's identity, 0 and 1 count blocks */
    uint32_t block[4];
    int left; /* unread words of block */
} mn_stream;

/* Stream for (seed, purpose, name, index); name may be NULL. */
mn_stream mn_stream_open(uint64_t seed, mn_stream_purpose purpose, const char *name,
                         uint64_t index);
uint32_t mn_stream_u32(mn_stream *stream);
/* Unbiased in [0, bound), bound >= 1. */
uint64_t mn_stream_below(mn_stream *stream, uint64_t bound);
/* In [0, 1): 24 bits. */
float mn_stream_uniform(mn_stream *stream);
/* Standard normal (Box-Muller in double). */
double mn_stream_normal(mn_stream *stream);
/* A permutation of 0..count-1 (Fisher-Yates). */
void mn_stream_permutation(mn_stream *stream, int64_t count, int64_t *out);

#endif
