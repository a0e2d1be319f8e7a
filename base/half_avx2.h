/* half_avx2.h - eight halves at a time, for files that have their own loops (half.c, comm/kernels_avx2.c).
 *
 * Only for functions with target "avx2,f16c", called after half_has_avx2() said yes.
 */
#ifndef CHORALE_BASE_HALF_AVX2_H
#define CHORALE_BASE_HALF_AVX2_H

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdbool.h>

#define HALF_AVX2 __attribute__((target("avx2,f16c")))

/* F16C came before AVX2: no processor has this without that. */
static inline bool half_has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}

HALF_AVX2 static inline __m256 f16_load(const void *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(from));
}

HALF_AVX2 static inline void f16_store(void *to, __m256 value)
{
    _mm_storeu_si128(to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

HALF_AVX2 static inline __m256 bf16_load(const void *from)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(from)), 16));
}

/* Just under half of the last place is added, and a bit more where the last place is odd; a NaN is cut and made quiet. */
HALF_AVX2 static inline void bf16_store(void *to, __m256 value)
{
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i halves = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0x08);
    _mm_storeu_si128(to, _mm256_castsi256_si128(packed));
}

#endif
#endif
