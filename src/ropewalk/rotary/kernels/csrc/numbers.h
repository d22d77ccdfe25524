/* bfloat16 and float16 as the bits they are; rounding is to nearest, ties to even. */
#ifndef ROPEWALK_NUMBERS_H
#define ROPEWALK_NUMBERS_H

#include <stdint.h>
#include <string.h>

static inline float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float widen_bfloat16(uint16_t value) { return from_bits((uint32_t)value << 16); }

static inline uint16_t narrow_bfloat16(float value) {
    const uint32_t bits = to_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return value != value ? 0x7fc0u : (uint16_t)rounded;
}

static inline float widen_float16(uint16_t value) {
    const uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    const uint32_t magnitude = (uint32_t)(value & 0x7fffu) << 13;
    /* 2^112 moves the exponent from its bias of 15 to one of 127, subnormal numbers included. */
    const uint32_t finite = to_bits(from_bits(magnitude) * 0x1p112f);
    const uint32_t special = magnitude | 0x7f800000u;
    return from_bits(sign | (magnitude >= 0x0f800000u ? special : finite));
}

static inline uint16_t narrow_float16(float value) {
    const uint32_t bits = to_bits(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t odd = (magnitude >> 13) & 1u;
    uint32_t half = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
    if (magnitude < 0x38800000u) /* below 2^-14: adding 0.5 rounds at 2^-24, the last place */
        half = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000u;
    if (magnitude >= 0x477ff000u) /* 65520 and more round to infinity */
        half = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    return (uint16_t)(((bits >> 16) & 0x8000u) | half);
}

#endif
