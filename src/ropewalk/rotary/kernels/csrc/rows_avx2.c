/* Rows for AVX2 and F16C: 8 pairs at a time. */
#include "numbers.h"
#include "rope.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,f16c")))
#define SIMD static inline __attribute__((always_inline, target("avx2,f16c")))
#define VEC __m256
#define LANES 8
#define MUL _mm256_mul_ps
#define ADD _mm256_add_ps
#define SUB _mm256_sub_ps
#define SET1 _mm256_set1_ps
#define LOADF _mm256_loadu_ps

SIMD void part(__m256 low, __m256 high, __m256 *a, __m256 *b) {
    const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0x88));
    const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(low, high, 0xdd));
    *a = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
    *b = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8));
}

SIMD __m256 join_low(__m256 a, __m256 b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
}

SIMD __m256 join_high(__m256 a, __m256 b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
}

SIMD __m256 as_float(__m256i bits) { return _mm256_castsi256_ps(bits); }

/* Rounded to bfloat16, in the high half of each lane; the low half is not cleared. */
SIMD __m256i rounded(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i no_number = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc00000), no_number);
}

SIMD __m256 load_f32(const float *p) { return _mm256_loadu_ps(p); }

SIMD void store_f32(float *p, __m256 value) { _mm256_storeu_ps(p, value); }

SIMD void stream_f32(float *p, __m256 value) { _mm256_stream_ps(p, value); }

SIMD void parted_f32(const float *p, __m256 *a, __m256 *b) {
    part(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), a, b);
}

SIMD void joined_f32(float *p, __m256 a, __m256 b) {
    _mm256_storeu_ps(p, join_low(a, b));
    _mm256_storeu_ps(p + 8, join_high(a, b));
}

SIMD void joined_f32_streamed(float *p, __m256 a, __m256 b) {
    _mm256_stream_ps(p, join_low(a, b));
    _mm256_stream_ps(p + 8, join_high(a, b));
}

SIMD __m256 load_bf16(const uint16_t *p) {
    const __m128i bits = _mm_loadu_si128((const __m128i *)p);
    return as_float(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

SIMD __m128i packed_bf16(__m256 value) {
    const __m256i bits = _mm256_srli_epi32(rounded(value), 16);
    const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
    return _mm256_castsi256_si128(both);
}

SIMD void store_bf16(uint16_t *p, __m256 value) {
    _mm_storeu_si128((__m128i *)p, packed_bf16(value));
}

SIMD void stream_bf16(uint16_t *p, __m256 value) {
    _mm_stream_si128((__m128i *)p, packed_bf16(value));
}

/* One pair fills a 32-bit lane: the even element is its low half. */
SIMD void parted_bf16(const uint16_t *p, __m256 *a, __m256 *b) {
    const __m256i pairs = _mm256_loadu_si256((const __m256i *)p);
    *a = as_float(_mm256_slli_epi32(pairs, 16));
    *b = as_float(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
}

SIMD __m256i woven_bf16(__m256 a, __m256 b) {
    const __m256i low = _mm256_srli_epi32(rounded(a), 16);
    return _mm256_blend_epi16(low, rounded(b), 0xaa);
}

SIMD void joined_bf16(uint16_t *p, __m256 a, __m256 b) {
    _mm256_storeu_si256((__m256i *)p, woven_bf16(a, b));
}

SIMD void joined_bf16_streamed(uint16_t *p, __m256 a, __m256 b) {
    _mm256_stream_si256((__m256i *)p, woven_bf16(a, b));
}

SIMD __m256 load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

SIMD void store_f16(uint16_t *p, __m256 value) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

SIMD void parted_f16(const uint16_t *p, __m256 *a, __m256 *b) {
    part(load_f16(p), load_f16(p + 8), a, b);
}

SIMD void joined_f16(uint16_t *p, __m256 a, __m256 b) {
    store_f16(p, join_low(a, b));
    store_f16(p + 8, join_high(a, b));
}

#include "rows_set.inc"

static int runs_here(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}

const instruction_set SET_AVX2 = {
    .name = "avx2",
    .runs_here = runs_here,
    .lanes = LANES,
    .rows = {[FLOAT32] = row_f32, [BFLOAT16] = row_bf16, [FLOAT16] = row_f16},
    .streamed = {[FLOAT32] = row_f32_streamed, [BFLOAT16] = row_bf16_streamed},
};
#else
static int runs_here(void) { return 0; }
const instruction_set SET_AVX2 = {.name = "avx2", .runs_here = runs_here, .lanes = 1};
#endif
