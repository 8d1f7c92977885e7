/* Elementary functions without branches, calls or tables, so that compilers turn them into vector code. All values of
   a choice are computed, and those that are not chosen may be meaningless.
   For round-to-nearest and -fno-math-errno -fno-trapping-math -ffp-contract=off, never -ffast-math.
   Coefficients are minimax fits (Remez) of the relative error, rounded. */
#include <stdint.h>
#include <string.h>

#define MATH static inline __attribute__((always_inline)) /* a loop that contains a call stays scalar */
#if defined(__FMA__) || defined(__aarch64__)
#define FMA_F64 __builtin_fma
#define FMA_F32 __builtin_fmaf
#else
#define FMA_F64(a, b, c) ((a) * (b) + (c))
#define FMA_F32 FMA_F64
#endif

/* ln 2 in two parts. The first has few bits, so its product with an exponent is exact without FMA too. */
#define LN2_HI_F64 0x1.62e42fefa38p-1
#define LN2_LO_F64 0x1.ef35793c7673p-45
#define LN2_HI_F32 0x1.62e4p-1f
#define LN2_LO_F32 0x1.7f7d1cp-20f

MATH uint64_t bits_f64(double x) { uint64_t i; memcpy(&i, &x, 8); return i; }
MATH uint32_t bits_f32(float x) { uint32_t i; memcpy(&i, &x, 4); return i; }
MATH double from_bits_f64(uint64_t i) { double x; memcpy(&x, &i, 8); return x; }
MATH float from_bits_f32(uint32_t i) { float x; memcpy(&x, &i, 4); return x; }

/* exp, expm1: x = n ln2 + r with |r| <= ln2/2. Adding 1.5 * 2^52 (1.5 * 2^23) rounds to an integer in the low bits, and
   a shift moves it to the exponent. Outside the range the result is meaningless, and the last lines replace it. An
   early clamp to a constant would be slower, because of the code that compilers make of it. */
MATH double reduced_f64(double x, uint64_t *exponent) { /* e^r - 1, and n at the bits of the exponent */
  double t = FMA_F64(x, 0x1.71547652b82fep+0, 0x1.8p52), n = t - 0x1.8p52;
  double r = FMA_F64(n, -LN2_LO_F64, FMA_F64(n, -LN2_HI_F64, x));
  *exponent = bits_f64(t) << 52;
  double p = FMA_F64(r, 0x1.1ee88b6e59831p-29, 0x1.af5ea865c3dccp-26);
  p = FMA_F64(r, FMA_F64(r, p, 0x1.27e5364105ccp-22), 0x1.71ddf863ac9f8p-19);
  p = FMA_F64(r, FMA_F64(r, p, 0x1.a01a017bb1b5dp-16), 0x1.a01a01afdd938p-13);
  p = FMA_F64(r, FMA_F64(r, p, 0x1.6c16c16c1f0ep-10), 0x1.111111110f6c4p-7);
  p = FMA_F64(r, FMA_F64(r, p, 0x1.555555555553ep-5), 0x1.5555555555559p-3);
  return FMA_F64(r * r, FMA_F64(r, p, 0.5), r);
}
MATH double exp_f64(double x) { /* 0 where the result would be below the smallest normal number */
  uint64_t exponent;
  double p = 1 + reduced_f64(x, &exponent), y = from_bits_f64(bits_f64(p) + exponent);
  y = x <= 0x1.62e42fefa39efp+9 ? y : x + __builtin_inf(); /* NaN too */
  return x < -0x1.6232bdd7abcd2p+9 ? 0 : y;
}
MATH double expm1_f64(double x) {
  uint64_t exponent;
  double q = reduced_f64(x, &exponent);
  double half = from_bits_f64(exponent + ((uint64_t)1022 << 52)); /* 2^(n-1): 2^n overflows before the result does */
  double y = FMA_F64(half, q, half - 0.5);
  y = x < -40 ? -0.5 : y;
  y = x > 710 ? __builtin_inf() : y + y;
  return __builtin_fabs(x) < 0x1p-54 ? x : y; /* the sign of 0; halving would drop the last bit of a subnormal */
}
/* The core of the most used functions, which code that calls both of them computes once. */
MATH float reduced_f32(float x, uint32_t *exponent) { /* e^r - 1, and n + 126 at the bits of the exponent */
  float t = FMA_F32(x, 0x1.715476p+0f, 0x1.8p23f + 126), n = t - (0x1.8p23f + 126);
  float r = FMA_F32(n, -LN2_LO_F32, FMA_F32(n, -LN2_HI_F32, x));
  *exponent = bits_f32(t) << 23;
  float p = FMA_F32(r, FMA_F32(r, 0x1.6bebfep-10f, 0x1.1227bp-7f), 0x1.555674p-5f);
  return FMA_F32(r * r, FMA_F32(r, FMA_F32(r, p, 0x1.5554bp-3f), 0x1.fffffep-2f), r);
}
MATH float exp_f32(float x) { /* as exp_f64 */
  uint32_t exponent;
  float p = 1 + reduced_f32(x, &exponent), y = from_bits_f32(bits_f32(p) + (exponent - ((uint32_t)126 << 23)));
  y = x <= 0x1.62e42ep+6f ? y : x + __builtin_inff(); /* NaN too */
  return x < -0x1.5d589ep+6f ? 0 : y;
}
MATH float expm1_f32(float x) { /* as expm1_f64 */
  uint32_t exponent;
  float q = reduced_f32(x, &exponent), half = from_bits_f32(exponent), y = FMA_F32(half, q, half - 0.5f);
  y = x < -18 ? -0.5f : y;
  y = x > 89 ? __builtin_inff() : y + y;
  return __builtin_fabsf(x) < 0x1p-25f ? x : y;
}

/* log, log1p: u = 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), and log(1 + f) = 2 atanh(s) = f - s (f - g(s^2)) with
   s = f / (2 + f). After subtracting the bits of sqrt(1/2) from those of u, the exponent is k. */
MATH double log_parts_f64(double u, double *k, double *scale) { /* f, and 2^-k */
  uint64_t i = bits_f64(u) + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd), e = i >> 52;
  *k = from_bits_f64(e | 0x4330000000000000) - (0x1p52 + 1023); /* AVX2 cannot convert a 64-bit integer */
  *scale = 0.5 * from_bits_f64((2047 - e) << 52); /* k may be 1024 */
  return from_bits_f64((i & 0xfffffffffffff) + 0x3fe6a09e667f3bcd) - 1;
}
MATH float log_parts_f32(float u, float *k, float *scale) {
  uint32_t i = bits_f32(u) + (0x3f800000 - 0x3f3504f3), e = i >> 23;
  *k = (float)(int32_t)e - 127;
  *scale = 0.5f * from_bits_f32((255 - e) << 23);
  return from_bits_f32((i & 0x7fffff) + 0x3f3504f3) - 1;
}
/* The logarithm from its parts, also for u that is 0, negative, infinite or NaN. */
MATH double log_whole_f64(double u, double f, double k) {
  double s = f / (2 + f), z = s * s;
  double p = FMA_F64(z, FMA_F64(z, 0x1.2f06bcfe635aep-3, 0x1.39a1a3a44ba95p-3), 0x1.74663f497d16ap-3);
  p = FMA_F64(z, FMA_F64(z, p, 0x1.c71c520aa0409p-3), 0x1.24924941ea898p-2);
  p = FMA_F64(z, FMA_F64(z, p, 0x1.999999997feb4p-2), 0x1.5555555555592p-1);
  double y = FMA_F64(k, LN2_HI_F64, f - FMA_F64(s, FMA_F64(-z, p, f), k * -LN2_LO_F64));
  y = u > 0 ? y : u == 0 ? -__builtin_inf() : __builtin_nan("");
  return u < __builtin_inf() ? y : u;
}
MATH float log_whole_f32(float u, float f, float k) {
  float s = f / (2 + f), z = s * s;
  float p = FMA_F32(z, FMA_F32(z, 0x1.31e13ap-2f, 0x1.995ed2p-2f), 0x1.55557ap-1f);
  float y = FMA_F32(k, LN2_HI_F32, f - FMA_F32(s, FMA_F32(-z, p, f), k * -LN2_LO_F32));
  y = u > 0 ? y : u == 0 ? -__builtin_inff() : __builtin_nanf("");
  return u < __builtin_inff() ? y : u;
}
MATH double log_f64(double x) {
  double k, scale, f = log_parts_f64(x < 0x1p-1022 ? x * 0x1p54 : x, &k, &scale);
  return log_whole_f64(x, f, x < 0x1p-1022 ? k - 54 : k);
}
MATH float log_f32(float x) {
  float k, scale, f = log_parts_f32(x < 0x1p-126f ? x * 0x1p25f : x, &k, &scale);
  return log_whole_f32(x, f, x < 0x1p-126f ? k - 25 : k);
}
/* atan |x| = n pi/4 + atan(t) with n = 0, 1 or 2 and |t| <= tan(pi/8); atan(t) = t + t^3 p(t^2). */
MATH double atan_f64(double x) {
  double a = __builtin_fabs(x), turns = a > 0x1.3504f333f9de6p+1 ? 2 : a > 0x1.a827999fcef32p-2 ? 1 : 0;
  double t = (turns > 1 ? -1 : a - turns) / (turns > 1 ? a : 1 + a * turns), z = t * t;
  double p = FMA_F64(z, -0x1.2554ecebd04d7p-6, 0x1.37cb4ae6b8b43p-5);
  p = FMA_F64(z, FMA_F64(z, p, -0x1.9cce6750a55f6p-5), 0x1.df0e437c588f4p-5);
  p = FMA_F64(z, FMA_F64(z, p, -0x1.10eba4b741233p-4), 0x1.3b11173c19f5fp-4);
  p = FMA_F64(z, FMA_F64(z, p, -0x1.745cf8be9b90dp-4), 0x1.c71c70e4e4bd1p-4);
  p = FMA_F64(z, FMA_F64(z, p, -0x1.24924922a9e88p-3), 0x1.99999999957bep-3);
  p = FMA_F64(z, p, -0x1.555555555553dp-2);
  t = t + FMA_F64(t * z, p, turns * 0x1.1a62633145c07p-55); /* pi/4 in two parts */
  return __builtin_copysign(turns * 0x1.921fb54442d18p-1 + t, x);
}
MATH float atan_f32(float x) {
  float a = __builtin_fabsf(x), turns = a > 0x1.3504f4p+1f ? 2 : a > 0x1.a8279ap-2f ? 1 : 0;
  float t = (turns > 1 ? -1 : a - turns) / (turns > 1 ? a : 1 + a * turns), z = t * t;
  float p = FMA_F32(z, FMA_F32(z, -0x1.f1e8b6p-5f, 0x1.b1eb48p-4f), -0x1.23b514p-3f);
  p = FMA_F32(z, FMA_F32(z, p, 0x1.999196p-3f), -0x1.55554ap-2f);
  t = t + FMA_F32(t * z, p, turns * -0x1.777a5cp-26f);
  return __builtin_copysignf(turns * 0x1.921fb6p-1f + t, x);
}

/* The same in both precisions. `smaller` and `larger` are one instruction each. GCC needs leave to return any zero of two,
   and anything for NaN; callers mark NaN themselves. */
#define EITHER MATH __attribute__((optimize("finite-math-only", "no-signed-zeros")))
#define BOTH(KIND, P, F, FMA)                                                                                      \
  MATH KIND abs_##P(KIND x) { return __builtin_fabs##F(x); }                                                       \
  MATH KIND sqrt_##P(KIND x) { return __builtin_sqrt##F(x); }                                                      \
  EITHER KIND smaller_##P(KIND a, KIND b) { return a < b ? a : b; }                                                \
  EITHER KIND larger_##P(KIND a, KIND b) { return a > b ? a : b; }                                                 \
  /* With u = 1 + x rounded, the rounding error is added to f. The sum does not keep the sign of 0. */             \
  MATH KIND log1p_##P(KIND x) {                                                                                    \
    KIND u = 1 + x, d = u - 1, lost = (1 - (u - d)) + (x - d);                                                     \
    KIND k, scale, f = log_parts_##P(u, &k, &scale), y = log_whole_##P(u, FMA(lost, scale, f), k);                 \
    return x == 0 ? x : y;                                                                                         \
  }                                                                                                                \
  MATH KIND tanh_##P(KIND x) {                                                                                     \
    KIND m = expm1_##P(-2 * __builtin_fabs##F(x));                                                                 \
    return __builtin_copysign##F(m / (2 + m), x);                                                                  \
  }                                                                                                                \
  /* 0 below -709.78 (-88.72), where exp overflows */                                                              \
  MATH KIND sigmoid_##P(KIND x) { return 1 / (1 + exp_##P(-x)); }                                                  \
  /* the larger of x and 0, plus the rest */                                                                       \
  MATH KIND softplus_##P(KIND x) { return (x > 0 ? x : 0) + log1p_##P(exp_##P(-__builtin_fabs##F(x))); }
BOTH(double, f64, , FMA_F64)
BOTH(float, f32, f, FMA_F32)

/* 16-bit storage. Integer arithmetic is correct even if the processor flushes subnormal numbers to 0. */
MATH float from_bf16(uint16_t h) { return from_bits_f32((uint32_t)h << 16); }
MATH uint16_t to_bf16(float x) { /* adding half of the last place, minus one for an even number, rounds to even */
  uint32_t i = bits_f32(x), a = i & 0x7fffffff, h = (i + 0x7fff + (i >> 16 & 1)) >> 16;
  return (uint16_t)(a > 0x7f800000 ? i >> 16 | 0x40 : h);
}
MATH float from_f16(uint16_t h) { /* rebias by 112; once more for inf and NaN; a subnormal is a count of 2^-24 */
  uint32_t a = h & 0x7fff, i = (a << 13) + (112u << 23) + (a < 0x7c00 ? 0 : 112u << 23);
  i = a < 0x400 ? bits_f32((float)(int32_t)a * 0x1p-24f) : i;
  return from_bits_f32(i | (h & 0x8000u) << 16);
}
MATH uint16_t to_f16(float x) { /* 0.5f has the last place of a subnormal, so adding it rounds; 65520 rounds to inf */
  uint32_t i = bits_f32(x), a = i & 0x7fffffff, h = (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13;
  h = a < 0x38800000 ? bits_f32(from_bits_f32(a) + 0.5f) - 0x3f000000 : h;
  h = a < 0x477ff000 ? h : 0x7c00;
  h = a > 0x7f800000 ? 0x7e00 : h;
  return (uint16_t)(h | (i >> 16 & 0x8000));
}
