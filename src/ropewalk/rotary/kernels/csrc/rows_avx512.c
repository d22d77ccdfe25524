/* Rows for AVX-512: 16 pairs at a time; with AVX512_BF16 the processor rounds to bfloat16. */
#include "numbers.h"
#include "rope.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define TARGET_512 "avx512f,avx512bw,avx512vl,avx512dq,f16c"
#define TARGET __attribute__((target(TARGET_512)))
#define SIMD static inline __attribute__((always_inline, target(TARGET_512)))
#define VEC __m512
#define LANES 16
#define MUL _mm512_mul_ps
#define ADD _mm512_add_ps
#define SUB _mm512_sub_ps
#define SET1 _mm512_set1_ps
#define LOADF _mm512_loadu_ps

SIMD void part(__m512 low, __m512 high, __m512 *a, __m512 *b) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    *a = _mm512_permutex2var_ps(low, even, high);
    *b = _mm512_permutex2var_ps(low, odd, high);
}

SIMD __m512 join_low(__m512 a, __m512 b) {
    const __m512i order =
        _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return _mm512_permutex2var_ps(a, order, b);
}

SIMD __m512 join_high(__m512 a, __m512 b) {
    const __m512i order =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return _mm512_permutex2var_ps(a, order, b);
}

SIMD __m512 as_float(__m512i bits) { return _mm512_castsi512_ps(bits); }

/* Rounded to bfloat16, in the high half of each lane; the low half is not cleared. */
SIMD __m512i rounded(__m512 value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 no_number = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(up, no_number, _mm512_set1_epi32(0x7fc00000));
}

SIMD __m512 load_f32(const float *p) { return _mm512_loadu_ps(p); }

SIMD void store_f32(float *p, __m512 value) { _mm512_storeu_ps(p, value); }

SIMD void stream_f32(float *p, __m512 value) { _mm512_stream_ps(p, value); }

SIMD void parted_f32(const float *p, __m512 *a, __m512 *b) {
    part(_mm512_loadu_ps(p), _mm512_loadu_ps(p + 16), a, b);
}

SIMD void joined_f32(float *p, __m512 a, __m512 b) {
    _mm512_storeu_ps(p, join_low(a, b));
    _mm512_storeu_ps(p + 16, join_high(a, b));
}

SIMD void joined_f32_streamed(float *p, __m512 a, __m512 b) {
    _mm512_stream_ps(p, join_low(a, b));
    _mm512_stream_ps(p + 16, join_high(a, b));
}

SIMD __m512 load_bf16(const uint16_t *p) {
    const __m256i bits = _mm256_loadu_si256((const __m256i *)p);
    return as_float(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

SIMD __m256i packed_bf16(__m512 value) {
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded(value), 16));
}

SIMD void store_bf16(uint16_t *p, __m512 value) {
    _mm256_storeu_si256((__m256i *)p, packed_bf16(value));
}

SIMD void stream_bf16(uint16_t *p, __m512 value) {
    _mm256_stream_si256((__m256i *)p, packed_bf16(value));
}

/* One pair fills a 32-bit lane: the even element is its low half. */
SIMD void parted_bf16(const uint16_t *p, __m512 *a, __m512 *b) {
    const __m512i pairs = _mm512_loadu_si512(p);
    *a = as_float(_mm512_slli_epi32(pairs, 16));
    *b = as_float(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

SIMD __m512i woven_bf16(__m512 a, __m512 b) {
    const __m512i low = _mm512_srli_epi32(rounded(a), 16);
    return _mm512_mask_mov_epi16(low, 0xaaaaaaaau, rounded(b));
}

SIMD void joined_bf16(uint16_t *p, __m512 a, __m512 b) { _mm512_storeu_si512(p, woven_bf16(a, b)); }

SIMD void joined_bf16_streamed(uint16_t *p, __m512 a, __m512 b) {
    _mm512_stream_si512((__m512i *)p, woven_bf16(a, b));
}

SIMD __m512 load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

SIMD void store_f16(uint16_t *p, __m512 value) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

SIMD void parted_f16(const uint16_t *p, __m512 *a, __m512 *b) {
    part(load_f16(p), load_f16(p + 16), a, b);
}

SIMD void joined_f16(uint16_t *p, __m512 a, __m512 b) {
    store_f16(p, join_low(a, b));
    store_f16(p + 16, join_high(a, b));
}

#include "rows_set.inc"

static int runs_here(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const instruction_set SET_AVX512 = {
    .name = "avx512",
    .runs_here = runs_here,
    .lanes = LANES,
    .rows = {[FLOAT32] = row_f32, [BFLOAT16] = row_bf16, [FLOAT16] = row_f16},
    .streamed = {[FLOAT32] = row_f32_streamed, [BFLOAT16] = row_bf16_streamed},
};

/* The instruction rounds as above, and flushes results that are subnormal. */
#undef TARGET
#undef SIMD
#define TARGET __attribute__((target(TARGET_512 ",avx512bf16")))
#define SIMD static inline __attribute__((always_inline, target(TARGET_512 ",avx512bf16")))

SIMD __m512i both_bf16(__m512 low, __m512 high) {
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

SIMD __m256i packed_by_cpu(__m512 value) { return (__m256i)_mm512_cvtneps_pbh(value); }

SIMD void store_by_cpu(uint16_t *p, __m512 value) {
    _mm256_storeu_si256((__m256i *)p, packed_by_cpu(value));
}

SIMD void stream_by_cpu(uint16_t *p, __m512 value) {
    _mm256_stream_si256((__m256i *)p, packed_by_cpu(value));
}

SIMD __m512i woven_by_cpu(__m512 a, __m512 b) {
    const __m512i zip =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(zip, both_bf16(a, b));
}

SIMD void joined_by_cpu(uint16_t *p, __m512 a, __m512 b) {
    _mm512_storeu_si512(p, woven_by_cpu(a, b));
}

SIMD void joined_by_cpu_streamed(uint16_t *p, __m512 a, __m512 b) {
    _mm512_stream_si512((__m512i *)p, woven_by_cpu(a, b));
}

#define NAME(x) x##_by_cpu
#define NARROW uint16_t
#define LOAD load_bf16
#define STORE store_by_cpu
#define LOAD_PAIRS parted_bf16
#define STORE_PAIRS joined_by_cpu
#define UP widen_bfloat16
#define DOWN narrow_bfloat16
#include "rows_simd.inc"

#define NAME(x) x##_by_cpu_streamed
#define NARROW uint16_t
#define LOAD load_bf16
#define STORE stream_by_cpu
#define LOAD_PAIRS parted_bf16
#define STORE_PAIRS joined_by_cpu_streamed
#define UP widen_bfloat16
#define DOWN narrow_bfloat16
#include "rows_simd.inc"

static int rounds_here(void) { return runs_here() && __builtin_cpu_supports("avx512bf16"); }

const instruction_set SET_AVX512_BF16 = {
    .name = "avx512_bf16",
    .runs_here = rounds_here,
    .lanes = LANES,
    .rows = {[BFLOAT16] = row_by_cpu},
    .streamed = {[BFLOAT16] = row_by_cpu_streamed},
};
#else
static int runs_here(void) { return 0; }
const instruction_set SET_AVX512 = {.name = "avx512", .runs_here = runs_here, .lanes = 1};
const instruction_set SET_AVX512_BF16 = {.name = "avx512_bf16", .runs_here = runs_here, .lanes = 1};
#endif
