/* How this file is compiled: every function serves one combination of dtypes and layout, chosen by macros. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef REAL /* the dtype of computations on tokens: f32, or f64 if an input is f64 */
#define REAL f32
#endif
#ifndef RESULT /* the dtype of results: f32, f64, bf16 or f16. The inputs below have their own dtypes */
#define RESULT f32
#endif
#ifndef PER_ROW /* 1: advantages have one number per row of the batch. 0: one per token */
#define PER_ROW 0
#endif
#ifndef METRICS /* 0: J and its coefficients alone */
#define METRICS 1
#endif
#define VECTOR(name) *restrict name = (work += size) - size /* declares the next vector of the workspace */
#define CHUNK 1024 /* tokens that are summed in their own precision, before float64 */
#define LONG 16384 /* tokens that are worth the start of a thread */

#ifndef NARROW /* bytes of the narrowest number that a loop reads */
#define NARROW 4
#endif
#define LANES (64 / NARROW) /* sums that are taken side by side: the same number on every processor */
#if defined(__AVX512F__) /* lanes that fit into a vector, which changes no bit */
#define ABREAST LANES
#elif defined(__AVX__)
#define ABREAST (LANES / 2)
#else
#define ABREAST (LANES / 4)
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define STORED(what) JOIN(stored_, what)
#define LOAD(what, array, place) JOIN(load_, what)((array) + (place))
#define STORE(what, array, place, value) JOIN(store_, what)((array) + (place), value)
#define FILL_GAP(array, from, to) \
    for (int64_t k = (from), end = (to); k < end; k++) STORE(RESULT, array, k, fill)

typedef float stored_f32;
typedef double stored_f64;
typedef uint16_t stored_bf16;
typedef uint16_t stored_f16;
static inline float load_f32(const float *p) { return *p; }
static inline double load_f64(const double *p) { return *p; }
static inline float load_bf16(const uint16_t *p) { return from_bf16(*p); }
static inline float load_f16(const uint16_t *p) { return from_f16(*p); }
static inline void store_f32(float *p, double value) { *p = (float)value; }
static inline void store_f64(double *p, double value) { *p = value; }
static inline void store_bf16(uint16_t *p, double value) { *p = to_bf16((float)value); }
static inline void store_f16(uint16_t *p, double value) { *p = to_f16((float)value); }

/* A maximum of floats is taken on integers of the same order, because C's rules for NaN prevent a vector maximum. */
typedef int32_t ordered_f32;
typedef int64_t ordered_f64, ordered_double;
static inline int32_t order_f32(float x) { int32_t i; memcpy(&i, &x, 4); return i ^ ((i >> 31) & INT32_MAX); }
static inline int64_t order_f64(double x) { int64_t i; memcpy(&i, &x, 8); return i ^ ((i >> 63) & INT64_MAX); }
static inline float unorder_f32(int32_t i) { float x; i ^= (i >> 31) & INT32_MAX; memcpy(&x, &i, 4); return x; }
static inline double unorder_f64(int64_t i) { double x; i ^= (i >> 63) & INT64_MAX; memcpy(&x, &i, 8); return x; }
#define MORE(a, b) ((a) > (b) ? (a) : (b))

typedef STORED(REAL) real;
typedef JOIN(ordered_, REAL) ordered_real;
#define order_double order_f64
#define unorder_double unorder_f64
#define order_real JOIN(order_, REAL)
#define unorder_real JOIN(unorder_, REAL)
{functions}

#define SHORT 2048 /* tokens whose values fit on a thread's stack: memory from malloc costs more than their sums */
static void release(void *room) { __builtin_free(*(void **)room); }
static double *reserve(int64_t numbers)
{
    double *room = __builtin_malloc((size_t)(numbers + 1) * sizeof(double));
    if (!room) __builtin_abort();
    return room;
}
/* Declares memory for `size` numbers, until the end of the braces around it. */
#define ROOM(name, size)                                                                                           \
    _Alignas(64) double name##_small[3 * SHORT];                                                                   \
    double *const name##_large __attribute__((cleanup(release))) = (size) > 3 * SHORT ? reserve(size) : 0;         \
    double *restrict name = name##_large ? name##_large : name##_small;
