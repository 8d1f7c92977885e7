/* How this file is compiled: every function serves one combination of dtypes and layout, chosen by macros. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef REAL /* the dtype of computations on tokens: f32, or f64 if an input is f64 */
#define REAL f32
#endif
#ifndef RESULT /* the dtype of results: f32, f64, bf16 or f16. Inputs have dtypes of their own */
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
#define FILL_GAP(array, from, to)                                                                                  \
    if (fill == 0 && (from) < (to)) memset((array) + (from), 0, (size_t)((to) - (from)) * sizeof *(array));        \
    else for (int64_t k = (from), end = (to); k < end; k++) STORE(RESULT, array, k, fill)

#define DTYPE(NAME, KIND, OF, FROM, TO)                                                                            \
    typedef KIND stored_##NAME;                                                                                    \
    static inline OF load_##NAME(const KIND *p) { return FROM(*p); }                                               \
    static inline void store_##NAME(KIND *p, double value) { *p = TO((OF)value); }
DTYPE(f32, float, float, , )
DTYPE(f64, double, double, , )
DTYPE(bf16, uint16_t, float, from_bf16, to_bf16)
DTYPE(f16, uint16_t, float, from_f16, to_f16)
typedef STORED(REAL) real;
#define larger_double larger_f64
#define MORE(a, b) ((a) > (b) ? (a) : (b))
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
